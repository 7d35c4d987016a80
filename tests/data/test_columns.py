"""Cells of files: classes and categories as they are written, numbers where every cell is one."""

import csv
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from palestra.config import ConfigError, check
from palestra.data.columns import read_columns
from palestra.data.rows import RowsData, RowsDataConfig

pytestmark = pytest.mark.usefixtures("in_tmp_path")

FILES = ("data.csv", "data.jsonl", "data.parquet", "data.npz")
LARGE = 2**53
CODES = ["1", "01", "001", "1e0", "1.0", "1E5", "10E4", "01067"]


def write(file: str, **columns: list[Any]) -> str:
    match Path(file).suffix:
        case ".csv":
            with open(file, "w", newline="") as out:
                csv.writer(out).writerows([[*columns], *zip(*columns.values(), strict=True)])
        case ".jsonl":
            rows = (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))
            Path(file).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        case ".parquet":
            arrow = pytest.importorskip("pyarrow")
            __import__("pyarrow.parquet").parquet.write_table(arrow.table(columns), file)
        case _:
            np.savez(file, **{name: np.array(cells) for name, cells in columns.items()})  # type: ignore[arg-type]
    return file


def made(file: str, train: RowsData | None = None, **changes: Any) -> RowsData:
    keys = {"name": "rows", "file": file, "label": "y", "label_kind": "class", "sees": ["x"], "categorical": ["x"]}
    keys |= {"images": [], "held_out": None, "part": "all", "standardize": True, "num_items": None}
    return RowsData(check(keys | changes, RowsDataConfig), train)


@pytest.mark.parametrize("file", FILES)
def test_classes_and_categories_are_the_cells_as_they_are_written(file: str) -> None:
    data = made(write(file, x=CODES, y=CODES))
    order = sorted(CODES)
    assert data.classes == order
    assert data.entries["label"].tolist() == [order.index(code) for code in CODES]
    assert data.entries["columns"].argmax(dim=1).tolist() == [order.index(code) for code in CODES]
    ids = [LARGE + 1, 7, LARGE, 10]
    data = made(write(file, x=ids, y=ids))
    assert data.classes == sorted(ids), "whole numbers by size, however large"
    assert data.entries["label"].tolist() == data.entries["columns"].argmax(dim=1).tolist() == [3, 0, 2, 1]


@pytest.mark.parametrize("cell", [LARGE + 1, "01067", "9" * 5000, "x"])
def test_what_is_no_number_is_told(cell: Any) -> None:
    files = FILES if isinstance(cell, int) else FILES[:2]
    for file in files:
        write(file, x=[1 if isinstance(cell, int) else "1", cell], y=[0, 1])
        with pytest.raises(ConfigError, match=rf"^sees.0: expected numbers in the column 'x', got '{cell}' in row 1 "):
            made(file, categorical=[])
    np.savez("data.npz", x=np.array([[1], [LARGE + 1]]), y=[0, 1])
    with pytest.raises(ConfigError, match=r"^sees.0: expected numbers that float64 holds in 'x', got integers beyond"):
        made("data.npz", categorical=[])


@pytest.mark.parametrize("before", ["", "\n"])
@pytest.mark.parametrize("file", ["data.csv", "data.jsonl"])
def test_a_byte_order_mark_is_no_part_of_a_file(file: str, before: str) -> None:
    write(file, x=["a", "b"], y=["0", "1"])
    Path(file).write_text(before + Path(file).read_text(), encoding="utf-8-sig")
    found = read_columns(file)
    assert (found.names, found.texts("x")) == (("x", "y"), ["a", "b"])


@pytest.mark.parametrize("file", FILES[:3])
def test_a_column_without_a_name_as_the_index_of_pandas_is_none(file: str) -> None:
    found = read_columns(write(file, **{"": [0, 1], "x": [7, 8], "y": ["a", "b"]}))
    assert (found.names, found.column("x").tolist(), found.texts("y")) == (("x", "y"), [7.0, 8.0], ["a", "b"])


def test_a_document_may_be_a_cell() -> None:
    limit = csv.field_size_limit()
    text = "a long text, " * 20_000
    assert read_columns(write("data.csv", x=[text, ""], y=[0, 1])).texts("x") == [text, ""]
    assert csv.field_size_limit() == limit, "that of the process, which other code may mean"


def test_a_number_and_its_text_are_one_cell_in_all_types_of_files() -> None:
    train = made(write("train.csv", x=[3, 2, 1], y=[3, 1, 2]))
    for file in FILES:
        for y in ([2, 1, 3], ["2", "1", "3"]):
            data = made(write(file, x=y, y=y), train)
            assert data.entries["label"].tolist() == [1, 0, 2], file
            assert data.entries["columns"].argmax(dim=1).tolist() == [1, 0, 2], file
            assert read_columns(file).column("y").tolist() == [2.0, 1.0, 3.0], "numbers, if every cell is one"
        with pytest.raises(ConfigError, match=r"^label: expected one of the classes .* \(1, 2, 3\), got 01 in row 1 "):
            made(write(file, x=["1", "1"], y=["1", "01"]), train)


def test_fractions_are_written_alike_in_all_types_of_files() -> None:
    for file in FILES:
        write(file, x=[0.1, 2.5, 1.0])
        assert read_columns(file).texts("x") == ["0.1", "2.5", "1.0"], file
    np.savez("data.npz", x=np.array([0.1, np.nan], dtype=np.float32), y=np.array([b"\xfe", b"\xff"]))
    assert read_columns("data.npz").texts("x") == ["0.1", ""]
    with pytest.raises(ConfigError, match=r"expected texts in UTF-8 as 'y', got the bytes b'.xfe'"):
        read_columns("data.npz").texts("y")


def test_lists_of_equal_length_in_parquet_are_arrays() -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    arrays = {
        "pairs": np.arange(6, dtype=np.float32).reshape(3, 2),
        "pictures": np.arange(36, dtype=np.uint8).reshape(3, 3, 2, 2),
        "flags": np.array([[True], [False], [True]]),
    }
    columns = {name: arrow.array(each.tolist()) for name, each in arrays.items()}
    columns["fixed"] = arrow.FixedSizeListArray.from_arrays(arrow.array(range(9), arrow.int16()), 3)
    columns["y"] = arrow.array([1, 2, 3])
    columns["large"] = arrow.array([[1.5], [2.5], [3.5]], arrow.large_list(arrow.float16()))
    bad = {"ragged": [[1], [2], [3, 4]], "missing": [[1], None, [2]], "objects": [{"x": 1}] * 3}
    parquet.write_table(arrow.table(columns | bad), "data.parquet", row_group_size=2)
    file = read_columns("data.parquet")
    for name, wanted in arrays.items():
        assert np.array_equal(file.column(name), wanted), name
        assert file.column(name).shape == wanted.shape
    assert file.column("fixed").dtype == np.int16
    assert file.column("fixed").tolist() == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert file.column("large").tolist() == [[1.5], [2.5], [3.5]]
    for name, told in (
        ("ragged", "the column 'ragged': expected lists of equal length in every row, got 1 and 2 values"),
        ("missing", "the column 'missing': expected lists of equal length in every row, got none in some row"),
        ("objects", "expected numbers, texts or lists of numbers in the column 'objects', got struct<"),
    ):
        with pytest.raises(ConfigError, match=told):
            file.column(name)
    with pytest.raises(ConfigError, match="expected a number or text in every row of 'pairs', got lists"):
        file.texts("pairs")
    data = made("data.parquet", label_kind="number", sees=["pairs", "pictures"], categorical=[], images=["pictures"])
    assert data.entries["pictures"].shape == (3, 3, 2, 2)
    assert data.entries["pairs"].shape == (3, 2)


@pytest.mark.parametrize("shape", [(3,), (5,), (-4,), (1 << 50,), (1 << 40, 1 << 40)])
def test_a_forged_header_is_told_before_memory_is_asked_for(shape: tuple[int, ...]) -> None:
    with zipfile.ZipFile("data.npz", "w") as file:
        for name, claimed in {"x": shape, "y": (4,)}.items():
            with file.open(f"{name}.npy", "w") as out:
                np.lib.format.write_array_header_1_0(out, {"descr": "<f8", "fortran_order": False, "shape": claimed})
                out.write(np.arange(4.0).tobytes())
    with pytest.raises(
        ConfigError, match=r"^expected an array of the 32 bytes that 'data.npz' has as 'x', got one that"
    ):
        read_columns("data.npz").column("x")
    assert read_columns("data.npz").column("y").tolist() == [0, 1, 2, 3]
