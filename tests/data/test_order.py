"""Orders are functions of seed and epoch; weighted draws come in the shares of their weights."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from palestra.config import ConfigError
from palestra.data.order import AnyOrderConfig, SequentialConfig, ShuffledConfig, WeightedConfig

CONFIGS: list[AnyOrderConfig] = [
    ShuffledConfig(name="shuffled"),
    SequentialConfig(name="sequential"),
    WeightedConfig(name="weighted", num_drawn=None),
]


def indices(config: AnyOrderConfig, num: int, seed: int, epoch: int, **data: Any) -> list[int]:
    held = SimpleNamespace(weights=[1.0] * num, **data) if not data else SimpleNamespace(**data)
    return config.build(held, num, seed).indices(epoch).tolist()


@settings(max_examples=30, derandomize=True)
@given(num=st.integers(1, 40), seed=st.integers(0, 10**6), epoch=st.integers(0, 1000))
def test_an_epoch_has_every_item_once_and_the_same_order_whenever_it_is_asked(num: int, seed: int, epoch: int) -> None:
    for config in CONFIGS:
        once = indices(config, num, seed, epoch)
        assert once == indices(config, num, seed, epoch)
        assert len(once) == num
        assert set(once) <= set(range(num))
    assert sorted(indices(CONFIGS[0], num, seed, epoch)) == list(range(num))
    assert indices(CONFIGS[1], num, seed, epoch) == list(range(num))


def test_orders_differ_between_epochs_and_seeds() -> None:
    for config in (CONFIGS[0], CONFIGS[2]):
        orders = {tuple(indices(config, 30, seed, epoch)) for seed in range(3) for epoch in range(3)}
        assert len(orders) == 9


def test_items_are_drawn_in_the_shares_of_their_weights() -> None:
    weights, num = torch.tensor([1.0, 0.0, 3.0, 4.0]), 80_000
    drawn = torch.tensor(indices(WeightedConfig(name="weighted", num_drawn=num), 4, 0, 0, weights=weights))
    shares = torch.bincount(drawn, minlength=4) / num
    assert shares[1] == 0
    expected = weights / weights.sum()
    error = (expected * (1 - expected) / num).sqrt()
    assert ((shares - expected).abs() <= 4 * error).all()


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ({"other": 1}, "^name: 'weighted' needs the attribute `weights` of the data set, which SimpleNamespace lacks$"),
        ({"weights": [1.0]}, "^name: expected 3 weights, one for each item of the data set, got 1$"),
        ({"weights": [1.0, -2.0, 1.0]}, "^name: expected weights >= 0, got -2.0 for item 1$"),
        ({"weights": [1.0, 1.0, float("nan")]}, "^name: expected weights >= 0, got nan for item 2$"),
        ({"weights": [0.0, 0.0, 0.0]}, "^name: expected a weight above 0, got none$"),
    ],
)
def test_weights_that_do_not_fit_are_told(data: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        indices(WeightedConfig(name="weighted", num_drawn=None), 3, 0, 0, **data)
