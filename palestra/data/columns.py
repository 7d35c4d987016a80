"""Tables and arrays in files, as columns by name: .csv, .jsonl, .parquet and .npz.

Letters: N rows.
"""

import csv
import hashlib
import io
import json
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from palestra.config import ConfigError
from palestra.data.unfolding import UnfoldedError, read_parquet, require_room

SUFFIXES = (".csv", ".jsonl", ".parquet", ".npz")
MOST_UNFOLDED = 1000  # bytes of memory for each byte of a file
MOST_LINE = 64 << 20  # bytes of a row in .jsonl
SEPARATORS = ";\t|"  # of files that separate cells otherwise than by commas
Column = np.ndarray[Any, Any]


@dataclass(frozen=True)
class ColumnsFile:
    """The columns of a file. names: in its order. sha256: of its bytes, as hex digits."""

    names: tuple[str, ...]
    sha256: str
    _read: Callable[[str], Column]
    _read_texts: Callable[[str], list[str]]

    def column(self, name: str) -> Column:
        """Return a column by its name.

        Numbers are float64 (N,), NaN where one is missing; texts are str (N,), empty where one is missing; arrays
        (N, ...) of .npz files have their own dtype. Raises ConfigError, with the path "", for anything else.
        """
        return self._read(name)

    def texts(self, name: str) -> list[str]:
        """Return the cells of a column as texts, numbers as the file writes them; "" where one is missing.

        Raises ConfigError, with the path "", for arrays.
        """
        return self._read_texts(name)


def read_columns(path: str) -> ColumnsFile:
    """Read the columns of a file on this machine; a relative path begins at the working directory.

    Raises ConfigError, with the path "", for a file that cannot be read.
    """
    if "://" in path:
        raise _error(f"expected the path of a file on this machine, got the URL {path!r}; fetch it first")
    place = Path(path)
    if place.suffix not in SUFFIXES:
        raise _error(f"expected a file that ends in {', '.join(SUFFIXES)}, got {path!r}")
    if not place.is_file():
        what = "something else" if place.exists() else f"none (looked in {place.absolute().parent})"
        raise _error(f"expected a file at {path!r}, got {what}")
    readers = {".csv": _read_csv, ".jsonl": _read_jsonl, ".parquet": _read_parquet, ".npz": _read_npz}
    try:
        require_room(size := place.stat().st_size, size, MOST_UNFOLDED)
        content = place.read_bytes()
        if not content:
            raise _error(f"expected rows in {path!r}, got an empty file")
        names, read, read_texts = readers[place.suffix](content, path)
    except OSError as error:
        raise _error(f"expected a file that can be read at {path!r}, got: {error.strerror or error}") from error
    except (UnfoldedError, MemoryError) as error:
        raise _error(f"{path!r}: {error or 'it does not fit in memory'}") from error
    for name in names:
        if names.count(name) > 1:
            raise _error(f"expected columns of different names in {path!r}, got {name!r} twice")
    return ColumnsFile(tuple(names), hashlib.sha256(content).hexdigest(), read, read_texts)


Readers = tuple[list[str], Callable[[str], Column], Callable[[str], list[str]]]  # names; columns; cells as texts


def _error(message: str) -> ConfigError:
    return ConfigError.at("", message)


# ---- .csv ----------------------------------------------------------------------------------------------


def _read_csv(content: bytes, path: str) -> Readers:
    """Read UTF-8 with cells separated by commas; the first line names the columns, empty lines do not count."""
    try:
        reader = csv.reader(io.StringIO(content.decode("utf-8-sig"), newline=""), strict=True)
        lines = [(reader.line_num, cells) for cells in reader if cells]  # numbered from 1
    except UnicodeDecodeError as error:
        message = f"expected UTF-8 in {path!r}, got the byte {content[error.start]:#04x} at {error.start}"
        raise _error(f"{message}; save it as UTF-8") from error
    except csv.Error as error:
        raise _error(
            f"expected cells separated by commas in {path!r}, got in line {reader.line_num}: {error}"
        ) from None
    if not lines:
        raise _error(f"expected rows in {path!r}, got an empty file")
    (_, names), *rows = lines
    if len(names) == 1 and any(separator in names[0] for separator in SEPARATORS):
        raise _error(f"expected cells separated by commas in {path!r}, got the first line {names[0]!r:.80}")
    for number, cells in rows:
        if len(cells) != len(names):
            message = f"expected {len(names)} cells in every line of {path!r}, as in the first one, got {len(cells)}"
            raise _error(f"{message} in line {number}")
    columns = list(zip(*(cells for _, cells in rows), strict=True)) or [()] * len(names)
    return (
        names,
        lambda name: _numbers_or_texts(columns[names.index(name)]),
        lambda name: list(columns[names.index(name)]),
    )


def _numbers_or_texts(cells: Sequence[str]) -> Column:
    """Convert cells to numbers if each is one or empty, else to texts."""
    numbers = [number_of(cell) for cell in cells]
    if any(number is None for number in numbers):
        return np.array(cells, dtype=object)
    return np.array(numbers, dtype=np.float64)


def number_of(cell: str) -> float | None:
    """Return the number in a cell, NaN if it is empty, None if it holds something else."""
    try:
        return None if "_" in cell else float(cell) if cell.strip() else np.nan  # Python would read 1_000 as a number
    except ValueError:
        return None


# ---- .jsonl --------------------------------------------------------------------------------------------


def _read_jsonl(content: bytes, path: str) -> Readers:
    """Read UTF-8 with a JSON object in every line; a row lacks the columns that its object lacks."""
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(content.splitlines(), start=1):
        if not line.strip():
            continue
        if len(line) > MOST_LINE:
            raise _error(
                f"expected at most {MOST_LINE:,} bytes in a line of {path!r}, got {len(line):,} in line {number}"
            )
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise _error(f"expected a JSON object in every line of {path!r}, got in line {number}: {error}") from error
        if not isinstance(row, dict):
            raise _error(f"expected a JSON object in every line of {path!r}, got {row!r:.80} in line {number}")
        rows.append(row)
    names = list(dict.fromkeys(name for row in rows for name in row))

    def texts(name: str) -> list[str]:
        found = [row.get(name) for row in rows]
        for number, value in enumerate(found):
            if isinstance(value, list | dict):
                message = f"expected a number or text in every row of {name!r}, got an array or object in row {number}"
                raise _error(f"{message} (counted from 0)")
        return ["" if each is None else each if isinstance(each, str) else json.dumps(each) for each in found]

    def column(name: str) -> Column:
        return _numbers_or_texts([{"true": "1", "false": "0"}.get(each, each) for each in texts(name)])

    return names, column, texts


# ---- .parquet ------------------------------------------------------------------------------------------


def _read_parquet(content: bytes, path: str) -> Readers:
    try:
        arrow = import_module("pyarrow")
    except ImportError as error:
        raise _error("expected the extra of parquet files, got none: pip install 'palestra[frames]'") from error
    schema, batches = read_parquet(content, MOST_UNFOLDED)
    table = arrow.Table.from_batches(found) if (found := list(batches)) else schema.empty_table()

    def read(name: str) -> Column:
        column, types = table.column(name), arrow.types
        kind = column.type.value_type if types.is_dictionary(column.type) else column.type
        if types.is_string(kind) or types.is_large_string(kind):
            return np.array([text or "" for text in column.to_pylist()], dtype=object)
        if not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or types.is_decimal(kind)):
            raise _error(f"expected numbers or texts in the column {name!r}, got {kind}; arrays may stand in .npz")
        numbers = [np.nan if value is None else float(value) for value in column.to_pylist()]
        return np.array(numbers, dtype=np.float64)

    def texts(name: str) -> list[str]:
        read(name)  # raises for arrays
        return ["" if cell is None else str(cell) for cell in table.column(name).to_pylist()]

    return list(table.column_names), read, texts


# ---- .npz ----------------------------------------------------------------------------------------------


def _read_npz(content: bytes, path: str) -> Readers:
    try:
        arrays = np.load(io.BytesIO(content), allow_pickle=False)
        names = list(arrays.files)
    except (ValueError, OSError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        raise _error(f"expected arrays that numpy.savez has written at {path!r}, got another file") from error
    require_room(sum(each.file_size for each in arrays.zip.infolist()), len(content), MOST_UNFOLDED)

    def read(name: str) -> Column:
        try:
            found: Column = arrays[name]
        except MemoryError as error:
            raise _error(f"expected an array that fits in memory as {name!r}, got another one: {error}") from error
        except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
            message = (
                f"expected an array of numbers or texts as {name!r}, got one that only pickle reads, or a damaged one"
            )
            raise _error(message) from error
        if found.ndim == 0 or found.dtype.kind not in "biufUS":
            got = f"{found.dtype} of shape {found.shape}"
            raise _error(f"expected an array of numbers or texts with an axis of rows as {name!r}, got {got}")
        if found.dtype.kind in "US":
            texts = np.char.decode(found, "utf-8", "replace") if found.dtype.kind == "S" else found
            return texts.astype(object)
        return found.astype(np.float64) if found.ndim == 1 else found

    def texts(name: str) -> list[str]:
        column = read(name)
        if column.ndim > 1:
            raise _error(f"expected a number or text in every row of {name!r}, got arrays of shape {column.shape[1:]}")
        return [cell if isinstance(cell, str) else f"{cell:.17g}" for cell in column.tolist()]

    return names, read, texts
