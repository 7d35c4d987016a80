"""The files that recorders keep of a run's checkpoints: a folder that can be opened as a run, without replay rows."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from palestra.storage.disk import Folder
from palestra.storage.manifest import BEGUN, Manifest
from palestra.storage.run_folder import RunFolder
from palestra.storage.stored_files import CheckpointError

POINTERS = ("latest", "best")


def files_of_checkpoints(run: Path) -> Iterator[tuple[Path, str]]:
    """Yield the files of a run's latest and best checkpoint, of its config, and of the players of other runs.

    Each comes with its path in a folder that can be opened as a run. There are none before the first checkpoint.
    """
    folder = RunFolder(run)
    pointers = [pointer for pointer in POINTERS if folder.checkpoints.kind(pointer) == "file"]
    named = {pointer: folder.checkpoints.read(pointer).decode().strip() for pointer in pointers}
    if not named:
        return
    for name in (folder.config.name, folder.run.name):
        yield folder.path / name, name
    for pointer in named:
        yield folder.checkpoints.path / pointer, f"checkpoints/{pointer}"
    for number in sorted(set(named.values())):
        place = folder.checkpoints.below(number)
        for name in place.names():
            yield place.path / name, f"checkpoints/{number}/{name}"
    for path in dict.fromkeys(path for number in named.values() for path in _once(folder.checkpoints.below(number))):
        yield folder.path / path, path


def _once(checkpoint: Folder) -> Iterator[str]:
    """Yield the paths in the run's folder of the files with which the run has begun, which a checkpoint names."""
    with suppress(CheckpointError):
        once = Manifest.read(checkpoint).once
        yield from (f"{folder}/{name}" for folder in BEGUN for name in once.get(folder, {}))
