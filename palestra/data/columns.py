"""Tables and arrays in files, as columns by name: .csv, .jsonl, .parquet, .npz, and data sets of Minari's.

Letters: N rows.
"""

import csv
import hashlib
import io
import json
import math
import re
import zipfile
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from palestra.config import ConfigError, cut
from palestra.data.minari import PREFIX, read_set
from palestra.data.unfolding import UnfoldedError, read_parquet, require_room, stacked

SUFFIXES = (".csv", ".jsonl", ".parquet", ".npz")
SHIPPED, SHIPPED_FOLDER = "palestra:", Path(__file__).parents[1] / "recorded"  # of recorded play
MOST_UNFOLDED = 1000  # bytes of memory for each byte of a file
MOST_LINE = 64 << 20  # bytes of a row in .jsonl; characters of a cell in .csv
SEPARATORS = ";\t|"  # of files that separate cells otherwise than by commas
LEADING_ZERO = re.compile(r"[+-]?0[0-9]")  # of codes, such as 01067, which are no numbers
WHOLE = re.compile(r"[+-]?[0-9]+")
ALL_HELD = 2**53  # float64 holds every integer up to it
CONSTANTS = {"NaN": None, **{name: name for name in ("Infinity", "-Infinity")}}  # of JSON as Python writes it
Column = np.ndarray[Any, Any]


@dataclass(frozen=True)
class ColumnsFile:
    """The columns of a file. names: in its order. sha256: of its bytes, as hex digits.

    column: returns a column by its name. It holds numbers, float64 (N,), NaN where one is missing, if every cell is one
    (`number_of`); else texts, str (N,), empty where one is missing. Arrays (N, ...) have their own dtype: those of .npz
    files and Minari's, and lists of equal length of .parquet files. texts: returns the cells of a column as the file
    writes them; "" where one is missing. Numbers of a .parquet or .npz file are as Python writes them. Both raise
    ConfigError, with the path "", for anything else, texts also for arrays. action: what the numbers in the column of
    this name may be, as the game `spaces` has it, where a data set of Minari's says it.
    """

    names: tuple[str, ...]
    sha256: str
    column: Callable[[str], Column]
    texts: Callable[[str], list[str]]
    action: dict[str, Any] | None = None


def read_columns(path: str) -> ColumnsFile:
    """Read the columns of a file on this machine; a relative path begins at the working directory.

    path: minari:ID is a data set in Minari's store, palestra:NAME a file that palestra ships. Raises ConfigError, with
    the path "", for a file that cannot be read.
    """
    if "://" in path:
        raise _error(f"expected the path of a file on this machine, got the URL {path!r}; fetch it first")
    if path.startswith(PREFIX):
        found, sha256, array, action = read_set(path, MOST_UNFOLDED)
        return ColumnsFile(tuple(found), sha256, *_of_arrays(array), action)
    place = Path(path)
    if path.startswith(SHIPPED):
        place = SHIPPED_FOLDER / f"{path.removeprefix(SHIPPED)}.npz"
        if place not in (known := sorted(SHIPPED_FOLDER.iterdir())):
            expected = ", ".join(f"{SHIPPED}{each.stem}" for each in known)
            raise _error(f"expected recorded play that palestra ships ({expected}), got {path!r}")
    if place.suffix not in SUFFIXES:
        raise _error(f"expected a file that ends in {', '.join(SUFFIXES)}, got {path!r}")
    if not place.is_file():
        what = "something else" if place.exists() else f"none (looked in {place.absolute().parent})"
        raise _error(f"expected a file at {path!r}, got {what}")
    readers = {".csv": _read_csv, ".jsonl": _read_jsonl, ".parquet": _read_parquet, ".npz": _read_npz}
    try:
        require_room(size := place.stat().st_size, size, MOST_UNFOLDED)
        if not (content := place.read_bytes()):
            raise _error(f"expected rows in {path!r}, got an empty file")
        names, read, read_texts = readers[place.suffix](content, path)
    except OSError as error:
        raise _error(f"expected a file that can be read at {path!r}, got: {error.strerror or error}") from error
    except (UnfoldedError, MemoryError) as error:
        raise _error(f"{path!r}: {error or 'it does not fit in memory'}") from error
    names = [name for name in names if name]  # what has no name, as the index that pandas writes, is no column
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
    limit = csv.field_size_limit(MOST_LINE)  # of the whole process, and usually too small for a document
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
    finally:
        csv.field_size_limit(limit)
    if not lines:
        raise _error(f"expected rows in {path!r}, got an empty file")
    (_, names), *rows = lines
    if len(names) == 1 and any(separator in names[0] for separator in SEPARATORS):
        raise _error(f"expected cells separated by commas in {path!r}, got the first line {cut(repr(names[0]))}")
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
    return np.array(cells, dtype=object) if None in numbers else np.array(numbers, dtype=np.float64)


def number_of(cell: str) -> float | None:
    """Return the number in a cell, NaN if it is empty, None if it holds something else.

    What has a leading zero is no number, nor is an integer that float64 does not hold: others would be equal to it.
    """
    if not (text := cell.strip()):
        return np.nan
    if "_" in text or LEADING_ZERO.match(text):  # Python would read 1_000 as a number
        return None
    try:
        number = float(text)
        return None if WHOLE.fullmatch(text) and int(text) != number else number
    except ValueError:
        return None


def in_order(cells: Iterable[str]) -> list[str]:
    """Return different cells in their order: by size if each is a number, however large, else by characters."""
    found = sorted(set(cells))
    return sorted(found, key=Decimal) if all(map(_has_size, found)) else found


def _has_size(cell: str) -> bool:
    if WHOLE.fullmatch(cell):
        return not LEADING_ZERO.match(cell)
    return (number := number_of(cell)) is not None and math.isfinite(number)


# ---- .jsonl --------------------------------------------------------------------------------------------


def _read_jsonl(content: bytes, path: str) -> Readers:
    """Read UTF-8 with a JSON object in every line; a row lacks the columns that its object lacks."""
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(content.removeprefix(BOM_UTF8).splitlines(), start=1):
        if not line.strip():
            continue
        if len(line) > MOST_LINE:
            raise _error(
                f"expected at most {MOST_LINE:,} bytes in a line of {path!r}, got {len(line):,} in line {number}"
            )
        try:
            row = json.loads(line, parse_float=str, parse_int=str, parse_constant=CONSTANTS.get)
        except (ValueError, RecursionError) as error:
            raise _error(f"expected a JSON object in every line of {path!r}, got in line {number}: {error}") from error
        if not isinstance(row, dict):
            raise _error(
                f"expected a JSON object in every line of {path!r}, got {cut(repr(json.loads(line)))} in line {number}"
            )
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

    types = arrow.types
    of_numbers = (types.is_integer, types.is_floating, types.is_boolean)
    of_texts = (types.is_decimal, types.is_string, types.is_large_string)
    of_lists = (types.is_list, types.is_large_list, types.is_fixed_size_list)

    def is_one(kind: Any, known: Sequence[Callable[[Any], bool]]) -> bool:
        return any(is_known(kind) for is_known in known)

    def kind_of(name: str) -> Any:
        kind = table.schema.field(name).type
        kind = cell = kind.value_type if types.is_dictionary(kind) else kind
        while is_one(cell, of_lists):
            cell = cell.value_type
        if not is_one(cell, of_numbers) and not is_one(kind, of_texts):
            raise _error(f"expected numbers, texts or lists of numbers in the column {name!r}, got {kind}")
        return kind

    def read(name: str) -> Column:
        kind, cells = kind_of(name), table.column(name)
        try:
            if is_one(kind, of_lists):
                found: Column = stacked(cells.combine_chunks())
                return found
            if is_one(kind, of_numbers) and not types.is_dictionary(cells.type):
                with suppress(arrow.ArrowInvalid):  # of integers that float64 may not hold
                    numbers: Column = cells.cast(arrow.float64()).to_numpy()
                    return numbers
        except (UnfoldedError, arrow.ArrowException) as error:
            raise _error(f"the column {name!r}: {error}") from error
        return _numbers_or_texts(texts(name))

    def texts(name: str) -> list[str]:
        if is_one(kind := kind_of(name), of_lists):
            raise _error(f"expected a number or text in every row of {name!r}, got lists")
        written = np.float32 if types.is_float32(kind) else str  # of whose numbers Python has more digits
        return ["" if cell is None or cell != cell else f"{written(cell)}" for cell in table.column(name).to_pylist()]

    return list(table.column_names), read, texts


# ---- .npz and other arrays -----------------------------------------------------------------------------


def _read_npz(content: bytes, path: str) -> Readers:
    try:
        if not content.startswith(b"PK"):  # numpy would read arrays and objects of other kinds, too
            raise zipfile.BadZipFile
        arrays = np.load(io.BytesIO(content), allow_pickle=False)
        names, members = list(arrays.files), {each.filename: each for each in arrays.zip.infolist()}
    except Exception as error:  # whatever zipfile raises for what is damaged
        raise _error(f"expected arrays that numpy.savez has written at {path!r}, got another file") from error
    require_room(sum(each.file_size for each in members.values()), len(content), MOST_UNFOLDED)

    def array(name: str) -> Column:
        claimed = held = 0
        try:
            member = members.get(f"{name}.npy") or members[name]
            with arrays.zip.open(member) as file:
                shape, dtype = _header(file)
                claimed, held = math.prod(shape) * dtype.itemsize, member.file_size - file.tell()
            if claimed == held or dtype.hasobject:  # of objects the header does not tell the size, and numpy reads none
                found: Column = arrays[name]
        except MemoryError as error:
            raise _error(f"expected an array that fits in memory as {name!r}, got another one: {error}") from error
        except Exception as error:  # whatever zipfile, its decompressors and numpy raise for what is damaged
            message = (
                f"expected an array of numbers or texts as {name!r}, got one that only pickle reads, or a damaged one"
            )
            raise _error(message) from error
        if claimed != held:
            message = f"expected an array of the {held:,} bytes that {path!r} has as {name!r}"
            raise _error(f"{message}, got one that claims {claimed:,} bytes, of shape {cut(str(shape))}")
        return found

    return names, *_of_arrays(array)


def _header(file: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Read what an array in the format .npy says of itself: its shape and its type."""
    formats = np.lib.format
    is_first = formats.read_magic(file) == (1, 0)
    shape, _, dtype = (formats.read_array_header_1_0 if is_first else formats.read_array_header_2_0)(file)
    return shape, dtype


def _of_arrays(array: Callable[[str], Column]) -> tuple[Callable[[str], Column], Callable[[str], list[str]]]:
    """Return what reads columns, and their cells as texts. array: returns an array by the name of its column."""

    def checked(name: str) -> Column:
        found = array(name)
        if found.ndim == 0 or found.dtype.kind not in "biufUS":
            got = f"{found.dtype} of shape {found.shape}"
            raise _error(f"expected an array of numbers or texts with an axis of rows as {name!r}, got {got}")
        if found.dtype.kind != "S":
            return found
        try:
            return np.char.decode(found, "utf-8")
        except UnicodeDecodeError as error:
            raise _error(f"expected texts in UTF-8 as {name!r}, got the bytes {cut(repr(error.object))}") from error

    def read(name: str) -> Column:
        if (found := checked(name)).ndim > 1:
            return found.astype(object) if found.dtype.kind == "U" else found
        is_exact = found.dtype.kind in "bf" or (found.dtype.kind in "iu" and is_held(found))
        return found.astype(np.float64) if is_exact else _numbers_or_texts(texts(name))

    def texts(name: str) -> list[str]:
        if (found := checked(name)).ndim > 1:
            raise _error(f"expected a number or text in every row of {name!r}, got arrays of shape {found.shape[1:]}")
        return ["" if cell != cell else str(cell) for cell in found]

    return read, texts


def is_held(integers: Column) -> bool:
    """Return whether float64 holds every integer up to the largest of an array."""
    return integers.size == 0 or max(-int(integers.min()), int(integers.max())) <= ALL_HELD


def require_same_files(before: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Raise ConfigError, with the path "", if a file has changed.

    before, now: the SHA-256 of files by their paths, when the run began and now; a file that only one of them has does
    not count.
    """
    for path, sha256 in before.items():
        if now.get(path, sha256) != sha256:
            expected = f"expected {path!r} as it was when the run began (SHA-256 {sha256[:12]}...)"
            message = f"{expected}, got another content ({now[path][:12]}...); put that file back, or begin a new run"
            raise ConfigError.at("", message)
