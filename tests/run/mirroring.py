"""A small run with a mirror, without a trainer: what is saved at number n is known. And stores that fail."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch

from palestra.run.checkpoints import Checkpoints
from palestra.run.fetching import fetch
from palestra.run.loaded_checkpoint import LoadedCheckpoint
from palestra.run.mirror import Contents, Mirror, MirrorConfig
from palestra.run.remote import Remote
from palestra.storage.facts import RunFacts
from palestra.storage.records_file import Measure
from palestra.storage.run_folder import RunFolder
from palestra.storage.stored_files import DamagedError
from tests.run.ring import Ring

URL = "memory://mirrors"
PLACE = f"{URL}/run"
ROWS_PER_SAVE = 3
CAPACITY = 14
SEGMENT_ROWS = 4


def mirror_config(url: str, **changes: Any) -> MirrorConfig:
    keys: dict[str, Any] = {"url": url, "options": {}, "attempts": 1, "first_wait_s": 0.0, "end_wait_s": 30.0}
    return MirrorConfig(**(keys | changes))


def run_of(digit: str) -> RunFacts:
    return RunFacts.of_now(
        id=digit * 32,
        user_classes={},
        set_in_python=[],
        trainer_in_python=None,
        branched_from=None,
        mirror=None,
        checkpoint_folder=None,
    )


def state_at(number: int) -> dict[str, Any]:
    return {"number": number, "weights": torch.arange(50) + number}


def records_at(number: int) -> bytes:
    return b"".join(b'{"number": %d}\n' % line for line in range(number + 1))


class Run:
    """Saves numbers one after the other into a folder, and to a mirror at `url`/run."""

    def __init__(self, path: Path, url: str, keep_last: int = 2, keep_every: int | None = None, **changes: Any) -> None:
        self.folder = RunFolder(path)
        if not path.exists():
            self.folder = RunFolder.create_at(path)
            self.folder.write_facts(run_of("1"))
            self.folder.config.write_text("seed: 0\n")
        self.checkpoints = Checkpoints(self.folder, keep_last, keep_every, SEGMENT_ROWS)
        self.ring = Ring(CAPACITY)
        self.told: list[str] = []
        self.noted: list[str] = []
        config = mirror_config(url, **changes)
        self.mirror = Mirror(f"{url}/run", config, self.folder, self.checkpoints, self.told.append, self.noted.append)
        self.checkpoints.in_use = self.mirror.in_use

    def go_back(self, which: int | str = "latest") -> int:
        """Go on from a checkpoint of the folder; gives its number."""
        self.ring = Ring(CAPACITY)
        loaded = assert_sound(self.checkpoints, which, self.ring)
        return int(loaded.state["number"])

    def save(self, number: int, best: bool = False) -> None:
        """Save, and let the mirror know."""
        self.ring.add(ROWS_PER_SAVE * (number + 1) - self.ring.num_added)
        records = records_at(number)
        with open(self.folder.records, "ab") as file:  # the thread may read it
            file.write(records[file.tell() :])
        name = self.checkpoints.save(number, state_at(number), {}, {"host": self.ring}, Measure([records]).then())
        if best:
            self.checkpoints.mark_best(name)
        self.mirror.send(number)


def save_in_turn(run: Run, numbers: range, best: int | None = None) -> None:
    """Save, and wait for each upload."""
    for number in numbers:
        run.save(number, best=number == best)
        run.mirror.finish()


def assert_sound(checkpoints: Checkpoints, which: int | str, ring: Ring) -> LoadedCheckpoint:
    """The checkpoint loads to exactly what was saved under its number; its rows go into `ring`."""
    loaded = checkpoints.load(which)
    number = loaded.state["number"]
    assert torch.equal(loaded.state["weights"], state_at(number)["weights"])
    checkpoints.restore_buffers(loaded, {"host": ring})
    whole = Ring(CAPACITY)
    whole.add(ROWS_PER_SAVE * (number + 1))
    assert (ring.num_added, ring.held) == (whole.num_added, whole.held)
    return loaded


def fetched(url: str, into: Path) -> tuple[int, int | None, list[str]]:
    """The numbers of the latest and the best checkpoint that come back from a mirror, all that belongs to them checked;
    and the warnings."""
    folder, warnings = fetch(url, into)
    checkpoints = Checkpoints(folder, 1, None, SEGMENT_ROWS)
    latest = assert_sound(checkpoints, "latest", Ring(CAPACITY))
    assert not latest.warnings
    number = latest.state["number"]
    assert folder.records.read_bytes() == records_at(number)
    assert len(records_at(number)) == latest.records.length
    assert folder.facts() == run_of("1")
    assert folder.config.read_text() == "seed: 0\n"
    best = checkpoints.best()
    if best is not None:
        assert_sound(checkpoints, "best", Ring(CAPACITY))
    assert set(checkpoints.numbers()) == {number} | ({best} - {None})
    return number, best, warnings


def on_mirror(url: str) -> dict[str, int]:
    return Remote(url, {}, 1, 0.0).files()


def numbers_on_mirror(url: str) -> list[int]:
    """Of the checkpoints that are there: their contents.json is whole, and so is all that it names."""
    remote, numbers = Remote(url, {}, 1, 0.0), []
    files = remote.files()
    for path in files:
        if path.endswith("contents.json"):
            with suppress(DamagedError):
                contents, name = Contents.from_bytes(remote.read(path)), path.split("/")[1]
                assert contents.paths(name) <= files.keys()
                numbers.append(int(name.split("-")[0]))
    return sorted(numbers)


def clear_memory() -> None:
    memory = fsspec.filesystem("memory")
    memory.store.clear()
    memory.pseudo_dirs[:] = [""]


# ---- stores that fail --------------------------------------------------------------------------------

CALLS = ("ls", "cat_file", "get_file", "pipe_file", "put_file", "rm_file", "mkdir")


class Failing:
    """A file system of fsspec whose calls are counted, from 1, and fail as `fault` says. A write that fails has written
    half of its bytes."""

    def __init__(self, fs: Any, counted: list[str], fault: Callable[[int], Exception | None]) -> None:
        self.fs, self.counted, self.fault = fs, counted, fault

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self.fs, name)
        if name not in CALLS:
            return attribute

        def call(*args: Any, **kwargs: Any) -> Any:
            self.counted.append(name)
            error = self.fault(len(self.counted))
            if error is None:
                return attribute(*args, **kwargs)
            if name == "pipe_file":
                self.fs.pipe_file(args[0], args[1][: len(args[1]) // 2])
            if name == "put_file":
                content = Path(args[0]).read_bytes()
                self.fs.pipe_file(args[1], content[: len(content) // 2])
            raise error

        return call


@contextmanager
def failing(fault: Callable[[int], Exception | None]) -> Iterator[list[str]]:
    """Let the calls to all remotes fail as `fault` says; gives the list of all calls so far."""
    counted: list[str] = []
    original = Remote._connected

    def connected(self: Remote) -> tuple[Any, str]:
        fs, root = original(self)
        return Failing(fs, counted, fault), root

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Remote, "_connected", connected)
        yield counted
