"""Small files that unfold into gigabytes are refused in a line, before they take the memory; honest ones are read."""

import os
import resource
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from palestra.config import ConfigError
from palestra.data.columns import read_columns

MIB = 1 << 20
pytestmark = pytest.mark.usefixtures("in_tmp_path")


def npz(shape: tuple[int, ...], content: bytes, times: int) -> None:
    with zipfile.ZipFile("data.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file, file.open("x.npy", "w") as x:
        np.lib.format.write_array_header_1_0(x, {"descr": "<f8", "fortran_order": False, "shape": shape})
        for _ in range(times):
            x.write(content)


def claim_length() -> None:
    """Let the directory of the file say that its array unfolds into 3 GiB, as a longer one would do."""
    npz((1,), bytes(8), 1)
    content = bytearray(Path("data.npz").read_bytes())
    at = content.index(b"PK\x01\x02") + 24
    content[at : at + 4] = (3 << 30).to_bytes(4, "little")
    Path("data.npz").write_bytes(content)


def rows() -> None:
    pq.write_table(pa.table({"x": pa.nulls(40_000_000, pa.int8())}), "data.parquet", compression="zstd")


def texts() -> None:
    column = pa.DictionaryArray.from_arrays(pa.array(np.zeros(100_000, np.int32)), pa.array(["x" * MIB]))
    pq.write_table(pa.table({"x": column}), "data.parquet", compression="zstd")


def elements() -> None:
    column = pa.ListArray.from_arrays([0, 40_000_000], pa.nulls(40_000_000, pa.int8()))
    pq.write_table(pa.table({"x": column}), "data.parquet", compression="zstd")


def line() -> None:
    Path("data.jsonl").write_bytes(b'{"x": "' + bytes(65 * MIB) + b'"}\n')


def endless() -> None:
    Path("data.csv").touch()
    os.truncate("data.csv", 1 << 42)


BOMBS: dict[str, tuple[Callable[[], object], str]] = {
    "an array that claims 4 TiB": (
        lambda: npz((1 << 39,), b"", 1),
        r"expected an array of the 0 bytes that .* has as 'x', got one that claims 4,398,046,511,104 bytes, of shape",
    ),
    "an array that unfolds": (claim_length, r"at most 1.0 GiB of memory for a file of \d+ bytes, got .* 3.0 GiB"),
    "rows that unfold": (rows, r"at most 1.0 GiB of memory for a file of .* bytes, got .* 1.2 GiB"),
    "texts that unfold": (texts, r"at most 1.0 GiB of memory for a file of .* bytes, got .* [12].\d GiB"),
    "lists that unfold": (elements, r"at most 1.0 GiB of memory for a file of .* bytes, got .* 1.2 GiB"),
    "a line without end": (line, r"expected at most 67,108,864 bytes in a line of 'data.jsonl'"),
    "a file that is larger than all memory": (endless, r"GiB of memory for a file of 4,398,046,511,104 bytes"),
    "objects in objects": (
        lambda: Path("data.jsonl").write_text('{"x":' * 100_000 + "1" + "}" * 100_000),
        "expected a JSON object in every line",
    ),
}


@pytest.mark.parametrize("case", BOMBS)
def test_what_unfolds_into_gigabytes_is_refused_before_it_takes_them(case: str) -> None:
    make, told = BOMBS[case]
    make()
    [path] = Path().glob("data.*")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ConfigError, match=told) as raised:
        read_columns(str(path)).column("x")
    assert len(str(raised.value).splitlines()) == 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 * 1024


def test_honest_files_are_read() -> None:
    column = pa.DictionaryArray.from_arrays(pa.array(np.arange(50_000, dtype=np.int32) % 3), pa.array(["a", "bb", "é"]))
    numbers = pa.array(np.arange(50_000) / 7)
    pq.write_table(pa.table({"x": column, "y": numbers}), "data.parquet", row_group_size=7000)
    pq.write_table(pa.table({"x": column[:0], "y": numbers[:0]}), "empty.parquet")
    file = read_columns("data.parquet")
    assert file.column("x").tolist() == column.to_pylist()
    assert file.column("y").tolist() == numbers.to_pylist()
    assert read_columns("empty.parquet").texts("x") == []
