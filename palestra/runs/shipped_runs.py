"""Finds the trained players that come with palestra.

`palestra:polyhedra` names a run of which only the players are left, and `palestra:polyhedra-host` one of its players.
`python -m benchmarks.trained_players` trains and writes them.
"""

from pathlib import Path
from typing import NamedTuple

from palestra.storage.disk import RunFolderError

PREFIX = "palestra:"
FOLDER = Path(__file__).parents[1] / "trained"


class NamedRun(NamedTuple):
    """The folder of a run, and the player that its name names; None if it names none."""

    folder: Path
    player: str | None


def is_shipped(run: str | Path) -> bool:
    """Whether a run is named as one that palestra ships."""
    return str(run).startswith(PREFIX)


def find_run(run: str | Path) -> NamedRun:
    """A run by its folder, or by `palestra:NAME` or `palestra:NAME-PLAYER`.

    Raises RunFolderError for an unknown name.
    """
    if not is_shipped(run):
        return NamedRun(Path(run), None)
    name = str(run).removeprefix(PREFIX)
    known = sorted(path.name for path in FOLDER.iterdir())
    for shipped in known:
        if name == shipped or name.startswith(f"{shipped}-"):
            return NamedRun(FOLDER / shipped, name.removeprefix(shipped).removeprefix("-") or None)
    expected = ", ".join(PREFIX + shipped for shipped in known)
    raise RunFolderError(f"expected a run that palestra ships ({expected}), or one of its players, got {str(run)!r}")
