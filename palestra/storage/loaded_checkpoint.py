"""A checkpoint that is read from its folder, and what the files `latest` and `best` name."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palestra.config import ConfigError
from palestra.storage.disk import Folder
from palestra.storage.manifest import FORMAT, MANIFEST, STATE, TENSORS, Manifest
from palestra.storage.records_file import RecordsThen
from palestra.storage.segments import (
    CheckpointError,
    CheckpointPlace,
    DamagedError,
    MissingCheckpointError,
    StoredRows,
    parse_json,
    read_checked,
    read_tensors,
)
from palestra.storage.states import decode

NAME = r"[0-9]{8,18}"
# Errors of reading content whose SHA-256 are right but which palestra did not write.
NOT_OURS = (LookupError, TypeError, ValueError, AttributeError, RuntimeError, OverflowError)


@dataclass(frozen=True)
class LoadedCheckpoint:
    """A checkpoint as `Checkpoints.load` gives it: tensors on the CPU, replay rows on disk until `restore_buffers`.

    warnings: one line per damaged checkpoint that was skipped.
    """

    place: CheckpointPlace
    state: dict[str, Any]
    counters: dict[str, int]
    buffers: dict[str, StoredRows]
    records: RecordsThen
    manifest: Manifest
    warnings: list[str]

    @property
    def folder(self) -> Path:
        return self.place.folder.path

    def entry(self, key: str) -> Any:
        """An entry that the state of every training has. Raises CheckpointError if this one lacks it."""
        with self.fitting():
            return self.state[key]

    @contextmanager
    def fitting(self) -> Iterator[None]:
        """For loading the state into objects: an error inside becomes a CheckpointError."""
        try:
            yield
        except ConfigError:
            raise
        except NOT_OURS as error:
            raise CheckpointError(f"checkpoint {self.folder} does not fit this run: {error!r}") from error


def checkpoint_folder(path: Path) -> Path:
    """The folder of the checkpoint at a path, which is that folder or the file `latest` or `best` beside it.

    Raises MissingCheckpointError."""
    if os.path.isdir(path):  # unlike Path.is_dir, this never raises
        return path
    name = name_in(Folder(path.parent), path.name) if path.name in ("latest", "best") else None
    if name is None:
        raise MissingCheckpointError(f"there is no checkpoint {path}; expected latest, best, a number or a folder")
    return path.with_name(name)


def name_in(folder: Folder, file: str) -> str | None:
    """The checkpoint's name in the file `latest` or `best`; None if the file is missing or holds no such name."""
    try:
        name = folder.read(file, max_bytes=32).strip().decode("ascii", errors="replace")
    except OSError:
        return None
    return name if re.fullmatch(NAME, name) else None


def read_checkpoint(place: CheckpointPlace, warnings: list[str], check_rows: bool) -> LoadedCheckpoint:
    """The checkpoint in a folder. Checks every file; replay rows only if `check_rows`. Raises DamagedError and
    CheckpointError."""
    folder = place.folder
    manifest = Manifest.read(folder)
    if re.fullmatch(NAME, folder.path.name) and int(folder.path.name) != manifest.number:
        raise DamagedError(f"expected {MANIFEST} of this checkpoint, got that of checkpoint {manifest.number:08d}")
    document = parse_json(read_checked(folder, STATE, manifest.files[STATE]), STATE)
    tensors = read_tensors(folder, TENSORS, manifest.files[TENSORS])
    if check_rows:
        for rows in manifest.buffers.values():
            rows.check(place)
    try:
        state = decode(document, tensors)
        if not isinstance(state, dict):
            raise TypeError(f"expected a dict, got {type(state).__name__}")
    except NOT_OURS as error:
        raise DamagedError(f"{STATE} is not of format {FORMAT} ({error!r})") from error
    return LoadedCheckpoint(
        place=place,
        state=state,
        counters=manifest.counters,
        buffers=manifest.buffers,
        records=manifest.records,
        manifest=manifest,
        warnings=warnings,
    )
