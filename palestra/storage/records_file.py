"""The records file, one JSON object per line, and what a checkpoint stores about it.

The file may have changed since the checkpoint, through a broken disk or an edit. Damaged lines are lost; all other
lines are still read.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from palestra.storage.disk import Folder, OpenFile
from palestra.storage.facts import Count, Entry, Sha256
from palestra.storage.record_shape import require_shape

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
            length=self.length,
            num_lines=self.num_lines,
            sha256=self._all.hexdigest(),
            last_line=self._last.hexdigest(),
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
