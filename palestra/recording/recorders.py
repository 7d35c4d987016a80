"""Recorders: where the records of a run go.

A record is a nested dict with counters, such as opt_steps, and metrics. Values that depend on the clock or the machine
(time, rates, memory) lie under its key "clock", so that all others are equal in equal runs. All records are written to
records.jsonl; the other recorders read them from there (palestra.run.records).
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from palestra.recording.results import RATINGS, path_of_pair
from palestra.storage.disk import Folder
from palestra.storage.manifest import BEGUN, Manifest
from palestra.storage.run_folder import RunFolder
from palestra.storage.stored_files import CheckpointError

Status = Literal["running", "complete", "failed", "interrupted"]
Param = bool | int | float | str | None


@dataclass(frozen=True)
class RunCard:
    """What recorders see of a run.

    folder: its folder. params: its config, with each key as a dotted path. axis: the counter of records over which
    curves go.
    """

    folder: Path
    params: Mapping[str, Param]
    axis: str

    @property
    def name(self) -> str:
        return self.folder.resolve().name


@dataclass(frozen=True)
class RunEnd:
    """How a run ended. step: that of its last record, on its axis. scores: those of the last evaluations, by name."""

    status: Status
    step: int
    scores: Mapping[str, float]


class Recorder(ABC):
    """Base of all recorders, which file the records of a run in one system.

    A constructor imports what the recorder needs, and connects to nothing.

    All other methods must be implemented. They are called in a thread of their own, and may raise or hang: training
    does not wait for them.
    """

    def __init__(self, config: Any = None) -> None:
        """config: the recorder's section of the run's file; None for a recorder that no file names."""
        self.config = config

    @abstractmethod
    def open(self, run: RunCard) -> int:
        """Connect, say that the run is running, and file its hyperparameters.

        Returns how many of the run's records, counted from the first, are filed already. It is called again after a
        failure, and must then connect anew.
        """

    @abstractmethod
    def write(self, number: int, record: Mapping[str, Any]) -> None:
        """File a record. record: as it stands in records.jsonl. number: that of its line, counted from 0."""

    @abstractmethod
    def flush(self) -> None:
        """Send what was written: there is no new record at the moment."""

    @abstractmethod
    def close(self, end: RunEnd) -> None:
        """File how the run ended, and disconnect."""


def without_clock(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record without `clock`; equal runs have equal records then."""
    return {key: value for key, value in record.items() if key != "clock"}


def numbers_of(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers in a record by name: its keys joined by slashes, for instance players/host/loss.

    The name of an evaluation's number also tells the players and the score, as evaluation/main/host vs random/rho; the
    ends of its interval are .../rho/low and .../rho/high. Lists, texts and null are left out.
    """
    found = dict(_numbers({key: value for key, value in record.items() if key not in ("pairs", *RATINGS)}, ""))
    for key in RATINGS:
        found |= _numbers(record.get(key), f"evaluation/{record.get('evaluation')}/{key}")
    for pair in record.get("pairs", []):
        path = path_of_pair(record, pair)
        intervals = {name: dict(zip(("low", "high"), ends, strict=True)) for name, ends in pair["intervals"].items()}
        others = {key: value for key, value in pair.items() if key not in ("players", "learned", "scores", "intervals")}
        for numbers in (others, pair["scores"], intervals):
            found |= _numbers(numbers, path)
    return found


def _numbers(value: Any, name: str) -> Iterator[tuple[str, float]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _numbers(item, f"{name}/{key}" if name else str(key))
    elif isinstance(value, int | float):
        yield name, value


def flat_params(value: Any, path: str = "") -> dict[str, Param]:
    """Return the values in a config's data by dotted path; lists of plain values become text."""
    if isinstance(value, list | tuple) and any(isinstance(item, dict | list | tuple) for item in value):
        value = dict(enumerate(value))
    if isinstance(value, dict) and value:
        parts = (flat_params(item, f"{path}.{key}" if path else str(key)) for key, item in value.items())
        return {name: param for part in parts for name, param in part.items()}
    return {path: value if isinstance(value, bool | int | float | str | None) else json.dumps(value)}


def stored_run_id(folder: Folder, make: Callable[[], str]) -> str:
    """Return the id of a run in another system, which the file `run-id` in `folder` stores.

    make: called for the id if there is none yet.
    """
    if folder.kind("run-id") is None:
        folder.make().write("run-id", f"{make()}\n".encode())
    return folder.read("run-id", max_bytes=1024).decode().strip()


# ---- checkpoints as artifacts ---------------------------------------------------------------------------------


def files_of_checkpoints(run: Path) -> Iterator[tuple[Path, str]]:
    """Yield the files of a run's latest and best checkpoint, of its config, and of the players of other runs.

    Each comes with its path in a folder that can be opened as a run. There are none before the first checkpoint.
    """
    folder = RunFolder(run)
    pointers = [pointer for pointer in ("latest", "best") if folder.checkpoints.kind(pointer) == "file"]
    if not (named := {pointer: folder.checkpoints.read(pointer).decode().strip() for pointer in pointers}):
        return
    for name in (folder.config.name, folder.run.name):
        yield folder.path / name, name
    for pointer in named:
        yield folder.checkpoints.path / pointer, f"checkpoints/{pointer}"
    for number in sorted(set(named.values())):
        place = folder.checkpoints.below(number)
        for name in place.names():
            yield place.path / name, f"checkpoints/{number}/{name}"
    begun: dict[str, None] = {}  # the files with which the run has begun, and past selves, which a checkpoint names
    for number in named.values():
        with suppress(CheckpointError):
            once = Manifest.read(folder.checkpoints.below(number)).once
            begun |= dict.fromkeys(f"{place}/{name}" for place in (*BEGUN, "past") for name in once.get(place, {}))
    for path in begun:
        yield folder.path / path, path
