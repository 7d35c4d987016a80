"""Recorders: where the records of a run go.

A record is a dict with `env_steps`, `opt_steps` and metrics, nested as the metrics are. What depends on the clock or
the machine (time, rates, memory) lies under its key "clock", so that the rest is equal in equal runs. All records
stand in records.jsonl; other recorders file what stands there (palestra.recording.feed).
"""

import errno
import hashlib
import json
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch import Tensor

from palestra.storage.run_folder import write_text

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
    """How a run ended. scores: of the last evaluation, by name."""

    status: Status
    env_steps: int
    scores: Mapping[str, float]


class Recorder(ABC):
    """Files the records of a run with one system. Its constructor imports what it needs, and connects to nothing.

    All else is called in a thread of its own, and may raise anything or hang: training does not wait.
    """

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
        self._path = path
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115 (open as long as the recorder)
        self._hash = hashlib.sha256(path.read_bytes())
        self._waiting = b""

    @property
    def length(self) -> int:
        """The file's length in bytes; after an OSError its last line may be half written."""
        return self._file.tell()

    @property
    def sha256(self) -> str:
        """Of what the file holds."""
        return self._hash.hexdigest()

    @property
    def is_waiting(self) -> bool:
        """Whether the disk has refused lines that are still to be written."""
        return bool(self._waiting)

    def write(self, record: Mapping[str, Any]) -> None:
        """Write one line. Raises TypeError for a value that has no place in JSON."""
        self._waiting += json.dumps(plain(record), allow_nan=False).encode() + b"\n"
        self._put()

    def _put(self) -> None:
        before = self.length
        if self._waiting and self._file.write(self._waiting) < len(self._waiting):
            self._file.truncate(before)
            self._file.seek(before)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
        self._hash.update(self._waiting)
        self._waiting = b""

    def flush(self) -> None:
        """Wait until the disk has all lines. Raises OSError if it refuses."""
        self._put()
        os.fsync(self._file.fileno())

    def cut(self, length: int) -> None:
        """Keep the whole lines among the first `length` bytes. A file that is shorter keeps its whole lines."""
        kept = self._path.read_bytes()[:length]
        self._waiting = b""
        length = kept.rfind(b"\n") + 1
        self._file.truncate(length)
        self._file.seek(0, os.SEEK_END)
        self._hash = hashlib.sha256(kept[:length])

    def close(self) -> None:
        self._file.close()


def read_records(path: Path) -> list[dict[str, Any]]:
    """The records in a file of JsonlRecorder. A last line that is only half there is left out.

    Raises ValueError, with the number of the line, if any other line is not a JSON object.
    """
    return list(iterate_records(path))


def iterate_records(path: Path) -> Iterator[dict[str, Any]]:
    """`read_records`, one by one: those before a damaged line come before its ValueError."""
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, start=1):
        is_last = number == len(lines)  # what follows the last end of line: nothing, or a line half written
        if is_last and not line:
            break
        try:
            record = json.loads(line.decode())
            if not isinstance(record, dict):
                raise ValueError("not a JSON object")
        except (ValueError, RecursionError) as error:
            if is_last:
                break
            raise ValueError(f"{path}, line {number}: {error}") from error
        yield record


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


def kept_id(path: Path, make: Callable[[], str]) -> str:
    """The id of a run in another system: made once, and kept in a file of the run's folder."""
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        write_text(path, make() + "\n")
    return path.read_text().strip()
