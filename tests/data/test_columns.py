"""Cells of files: classes and categories as they are written, numbers where every cell is one."""

import csv
import json
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
