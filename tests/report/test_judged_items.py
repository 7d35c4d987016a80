"""Judged items in a report: a confusion matrix, and the best and worst items as pictures, in words or by number.

Covers palestra.kinds.data.report.
"""

from typing import Any

import numpy as np
import pytest
import torch
from markupsafe import Markup

from palestra.kinds.data.report import HEIGHT, _confusion, _extremes, image_in
from palestra.report.blocks import Note, Strip, Table


class Pictures:
    classes = ("cat", "dog")

    def __getitem__(self, item: int) -> dict[str, Any]:
        return {"image": torch.full((1, 4, 6), float(item)), "label": torch.tensor(item % 2)}


class Words:
    def describe(self, item: int) -> str:
        return f"<the item {item}>"


def test_a_confusion_matrix_is_a_table_with_the_names_of_the_classes() -> None:
    table = _confusion("valid", [[3, 1], [0, 0]], Pictures.classes)
    assert isinstance(table, Table)
    assert list(table.head) == ["", "cat", "dog"]
    assert [[cell.text for cell in row] for row in table.rows] == [["cat", "3", "1"], ["dog", "", ""]]
    assert [cell.heat for cell in table.rows[0]] == [None, 0.75, 0.25]
    assert isinstance(_confusion("valid", [[0] * 40] * 40, None), Note)


@pytest.mark.parametrize(
    ("data", "expected"), [(Words(), "<the item 5>"), (None, None)], ids=["described", "of a set that is not here"]
)
def test_items_without_pictures_are_in_a_table(data: Any, expected: str | None) -> None:
    [table] = _extremes("worst", [[5, 0.25], [7, 1.0]], data)
    assert isinstance(table, Table)
    assert [row[0].text for row in table.rows] == ["5", "7"]
    assert (table.rows[0][2].text if len(table.head) == 3 else None) == expected


def test_items_with_images_are_pictures_with_their_class() -> None:
    [strip] = _extremes("worst", [[5, 0.25]], Pictures())
    assert isinstance(strip, Strip)
    assert strip.pictures[0].caption == "item 5, dog: .250"
    assert isinstance(strip.pictures[0].image, Markup)
    assert strip.pictures[0].image.startswith('<img src="data:image/png;base64,')


@pytest.mark.parametrize(
    ("entry", "shape"),
    [
        (torch.rand(8, 8), (HEIGHT, HEIGHT)),
        (torch.rand(3, 8, 4), (HEIGHT, HEIGHT // 2, 3)),
        (np.zeros((100, 50, 3), dtype=np.uint8), (100, 50, 3)),
        (torch.rand(12), None),
        (torch.rand(5, 8, 8), None),
        ("a text", None),
    ],
)
def test_what_is_an_image(entry: Any, shape: tuple[int, ...] | None) -> None:
    for item in ({"other": 3, "image": entry}, (entry, 1)):
        found = image_in(item)
        assert (None if found is None else found.shape) == shape
        assert found is None or found.dtype == np.uint8


@pytest.mark.parametrize("listed", ["nonsense", None, [[1]], [["x", 2.0]]])
def test_damaged_records_are_no_error(listed: Any) -> None:
    assert _extremes("worst", listed, None) == []
