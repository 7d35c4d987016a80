"""How much memory files may take that are small on the disk, and large once they are read."""

import io
import os
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from palestra.config import cut

LEAST = 1 << 30  # bytes of memory that reading any file may take
BYTES_OF_VALUE = 32  # of memory that a number takes as an object of Python, and a text besides its letters
ROWS_AT_ONCE = 1024


class UnfoldedError(ValueError):
    """A file that cannot be read, or not in the memory that it may take. The message says what was expected."""


def require_room(wanted: int, num_bytes: int, ratio: int) -> None:
    """Raise UnfoldedError if a file of that size would take more memory than it may.

    It may take `ratio` times as many bytes, at least LEAST, and never more than the machine has.
    """
    most = min(max(LEAST, ratio * num_bytes), os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    if wanted > most:
        told = f"expected at most {most / 2**30:,.1f} GiB of memory for a file of {num_bytes:,} bytes"
        raise UnfoldedError(f"{told}, got one that takes {wanted / 2**30:,.1f} GiB or more")


def read_parquet(content: bytes, ratio: int) -> tuple[Any, Iterator[Any]]:
    """Return the schema of a Parquet file, and its rows in batches of arrow's, with texts as dictionaries.

    So a text that stands in many rows is read once. Raises UnfoldedError for another content, and for what would take
    more memory than `ratio` allows: before the first batch if the footer tells it, else before the batch that does.
    """
    arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    try:
        file = parquet.ParquetFile(io.BytesIO(content))
        footer, columns = file.metadata, range(file.metadata.num_columns)
        groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
        chunks = [group.column(number) for group in groups for number in columns]
        for wanted in (
            footer.num_rows * footer.num_columns * BYTES_OF_VALUE,
            sum(BYTES_OF_VALUE * chunk.num_values for chunk in chunks),
            sum(chunk.total_uncompressed_size for chunk in chunks),
        ):
            require_room(wanted, len(content), ratio)
        texts = [each.path for each in map(file.schema.column, columns) if each.physical_type == "BYTE_ARRAY"]
    except (arrow.ArrowException, OSError) as error:
        raise UnfoldedError(f"expected a Parquet file, got another content: {cut(str(error), 200)}") from error
    return file.schema_arrow, _batches(parquet.ParquetFile(io.BytesIO(content), read_dictionary=texts), content, ratio)


def _batches(file: Any, content: bytes, ratio: int) -> Iterator[Any]:
    arrow, wanted = import_module("pyarrow"), 0
    try:
        for batch in file.iter_batches(ROWS_AT_ONCE):
            wanted += sum(map(_unfolded, batch.columns))
            require_room(wanted, len(content), ratio)
            yield batch
    except (arrow.ArrowException, OSError) as error:
        raise UnfoldedError(f"expected a Parquet file, got a damaged one: {cut(str(error), 200)}") from error


def stacked(cells: Any) -> Any:
    """Return an array of arrow's that holds numbers, or lists of them in any depth, as one of numpy's (N, ...).

    Raises UnfoldedError unless all lists of a depth are equally long.
    """
    compute, shape = import_module("pyarrow.compute"), [len(cells)]
    while hasattr(cells, "flatten"):
        lengths = compute.min_max(compute.list_value_length(cells)).as_py()
        if cells.null_count or lengths["min"] != lengths["max"]:
            got = "none in some row" if cells.null_count else f"{lengths['min']} and {lengths['max']} values"
            raise UnfoldedError(f"expected lists of equal length in every row, got {got}")
        shape.append(lengths["max"] or 0)
        cells = cells.flatten()
    return cells.to_numpy(zero_copy_only=False).reshape(shape)


def parts(array: Any) -> list[Any]:
    """Return the arrays of arrow's of which an array of lists, mappings or structures is made; [] for any other."""
    if hasattr(array, "items"):  # a mapping, of which arrow flattens none with dictionaries
        begin, end = array.offsets[0].as_py(), array.offsets[-1].as_py()
        return [each[begin:end] for each in (array.keys, array.items)]
    found = array.flatten() if hasattr(array, "flatten") else []
    return found if isinstance(found, list) else [found]


def _unfolded(array: Any) -> int:
    """Return how much memory an array takes as objects of Python."""
    letters = 0
    if hasattr(array, "dictionary"):
        lengths = import_module("pyarrow.compute").binary_length(array.dictionary)
        letters = lengths.cast("int64").take(array.indices).sum().as_py() or 0
    return BYTES_OF_VALUE * len(array) + letters + sum(map(_unfolded, parts(array)))
