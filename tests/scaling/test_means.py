"""Means over replicas: exact where they can be, the same bits in any grouping, and errors where shares do not fit."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from palestra.scaling.means import LockstepError, Share, mean_of, tree_sum

FLOATS = st.floats(-1e6, 1e6, width=32)


def share(values: list[float], weight: float | Tensor | None = None, **metrics: float) -> Share:
    return Share(torch.tensor(values), metrics, weight)


@given(values=st.lists(FLOATS, min_size=8, max_size=8))
def test_a_tree_has_the_same_bits_however_its_leaves_are_spread_over_processes(values: list[float]) -> None:
    leaves = [torch.tensor([value]) for value in values]
    for per_process in (1, 2, 4):
        parts = [tree_sum(leaves[start : start + per_process]) for start in range(0, 8, per_process)]
        assert torch.equal(tree_sum(parts), tree_sum(leaves))


@given(
    values=st.lists(FLOATS, min_size=4, max_size=4),
    weights=st.lists(st.integers(0, 50), min_size=4, max_size=4),
)
def test_a_weighted_mean_is_that_of_all_rows(values: list[float], weights: list[int]) -> None:
    shares = [share([v], torch.tensor([w - w // 2, w // 2]), loss=v) for v, w in zip(values, weights, strict=True)]
    gradient, metrics = mean_of(shares)
    expected = sum(v * w for v, w in zip(values, weights, strict=True)) / max(1, sum(weights))
    smallest = 1e-44  # a few of float32's smallest numbers, by which results round
    assert gradient.item() == pytest.approx(expected, rel=1e-4, abs=max(map(abs, values)) * 1e-6 + smallest)
    if sum(weights):
        assert metrics["loss"].item() == pytest.approx(expected, abs=1e-6 * max(1.0, *map(abs, values)))


def test_equal_replicas_have_their_own_gradient_as_mean_to_the_bit() -> None:
    gradient = torch.randn(100, generator=torch.Generator().manual_seed(1))
    for num in (2, 4, 8):
        assert torch.equal(mean_of([Share(gradient, {}, None)] * num)[0], gradient)


def test_a_replica_without_rows_changes_nothing_whatever_it_hands_in() -> None:
    nothing = Share(torch.full((2,), torch.nan), {"other": torch.nan}, 0.0)
    gradient, metrics = mean_of([nothing, share([1.0, 2.0], 3.0, loss=0.5)])
    assert gradient.tolist() == [1.0, 2.0]
    assert {name: value.item() for name, value in metrics.items()} == {"loss": 0.5}
    assert mean_of([nothing, nothing])[0].tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (share([1.0, 2.0, 3.0], loss=1.0), r"expected gradients of one shape, got \(2,\), \(3,\)"),
        (share([1.0, 2.0], entropy=1.0), "expected the same metrics, got loss; entropy"),
    ],
)
def test_shares_that_do_not_fit_together_are_an_error(other: Share, expected: str) -> None:
    with pytest.raises(LockstepError, match=expected):
        mean_of([share([1.0, 2.0], loss=1.0), other])
