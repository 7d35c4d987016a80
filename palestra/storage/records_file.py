"""The records file, one JSON object per line, and what a checkpoint stores about it.

The file may have changed since the checkpoint, through a broken disk or an edit. Damaged lines are lost; all other
lines are still read.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from torch import Tensor

from palestra.config import cut
from palestra.storage.disk import Folder, OpenFile
from palestra.storage.stored_files import Count, Entry, Sha256

MAX_LINE = 64 << 20  # bytes: many times those of the longest record
MAX_DIGITS = 300  # of a whole number: a float cannot be much larger


class RecordsThen(Entry):
    """The state of records.jsonl at the time of a checkpoint.

    length: in bytes. sha256: of the whole. last_line: the SHA-256 of the last line; of the empty text if there is none.
    """

    length: Count
    num_lines: Count
    sha256: Sha256
    last_line: Sha256


class Measure:
    """Computes `RecordsThen` for content that comes in pieces. Text after the last newline does not count as a line."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self.length = self.num_lines = 0
        self._all, self._line, self._last = hashlib.sha256(), hashlib.sha256(), hashlib.sha256()
        for piece in pieces:
            self.add(piece)

    def add(self, piece: bytes) -> None:
        self.length += len(piece)
        self._all.update(piece)
        first, *others = piece.split(b"\n")
        self._line.update(first)
        for line in others:
            self._line.update(b"\n")
            self._last, self._line = self._line, hashlib.sha256(line)
        self.num_lines += len(others)

    def then(self) -> RecordsThen:
        return RecordsThen(
            length=self.length, num_lines=self.num_lines, sha256=self._all.hexdigest(), last_line=self._last.hexdigest()
        )


class Line(NamedTuple):
    """A line of a file.

    content: without the newline; None if the line is longer than any record. stop: the offset after it. is_whole:
    whether it ends in a newline, which the last line may lack.
    """

    content: bytes | None
    stop: int
    is_whole: bool


class Beginning(NamedTuple):
    """The beginning of a file, as it existed when a checkpoint was saved.

    length: in bytes. is_intact: whether it is equal to the bit. num_lost: how many lines are missing at its end.
    """

    length: int
    is_intact: bool
    num_lost: int


def measured(file: OpenFile, length: int) -> RecordsThen:
    """Compute `RecordsThen` for the first `length` bytes of a file, or for all if it is shorter."""
    return Measure(file.pieces(length)).then()


def beginning_of(file: OpenFile, then: RecordsThen) -> Beginning:
    """Find the beginning of the file that existed `then`.

    It ends with the line that was the last; if that line is not found, after the same number of lines.
    """
    if measured(file, then.length) == then:
        return Beginning(then.length, True, 0)
    counted = Beginning(0, False, then.num_lines)
    for num_lines, line in enumerate(lines_of(file, file.size), start=1):
        if not line.is_whole:
            break
        if num_lines <= then.num_lines:
            counted = Beginning(line.stop, False, then.num_lines - num_lines)
        if line.content is not None and hashlib.sha256(line.content + b"\n").hexdigest() == then.last_line:
            return Beginning(line.stop, False, 0)
    return counted


def lines_of(file: OpenFile, length: int, start: int = 0) -> Iterator[Line]:
    """The lines in the first `length` bytes of a file, from `start` on, where a line must begin."""
    begun, is_too_long, stop = b"", False, start
    for piece in file.pieces(length, start):
        *whole, rest = piece.split(b"\n")
        for end in whole:
            stop += len(end) + 1
            yield Line(None if is_too_long else begun + end, stop, True)
            begun, is_too_long = b"", False
        stop += len(rest)
        is_too_long = is_too_long or len(begun) + len(rest) > MAX_LINE
        begun = b"" if is_too_long else begun + rest
    if begun or is_too_long:
        yield Line(None if is_too_long else begun, stop, False)


def iterate_records(path: Path, tell: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """The records in a file; none if there is no file.

    Leaves out damaged lines, and calls `tell` with a message for each; leaves out an incomplete last line silently.
    Raises OSError, RefusedPathError.
    """
    if (folder := Folder(path.parent)).kind(path.name) is None:
        return
    with folder.reading(path.name) as file:
        for number, line in enumerate(lines_of(file, file.size), start=1):
            try:
                yield parse_record(line.content)
            except ValueError as error:
                if line.is_whole:
                    tell(f"{path}, line {number}: {error}")


def read_records(path: Path) -> list[dict[str, Any]]:
    """All records in a file. Raises ValueError, with the number of the line, for a damaged one."""

    def refuse(fault: str) -> None:
        raise ValueError(fault)

    return list(iterate_records(path, refuse))


def parse_record(line: bytes | None) -> dict[str, Any]:
    """The record in a line. Raises ValueError if it holds none, or one that differs from what is written."""
    if line is None:
        raise ValueError(f"expected a record of at most {MAX_LINE} bytes, got a longer line")
    try:
        record = json.loads(line, parse_int=_whole)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(record, dict):
        raise ValueError(f"expected a JSON object, got {type(record).__name__}")
    require_shape(record)
    return record


def _whole(digits: str) -> int:
    """A whole number that can be made a float. Raises ValueError for a longer one."""
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"expected numbers of at most {MAX_DIGITS} digits, got one of {len(digits)}")
    return int(digits)


# ---- the shape of a record ------------------------------------------------------------------------------------


if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_Count = Annotated[int, Field(ge=0, lt=1 << 63)]
Interval = Annotated[list[float | None], Field(min_length=2, max_length=2)]
Seconds = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]


class _Section(BaseModel):
    """A mapping of a record; it may have further keys."""

    model_config = ConfigDict(strict=True)


class _Clock(_Section):
    train_seconds: Seconds = 0.0
    time: dict[str, Seconds] = {}


class _Record(_Section):
    """A record of any kind."""

    kind: str = ""
    env_steps: _Count = 0
    opt_steps: _Count = 0
    items: _Count = 0
    epochs: _Count = 0
    episodes: _Count = 0
    clock: _Clock = _Clock()


class _PlayerMetrics(_Section):
    episodes: dict[str, Any] = {}


class _Training(_Record):
    players: dict[str, _PlayerMetrics] = {}


class _Described(_Section):
    mean: float
    min: float
    max: float


class _DataSet(_Record):
    player: str
    file: str
    sha256: str
    num_rows: Count
    num_episodes: Count
    num_left_out: Count
    returns: _Described
    lengths: _Described


class _DeclaredScore(_Section):
    name: Annotated[str, Field(min_length=1)]
    meaning: str
    unit: str
    high_for: list[str]
    low_for: list[str]
    shown: bool


class _Pair(_Section):
    model_config = ConfigDict(strict=True, extra="allow")

    players: Annotated[dict[str, str], Field(min_length=1)]
    learned: list[str]
    past: list[str] = []
    same_as: dict[str, str] | None = None
    truncated: _Count = 0
    scores: dict[str, float | None]
    intervals: dict[str, Interval]

    @model_validator(mode="after")
    def _check_learned(self) -> Self:
        if not set(self.learned) <= self.players.keys():
            raise ValueError("expected roles of players in learned, got others")
        return self


class _Evaluation(_Record):
    evaluation: Annotated[str, Field(min_length=1)]
    opt_steps: _Count
    roles: list[str]
    declared_scores: list[_DeclaredScore]
    counted: str = "games"
    pairs: list[_Pair]

    @model_validator(mode="after")
    def _check_pairs(self) -> Self:
        names = {score.name for score in self.declared_scores}
        for pair in self.pairs:
            if pair.players.keys() != set(self.roles) or pair.scores.keys() != names:
                raise ValueError("expected the evaluation's roles and declared scores in each pair, got others")
            if type(number := (pair.model_extra or {}).get(self.counted)) is not int or number < 0:
                raise ValueError(f"expected a number of {self.counted} in each pair, got {cut(repr(number))}")
        return self


def require_shape(record: Mapping[str, Any]) -> None:
    """Raise ValueError, which names the key, if a record lacks what its kind has, or holds a value of another type."""
    models: dict[str, type[_Record]] = {"training": _Training, "evaluation": _Evaluation, "data_set": _DataSet}
    model = models.get(str(record.get("kind")), _Evaluation if "pairs" in record else _Record)
    try:
        model.model_validate(record)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"]))
        raise ValueError(f"{key}: {_in_words(first)}" if key else _in_words(first)) from None


def _in_words(fault: "ErrorDetails") -> str:
    if fault["type"] == "missing":
        return "expected a value, got none"
    told = fault["msg"].replace("Input should", "expected it to").removeprefix("Value error, ")
    return f"{'expected a mapping' if fault['type'] == 'model_type' else told}, got {cut(repr(fault['input']))}"


class JsonlRecorder:
    """Appends records to a file, one JSON object per line, with keys in their order; a written line survives a kill.

    NaN and infinities become null. Numbers, arrays and tensors of numpy and torch become numbers and lists. If the disk
    refuses a line, `write` raises OSError; the line is written before the next one. No partial line stays in the file.
    """

    def __init__(self, path: Path) -> None:
        """path: the file, which is made if it does not exist. Raises OSError, RefusedPathError for a link."""
        self.path = path
        self.file = Folder(path.parent).append(path.name)
        self._waiting = b""

    @property
    def length(self) -> int:
        """The file's length in bytes."""
        return self.file.size

    @cached_property
    def measure(self) -> Measure:
        """The measure of the file's present content, which is read once."""
        return Measure(self.file.pieces(self.length))

    @property
    def is_waiting(self) -> bool:
        """Whether there are lines that the disk has refused and that are not written yet."""
        return bool(self._waiting)

    def write(self, record: Mapping[str, Any]) -> None:
        """Write one line. Raises TypeError for a value that JSON cannot hold, OSError if the disk refuses."""
        self._waiting += json.dumps(plain(record), allow_nan=False).encode() + b"\n"
        self._put()

    def _put(self) -> None:
        measure = self.measure  # before the file grows
        if self._waiting:
            self.file.append(self._waiting)
            measure.add(self._waiting)
        self._waiting = b""

    def flush(self) -> None:
        """Wait until the disk has all lines. Raises OSError if it refuses."""
        self._put()
        self.file.sync()

    def cut(self, length: int) -> None:
        """Cut the file back to the whole lines in its first `length` bytes."""
        self._waiting = b""
        self.file.truncate(max((line.stop for line in lines_of(self.file, length) if line.is_whole), default=0))
        vars(self).pop("measure", None)  # of the content before

    def close(self) -> None:
        self.file.close()


def plain(value: Any) -> Any:
    """Return a value in the types that JSON knows: tensors and arrays become lists, NaN and infinities None."""
    if isinstance(value, np.generic | np.ndarray | Tensor):
        value = value.tolist()
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value
