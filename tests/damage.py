"""Ways in which files go wrong, and files that mean harm."""

import io
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

Damage = Callable[[Path], None]


class Bomb:
    """Unpickled, it makes a folder."""

    def __init__(self, target: str) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return (os.mkdir, (self.target,))


EXPLODED = Path(f"exploded-{os.getpid()}").absolute()  # what a bomb makes
BOMB = pickle.dumps(Bomb(str(EXPLODED)))


def zipped_bomb() -> bytes:
    """As torch.save wraps it."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", BOMB)
        archive.writestr("archive/version", "3\n")
    return file.getvalue()


HARMFUL: dict[str, bytes] = {
    "a pickle": BOMB,
    "a zipped pickle": zipped_bomb(),
    "a deep list": b"[" * 200_000,
    "a deep dict": b'{"a":' * 200_000,
    "a closed deep list": b"[" * 50_000 + b"]" * 50_000,
    "a long number": b"9" * 10_000,
    "an absurd header": b"\xff" * 7 + b"\x7f",
    "an absurd shape": len(
        b := b'{"x":{"dtype":"F64","shape":[1099511627776],"data_offsets":[0,8796093022208]}}'
    ).to_bytes(8, "little")
    + b,
    "offsets outside": len(c := b'{"x":{"dtype":"U8","shape":[8],"data_offsets":[90,98]}}').to_bytes(8, "little") + c,
    "null": b"null",
    "nothing": b"",
}


def truncate(share: float) -> Damage:
    return lambda path: os.truncate(path, int(path.stat().st_size * share))


def flip(share: float, bit: int) -> Damage:
    def damage(path: Path) -> None:
        content = bytearray(path.read_bytes())
        if content:
            content[int(share * (len(content) - 1))] ^= 1 << bit
        path.write_bytes(content)

    return damage


def replace_by(content: bytes) -> Damage:
    return lambda path: (path.unlink(), path.write_bytes(content), None)[-1]


def turn_into_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def turn_into_a_link(path: Path) -> None:
    elsewhere = path.with_name(".elsewhere")
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


SHARES = st.floats(0.0, 1.0, exclude_max=True)
DAMAGES: st.SearchStrategy[Damage] = st.one_of(
    SHARES.map(truncate),
    st.tuples(SHARES, st.integers(0, 7)).map(lambda where: flip(*where)),
    st.binary(max_size=60).map(replace_by),
    st.sampled_from([replace_by(content) for content in HARMFUL.values()]),
    st.sampled_from([Path.unlink, turn_into_a_folder, turn_into_a_link]),
)
