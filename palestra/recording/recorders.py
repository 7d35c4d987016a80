"""Recorders: where the records of a run go.

A record is a dict with `env_steps`, `opt_steps` and metrics, nested as the metrics are. What depends on the clock or
the machine (time, rates, memory) lies under its key "clock", so that the rest is equal in equal runs.
"""

import errno
import json
import math
import os
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from torch import Tensor

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class Recorder(Protocol):
    """What receives the records of a run."""

    def write(self, record: Mapping[str, Any]) -> None:
        """Take one record; it has the key `env_steps`."""

    def flush(self) -> None:
        """Make sure that what was written survives a crash of the machine. Called before a checkpoint is saved."""

    def cut(self, length: int, env_steps: int) -> None:
        """Forget what was written after a checkpoint: `length` bytes of records.jsonl, up to `env_steps`."""

    def close(self) -> None:
        """Nothing more will be written."""


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
        self._waiting = b""

    @property
    def length(self) -> int:
        """The file's length in bytes."""
        return self._file.tell()

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
        self._waiting = b""

    def flush(self) -> None:
        """Wait until the disk has all lines. Raises OSError if it refuses."""
        self._put()
        os.fsync(self._file.fileno())

    def cut(self, length: int, env_steps: int = 0) -> None:
        """Keep the whole lines among the first `length` bytes. A file that is shorter keeps its whole lines."""
        kept = self._path.read_bytes()[:length]
        self._waiting = b""
        self._file.truncate(kept.rfind(b"\n") + 1)
        self._file.seek(0, os.SEEK_END)

    def close(self) -> None:
        self._file.close()


def read_records(path: Path) -> list[dict[str, Any]]:
    """The records in a file of JsonlRecorder. A last line that is only half there is left out.

    Raises ValueError, with the number of the line, if any other line is not a JSON object.
    """
    records = []
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
        records.append(record)
    return records


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


class TensorBoardRecorder:
    """Writes the numbers of records as TensorBoard scalars, under the keys joined by slashes, at step `env_steps`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: SummaryWriter | None = None
        self._purge_step: int | None = None
        import_module("torch.utils.tensorboard")  # takes seconds: now, not while the clock of training runs

    def write(self, record: Mapping[str, Any]) -> None:
        """Write every number of the record; what is not a number is passed over."""
        if self._writer is None:
            self._writer = self._open()
        for tag, value in _scalars(record, ""):
            self._writer.add_scalar(tag, value, int(record["env_steps"]))

    def flush(self) -> None:
        if self._writer is not None:
            self._writer.flush()

    def cut(self, length: int, env_steps: int) -> None:
        """Let TensorBoard forget the scalars of later steps than `env_steps`, as soon as another one is written."""
        self.close()
        self._purge_step = env_steps + 1

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _open(self) -> "SummaryWriter":
        from torch.utils.tensorboard import SummaryWriter

        return SummaryWriter(str(self._folder), purge_step=self._purge_step)


def _scalars(value: Any, tag: str) -> Iterator[tuple[str, float]]:
    """The numbers in nested dicts, each with its tag."""
    if isinstance(value, np.generic | np.ndarray | Tensor):
        value = value.tolist()
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _scalars(item, f"{tag}/{key}" if tag else str(key))
    elif isinstance(value, int | float):
        yield tag, float(value)
