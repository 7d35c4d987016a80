"""A checkpoint that is read from its folder, and what the files `latest` and `best` name."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palestra.config import ConfigError
from palestra.storage.disk import Folder
from palestra.storage.manifest import (
    FORMAT,
    MANIFEST,
    NAME,
    NUMBER,
    STATE,
    TENSORS,
    CheckpointPlace,
    Manifest,
    StoredRows,
    number_in,
    numbers_in,
)
from palestra.storage.records_file import RecordsThen
from palestra.storage.stored_files import (
    NOT_OURS,
    CheckpointError,
    DamagedError,
    MissingCheckpointError,
    decode,
    parse_json,
    read_checked,
    read_tensors,
)

AT = "@"  # before an opt step or, in a run that counts stages, a stage
MOST_LISTED = 20


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
        """A context for loading the state into objects, in which errors become a CheckpointError."""
        try:
            yield
        except ConfigError:
            raise
        except NOT_OURS as error:
            raise CheckpointError(f"checkpoint {self.folder} does not fit this run: {error!r}") from error


def checkpoint_folder(path: Path) -> Path:
    """The folder of the checkpoint that a path means.

    path: the folder itself, or in place of its name `latest`, `best`, a number, or @ and an opt step (or a stage).
    Raises MissingCheckpointError.
    """
    if os.path.isdir(path):  # unlike Path.is_dir, this never raises
        return path
    folder = Folder(path.parent)
    if re.fullmatch(NUMBER, path.name) or path.name.startswith(AT):
        return path.with_name(f"{find_checkpoint(folder, path.name):08d}")
    number = number_in(folder, path.name) if path.name in ("latest", "best") else None
    if number is None:
        expected = f"expected latest, best, a folder, or one of {checkpoints_in_words(folder)}"
        raise MissingCheckpointError(f"there is no checkpoint {path}; {expected}")
    return path.with_name(f"{number:08d}")


def find_checkpoint(folder: Folder, which: str) -> int:
    """The number of a checkpoint in the folder of all, by its number, such as `3`, or by its moment, such as `@2100`.

    Of several at a moment, it is the newest. Raises MissingCheckpointError.
    """
    if re.fullmatch(NUMBER, which):
        if (number := int(which)) in numbers_in(folder):
            return number
        which = f"{number:08d}"
    elif re.fullmatch(AT + NUMBER, which):
        for number in reversed(numbers_in(folder)):
            if moment(_counters_of(folder, number)) == int(which.removeprefix(AT)):
                return number
    there = checkpoints_in_words(folder)
    raise MissingCheckpointError(f"there is no checkpoint {which} in {folder.path}; expected one of {there}")


def moment(counters: Mapping[str, int]) -> int | None:
    """The number by which `@` names a checkpoint: its stage where stages are counted, else its opt step.

    A stage without opt steps leaves the players as they were, so that an opt step may have several checkpoints. None
    without counters.
    """
    return counters.get("stages", counters.get("opt_steps"))


def _counters_of(folder: Folder, number: int) -> dict[str, int]:
    """The counters of a checkpoint; none if it is damaged."""
    with suppress(CheckpointError):
        return Manifest.read(folder.below(f"{number:08d}")).counters
    return {}


def checkpoints_in_words(folder: Folder) -> str:
    """The numbers of the checkpoints in a folder, with their moments."""
    return numbers_in_words([(number, _counters_of(folder, number)) for number in numbers_in(folder)])


def numbers_in_words(numbered: Sequence[tuple[int, Mapping[str, int]]]) -> str:
    """List numbers of checkpoints with their moments, for a message: `0 (@0), 1 (@1000), 2 (@2100)`.

    numbered: each with the checkpoint's counters, without any if it is damaged. Of many checkpoints, the first and the
    last are listed.
    """
    moments = ((number, moment(counters)) for number, counters in numbered)
    words = [f"{number} ({'damaged' if at is None else f'{AT}{at}'})" for number, at in moments]
    unit = "stages" if any("stages" in counters for _, counters in numbered) else "opt steps"
    if len(words) > MOST_LISTED:
        words = [*words[: MOST_LISTED // 2], "...", *words[-MOST_LISTED // 2 :]]
    return f"{', '.join(words)} (@: {unit})" if words else "none"


def read_checkpoint(place: CheckpointPlace, warnings: list[str], check_rows: bool) -> LoadedCheckpoint:
    """Read the checkpoint in a folder. Raises DamagedError and CheckpointError.

    Every file is checked; replay rows only if `check_rows`.
    """
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
