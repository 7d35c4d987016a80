"""Sets packed and padded: the same numbers and the same gradients. Covers nets/kernels/sets.py, too.

Covers palestra.nets.kernels.sets.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from palestra.nets.sets import PackedSets, PaddedSets, make_sets

N, DIMENSION = 6, 3


@st.composite
def padded_points(draw: Any) -> Tensor:
    """float64 (B, N, n): sets of 0 to N members in any places; of some the members are equal, or lie at the origin."""
    B, seed = draw(st.integers(1, 9)), draw(st.integers(0, 2**31))
    generator = torch.Generator().manual_seed(seed)
    points = torch.randint(0, draw(st.sampled_from([1, 2, 50])), (B, N, DIMENSION), generator=generator).double()
    share = draw(st.sampled_from([0.0, 0.2, 0.5, 1.0]))
    absent = torch.rand(B, N, generator=generator) >= share
    if draw(st.booleans()):  # single members
        absent = torch.arange(N).expand(B, N) != torch.randint(0, N, (B, 1), generator=generator)
    points[absent] = torch.tensor([5.0, -1.0, 7.0], dtype=torch.float64)
    return points


def is_present(points: Tensor) -> Tensor:
    return (points >= 0).all(-1)


def features_of(sets: PackedSets | PaddedSets, weights: Tensor) -> Tensor:
    """Numbers of both signs, of which some are equal."""
    return (sets.members @ weights).relu() - 1.0


WEIGHTS = torch.tensor([[1.0, -2.0], [0.5, 1.0], [0.0, -1.0]], dtype=torch.float64)

COMPUTATIONS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "pool": lambda sets, weights: sets.pool(features_of(sets, weights)),
    "minimum": lambda sets, weights: sets.minimum(sets.members),
    "from the corner": lambda sets, weights: sets.pool(
        sets.clear_absent(sets.members - sets.spread(sets.minimum(sets.members))).log1p() @ weights
    ),
    "spread": lambda sets, weights: sets.pool(
        torch.cat([sets.members, sets.spread(weights.sum() * sets.pool(sets.members))], dim=-1)
    ),
}


@pytest.mark.parametrize("computation", COMPUTATIONS)
@settings(max_examples=60)
@given(points=padded_points())
def test_packed_and_padded_sets_give_the_same_numbers_and_gradients(computation: str, points: Tensor) -> None:
    found = []
    for layout in (PackedSets, PaddedSets):
        leaves = points.clone().requires_grad_(), WEIGHTS.clone().requires_grad_()
        outputs = COMPUTATIONS[computation](layout(leaves[0]), leaves[1])
        slopes = torch.linspace(-1.0, 2.0, outputs.numel(), dtype=torch.float64).view_as(outputs)
        gradients = torch.autograd.grad((outputs * slopes).sum(), leaves, materialize_grads=True)
        found.append((outputs, *gradients))
    for packed, padded in zip(*found, strict=True):
        assert torch.allclose(packed, padded, rtol=1e-12, atol=1e-12)


@settings(max_examples=60)
@given(points=padded_points())
def test_a_packed_set_has_its_present_rows_in_their_order(points: Tensor) -> None:
    sets, present = PackedSets(points), is_present(points)
    assert torch.equal(sets.members, points[present])
    assert torch.equal(sets.spread(torch.arange(len(points)).unsqueeze(1))[:, 0], present.nonzero()[:, 0])
    assert torch.equal(sets.starts.diff(), present.sum(1))


@settings(max_examples=60)
@given(points=padded_points())
def test_pooling_is_the_maximum_and_the_mean_of_each_set(points: Tensor) -> None:
    sets, present = PackedSets(points), is_present(points)
    pooled = sets.pool(features_of(sets, WEIGHTS))
    for row, members in zip(pooled, (board[here] for board, here in zip(points, present, strict=True)), strict=True):
        features = (members @ WEIGHTS).relu() - 1.0
        expected = torch.cat([features.amax(0), features.mean(0)]) if len(features) else torch.zeros(4)
        assert torch.allclose(row, expected.double(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("layout", [PackedSets, PaddedSets])
def test_gradients_of_pooling_are_those_of_finite_differences(layout: type[PackedSets | PaddedSets]) -> None:
    generator = torch.Generator().manual_seed(0)
    points = torch.rand(5, N, DIMENSION, generator=generator, dtype=torch.float64)
    points[torch.arange(N) >= torch.tensor([1, 2, N, 3, 0]).unsqueeze(1)] = -1.0
    sets = layout(points)
    features = torch.randn(*sets.members.shape[:-1], 4, generator=generator, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(sets.pool, features)


def test_members_that_share_the_maximum_share_its_derivative() -> None:
    points = torch.tensor([[[2.0], [1.0], [2.0], [-1.0]]])
    features = torch.tensor([[2.0], [1.0], [2.0]], requires_grad=True)
    PackedSets(points).pool(features)[0, 0].backward()
    assert features.grad is not None
    assert features.grad[:, 0].tolist() == [0.5, 0.0, 0.5]


def test_a_feature_that_is_no_number_reaches_the_outputs() -> None:
    sets = PackedSets(torch.rand(2, N, DIMENSION))
    features = torch.rand(2 * N, 3)
    features[3, 1] = torch.nan
    pooled = sets.pool(features)
    assert pooled[0, 4].isnan()
    assert pooled[1].isfinite().all()


def test_equal_batches_give_equal_bits() -> None:
    points = torch.rand(200, N, DIMENSION)
    points[torch.rand(200, N) < 0.6] = -1.0

    def gradient() -> Tensor:
        sets = PackedSets(points)
        features = (sets.members @ WEIGHTS.float()).requires_grad_()
        return torch.autograd.grad(sets.pool(features).square().sum(), features)[0]

    first = gradient()
    assert all(torch.equal(first, gradient()) for _ in range(5))


def test_sets_are_packed_on_a_cpu_and_padded_in_graphs() -> None:
    points = torch.rand(2, N, DIMENSION)
    assert isinstance(make_sets(points), PackedSets)
    assert isinstance(make_sets(points.to("meta")), PaddedSets)
    kinds = []

    @torch.compile(backend="eager")
    def compute(points: Tensor) -> Tensor:
        sets = make_sets(points)
        kinds.append(type(sets).__name__)
        return sets.pool(sets.members)

    assert torch.allclose(compute(points), PackedSets(points).pool(points.flatten(0, 1)))
    assert kinds[0] == "PaddedSets"


def test_second_derivatives_of_pooling_are_an_error() -> None:
    """Not silently wrong: they are not written."""
    features = torch.randn(2 * N, 3, requires_grad=True)
    pooled = PackedSets(torch.rand(2, N, DIMENSION)).pool(features)
    with pytest.raises(RuntimeError, match="numpy"):
        torch.autograd.grad(pooled.square().sum(), features, create_graph=True)
