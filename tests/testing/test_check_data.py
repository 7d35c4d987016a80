"""`check_data`: sound sets pass, and each broken promise is named.

Covers palestra.testing.data.
"""

from typing import Any

import numpy as np
import pytest
import torch

from palestra.config import ConfigError
from palestra.testing import check_data


class Sound:
    """Thirty items with a draw."""

    def __len__(self) -> int:
        return 30

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": torch.randn(3) + np.random.rand(), "name": "text", "label": index % 2}


class Longer(Sound):
    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"label": list(range(20))[index]}


class Counting(Sound):
    num_reads = 0

    def __getitem__(self, index: int) -> dict[str, Any]:
        self.num_reads += 1
        return super().__getitem__(index) | {"label": self.num_reads}


class Unlike(Sound):
    def __getitem__(self, index: int) -> dict[str, Any]:
        return super().__getitem__(index) | ({"x": torch.zeros(4)} if index == 7 else {})


class Nan(Sound):
    def __getitem__(self, index: int) -> dict[str, Any]:
        return super().__getitem__(index) | ({"x": np.array([1.0, np.nan, 2.0])} if index == 7 else {})


class Unsent(Sound):
    def __init__(self) -> None:
        self.made = lambda: 0


class Weighted(Sound):
    weights = (1.0, -2.0)


class Empty(Sound):
    def __len__(self) -> int:
        return 0


def test_a_sound_set_passes() -> None:
    check_data(Sound(), start_method="spawn")
    check_data(Sound(), num_items=3)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (Empty(), "__len__: expected items, got none"),
        (
            Longer(),
            "__getitem__: item 20 cannot be read, although its length is 30: IndexError",
        ),
        (
            Counting(),
            "__getitem__: expected the same item at every reading with generators seeded alike",
        ),
        (Unlike(), "collate: item 7 is x: float32 (4,), but item 0 is x: float32 (3,); batch 0 of epoch 0"),
        (Nan(), "__getitem__: expected finite numbers, got nan in item 7"),
        (Unsent(), "expected a set that can be sent to a worker (spawn), got "),
        (Weighted(), "weights: expected 30 weights, one for each item of the data set, got 2"),
    ],
)
def test_what_is_broken_is_told(data: Any, told: str) -> None:
    with pytest.raises(ConfigError) as found:
        check_data(data, start_method="spawn")
    assert str(found.value).startswith(told)
