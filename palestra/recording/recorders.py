"""Recorders: where the records of a run go.

A record is a dict with `env_steps`, `opt_steps` and metrics, nested as the metrics are. What depends on the clock or
the machine (time, rates, memory) lies under its key "clock", so that the rest is equal in equal runs. All records
stand in records.jsonl; other recorders file what stands there (palestra.recording.feed).
"""

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch import Tensor

from palestra.storage.disk import Folder
from palestra.storage.records_file import Measure, RecordsThen, lines_of

Status = Literal["running", "complete", "failed", "interrupted"]
Param = bool | int | float | str | None


@dataclass(frozen=True)
class RunCard:
    """What a recorder is told of a run. params: its config, each key as a dotted path."""

    folder: Path
    params: Mapping[str, Param]

    @property
    def name(self) -> str:
        return self.folder.resolve().name


@dataclass(frozen=True)
class RunEnd:
    """How a run ended. step: `step_of` its last record. scores: of the last evaluation, by name."""

    status: Status
    step: int
    scores: Mapping[str, float]


def step_of(counts: Mapping[str, Any]) -> int:
    """Where a record stands on the axis of a run: its env steps or, in a run that counts none, its opt steps."""
    step: int = counts["env_steps"] if "env_steps" in counts else counts["opt_steps"]
    return step


class Recorder(ABC):
    """Files the records of a run with one system. Its constructor imports what it needs, and connects to nothing.

    All else is called in a thread of its own, and may raise anything or hang: training does not wait.
    """

    def __init__(self, config: Any = None) -> None:
        """config: its section of the run's file, where it stands in one."""
        self.config = config

    @abstractmethod
    def open(self, run: RunCard) -> int:
        """Connect, say that the run is running, and file its hyperparameters. Gives how many of the run's records,
        counted from the first, are filed already. Called again after a failure: then it starts over."""

    @abstractmethod
    def write(self, number: int, record: Mapping[str, Any]) -> None:
        """File a record, as it stands in records.jsonl; `number` is its line, counted from 0."""

    @abstractmethod
    def flush(self) -> None:
        """Hand over what was written: nothing new is there for the moment."""

    @abstractmethod
    def close(self, end: RunEnd) -> None:
        """File how the run ended, and let go."""


def without_clock(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record without what depends on the clock or the machine; equal in equal runs."""
    return {key: value for key, value in record.items() if key != "clock"}


class JsonlRecorder:
    """Appends records to a file, one JSON object per line, keys in the order given; a line written survives a kill.

    NaN and infinities become null. Numbers, arrays and tensors of numpy and torch become numbers and lists. Where the
    disk refuses a line, `write` raises OSError; it is kept, and written before the next one. No half line stays.
    """

    def __init__(self, path: Path) -> None:
        """Raises OSError, RefusedPathError."""
        self.path = path
        self.file = Folder(path.parent).append(path.name)
        self._measure: Measure | None = None  # of what the file holds; None: not yet looked at
        self._waiting = b""

    @property
    def length(self) -> int:
        """The file's length in bytes."""
        return self.file.size

    @property
    def then(self) -> RecordsThen:
        """What the file holds now."""
        return self._measured().then()

    @property
    def is_waiting(self) -> bool:
        """Whether the disk has refused lines that are still to be written."""
        return bool(self._waiting)

    def write(self, record: Mapping[str, Any]) -> None:
        """Write one line. Raises TypeError for a value that has no place in JSON."""
        self._waiting += json.dumps(plain(record), allow_nan=False).encode() + b"\n"
        self._put()

    def _put(self) -> None:
        measure = self._measured()
        if self._waiting:
            self.file.append(self._waiting)
            measure.add(self._waiting)
        self._waiting = b""

    def flush(self) -> None:
        """Wait until the disk has all lines. Raises OSError if it refuses."""
        self._put()
        self.file.sync()

    def cut(self, length: int) -> None:
        """Keep the whole lines among the first `length` bytes. A file that is shorter keeps its whole lines."""
        self._waiting = b""
        self.file.truncate(max((line.stop for line in lines_of(self.file, length) if line.is_whole), default=0))
        self._measure = None

    def _measured(self) -> Measure:
        if self._measure is None:
            self._measure = Measure()
            for piece in self.file.pieces(self.length):
                self._measure.add(piece)
        return self._measure

    def close(self) -> None:
        self.file.close()


def plain(value: Any) -> Any:
    """`value` as json.dumps writes it."""
    if isinstance(value, np.generic | np.ndarray | Tensor):
        value = value.tolist()
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def numbers_of(record: Mapping[str, Any]) -> dict[str, float]:
    """The numbers in a record by name: keys joined by slashes, as players/host/loss; of evaluations also the players,
    as evaluation/main/host vs random/rho. Lists, texts and null are left out."""
    found = dict(_numbers({key: value for key, value in record.items() if key not in ("pairs", "ratings")}, ""))
    found |= _numbers(record.get("ratings"), f"evaluation/{record.get('evaluation')}/ratings")
    for pair in record.get("pairs", []):
        scores = {key: value for key, value in pair.items() if key not in ("players", "learned")}
        found |= _numbers(scores, f"evaluation/{record['evaluation']}/{' vs '.join(pair['players'].values())}")
    return found


def _numbers(value: Any, name: str) -> Iterator[tuple[str, float]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _numbers(item, f"{name}/{key}" if name else str(key))
    elif isinstance(value, int | float):
        yield name, value


def flat_params(value: Any, path: str = "") -> dict[str, Param]:
    """The values in a config's data by dotted path; lists of plain values as text."""
    if isinstance(value, list | tuple) and any(isinstance(item, dict | list | tuple) for item in value):
        value = dict(enumerate(value))
    if isinstance(value, dict) and value:
        found: dict[str, Param] = {}
        for key, item in value.items():
            found |= flat_params(item, f"{path}.{key}" if path else str(key))
        return found
    return {path: value if isinstance(value, bool | int | float | str | None) else json.dumps(value)}


def kept_id(folder: Folder, make: Callable[[], str]) -> str:
    """The id of a run in another system: made once, and kept in a file `run-id` of a folder of the run."""
    if folder.kind("run-id") is None:
        folder.make().write("run-id", f"{make()}\n".encode())
    return folder.read("run-id", max_bytes=1024).decode().strip()
