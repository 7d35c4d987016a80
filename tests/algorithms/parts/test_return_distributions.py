"""The mathematics of DQN's heads, against plain loops over numbers and against definitions."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from palestra.algorithms.parts.return_distributions import (
    CategoricalConfig,
    ImplicitQuantileConfig,
    ImplicitQuantileNet,
    QuantileConfig,
    dueling_outputs,
    middles,
    of_action,
    projected,
    quantile_losses,
)
from palestra.config import ConfigError, check
from palestra.randomness import fold

CPU = torch.device("cpu")
C51 = CategoricalConfig(name="c51", num_atoms=5, low=-1.0, high=3.0)
QUANTILE = QuantileConfig(name="quantile", num_quantiles=4, huber_delta=1.0)
IMPLICIT = ImplicitQuantileConfig(
    name="implicit_quantile",
    num_quantiles=3,
    num_target_quantiles=2,
    num_acting_quantiles=4,
    num_cosines=6,
    embedding_dim=7,
    huber_delta=0.5,
)


# ---- c51 -----------------------------------------------------------------------------------------------------


def plainly_projected(probabilities: list[float], values: list[float], low: float, high: float) -> list[float]:
    """Algorithm 1 of Bellemare et al. 2017, atom by atom."""
    gap = (high - low) / (len(probabilities) - 1)
    result = [0.0] * len(probabilities)
    for probability, value in zip(probabilities, values, strict=True):
        place = (min(max(value, low), high) - low) / gap
        below, above = math.floor(place), math.ceil(place)
        if below == above:
            result[below] += probability
        else:
            result[below] += probability * (above - place)
            result[above] += probability * (place - below)
    return result


@settings(max_examples=200)
@given(
    num=st.integers(2, 9),
    low=st.integers(-6, 3),
    width=st.integers(1, 12),
    rewards=st.lists(st.floats(-10, 10, width=32), min_size=1, max_size=4),
    discount=st.sampled_from([0.0, 0.5, 0.9, 1.0]),
    seed=st.integers(0, 99),
)
def test_a_projection_is_that_of_the_paper(
    num: int, low: int, width: int, rewards: list[float], discount: float, seed: int
) -> None:
    config = CategoricalConfig(name="c51", num_atoms=num, low=float(low), high=float(low + width))
    told = 2.0 * torch.randn(len(rewards), num, generator=torch.Generator().manual_seed(seed))
    found = config.target(told, torch.tensor(rewards), torch.full((len(rewards),), discount))
    atoms = np.linspace(low, low + width, num)
    for row, reward in enumerate(rewards):
        probabilities = told[row].double().softmax(0).tolist()
        expected = plainly_projected(probabilities, list(reward + discount * atoms), low, low + width)
        assert found[row].tolist() == pytest.approx(expected, abs=1e-5)


def test_a_projection_keeps_the_mean_of_what_lies_between_the_atoms() -> None:
    probabilities, values = torch.tensor([[0.25, 0.75]]), torch.tensor([[0.3, 2.6]])
    found = projected(probabilities, values, torch.tensor([0.0, 2.0, 4.0]))
    assert float(found.sum()) == pytest.approx(1.0)
    assert float(found @ torch.tensor([0.0, 2.0, 4.0])) == pytest.approx(0.25 * 0.3 + 0.75 * 2.6)
    outside = projected(probabilities, torch.tensor([[-9.0, 9.0]]), torch.tensor([0.0, 2.0, 4.0]))
    assert outside.tolist() == [[0.25, 0.0, 0.75]]


def test_the_loss_of_c51_has_the_gradient_of_the_cross_entropy_and_is_0_at_the_target() -> None:
    told = torch.randn(6, 5, generator=torch.Generator().manual_seed(0)).requires_grad_()
    target = torch.tensor([[0.0, 0.5, 0.5, 0.0, 0.0]]).expand(6, -1)
    losses, td_error = C51.losses(told, target, {}), C51.td_error(told.detach(), target)
    found = torch.autograd.grad(losses.sum(), told)[0]
    expected = torch.autograd.grad(-(target * told.log_softmax(1)).sum(), told)[0]
    assert torch.allclose(found, expected, atol=1e-6)
    assert torch.allclose(td_error, C51.q_values(told).detach() - 0.5, atol=1e-6)
    at_target = target.clamp(min=1e-30).log()
    assert torch.allclose(C51.losses(at_target, target, {}), torch.zeros(6), atol=1e-6)
    assert torch.allclose(C51.td_error(at_target, target), torch.zeros(6), atol=1e-6)


def test_the_mean_of_c51_is_that_of_its_atoms() -> None:
    assert C51.atoms(CPU).tolist() == [-1.0, 0.0, 1.0, 2.0, 3.0]
    told = torch.tensor([0.1, 0.2, 0.3, 0.0, 0.4]).log().expand(2, 3, -1)
    assert torch.allclose(C51.q_values(told), torch.full((2, 3), 1.4))


def test_atoms_the_wrong_way_round_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"low: 3\.0 is not below high, 3\.0"):
        check({"name": "c51", "num_atoms": 5, "low": 3.0, "high": 3.0}, CategoricalConfig)
    with pytest.raises(ConfigError, match="num_atoms: expected an integer >= 2, got 1"):
        check({"name": "c51", "num_atoms": 1, "low": 0.0, "high": 3.0}, CategoricalConfig)


# ---- quantiles -------------------------------------------------------------------------------------------------


def plain_quantile_loss(predicted: list[float], fractions: list[float], target: list[float], delta: float) -> float:
    total = 0.0
    for value, fraction in zip(predicted, fractions, strict=True):
        for goal in target:
            error = goal - value
            huber = error**2 / 2 if abs(error) <= delta else delta * (abs(error) - delta / 2)
            total += abs(fraction - (error < 0)) * huber / delta / len(target)
    return total


@settings(max_examples=100)
@given(
    num=st.integers(1, 5),
    num_targets=st.integers(1, 4),
    delta=st.sampled_from([0.3, 1.0, 5.0]),
    seed=st.integers(0, 99),
)
def test_the_quantile_loss_is_that_of_a_plain_double_sum(num: int, num_targets: int, delta: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    predicted = torch.randn(3, num, generator=generator)
    target, fractions = torch.randn(3, num_targets, generator=generator), torch.rand(3, num, generator=generator)
    losses = quantile_losses(predicted, fractions, target, delta)
    for row in range(3):
        told = [values[row].tolist() for values in (predicted, fractions, target)]
        assert float(losses[row]) == pytest.approx(plain_quantile_loss(*told, delta), rel=1e-4, abs=1e-6)
    assert torch.allclose(QUANTILE.td_error(predicted, target), predicted.mean(1) - target.mean(1), atol=1e-6)
    even = quantile_losses(predicted, middles(num, CPU), target, delta)
    assert torch.equal(even, quantile_losses(predicted, middles(num, CPU).expand(3, -1), target, delta))


def test_descending_the_quantile_loss_finds_the_quantiles() -> None:
    """Of 0, 1, ..., 9: those at 0.125, 0.375, 0.625, 0.875 lie at 1, 3, 6, 8."""
    told, target = torch.zeros(1, 4, requires_grad=True), torch.arange(10.0).unsqueeze(0)
    config = QUANTILE.model_copy(update={"huber_delta": 0.01})
    for step in range(1500):
        (slope,) = torch.autograd.grad(config.losses(told, target, {}).sum(), told)
        with torch.no_grad():
            told -= (0.5 if step < 700 else 0.02) * slope
    assert told.tolist() == [pytest.approx([1.0, 3.0, 6.0, 8.0], abs=0.05)]


@pytest.mark.parametrize(("huber_delta", "mean"), [(1.0, 0.72), (0.1, 0.80), (0.01, 0.81)])
def test_the_mean_of_quantiles_is_biased_where_huber_delta_is_not_small_beside_the_spread(
    huber_delta: float, mean: float
) -> None:
    """Of a return that is 0 once in five times and else 1: its mean is 0.8. docs/dqn.md has these figures."""
    config = QuantileConfig(name="quantile", num_quantiles=32, huber_delta=huber_delta)
    told, target = torch.zeros(1, 32, requires_grad=True), torch.tensor([[0.0, 1.0, 1.0, 1.0, 1.0]])
    for step in range(1500):
        (slope,) = torch.autograd.grad(config.losses(told, target, {}).sum(), told)
        with torch.no_grad():
            told -= (0.5 if step < 700 else 0.02) * slope
    assert config.q_values(told).item() == pytest.approx(mean, abs=0.005)


def test_targets_of_quantiles_are_moved_and_shrunk() -> None:
    told, reward, discount = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([1.0, -1.0]), torch.tensor([0.5, 0.0])
    assert QUANTILE.target(told, reward, discount).tolist() == [[1.5, 2.0], [-1.0, -1.0]]
    assert QUANTILE.q_values(told).tolist() == [1.5, 3.5]


# ---- implicit quantiles ------------------------------------------------------------------------------------------


class Body(nn.Module):
    """An observation's own numbers; refuses to see anything beside them."""

    def forward(self, observation: dict[str, Tensor]) -> Tensor:
        (seen,) = observation.values()
        return seen


def test_the_implicit_net_is_that_of_the_paper() -> None:
    """relu(sum of weights * cos(pi i fraction) + bias), times what was seen, through a last layer."""
    net = ImplicitQuantileNet(IMPLICIT, Body(), 2)
    seen, fractions = torch.randn(4, 7), torch.rand(4, 3)
    found = net({"seen": seen, "fractions": fractions})
    assert found.shape == (4, 2, 3)
    weights: Any = {name: value.detach().double().numpy() for name, value in net.named_parameters()}
    for row in range(4):
        for place in range(3):
            cosines = np.cos(math.pi * np.arange(6) * float(fractions[row, place]))
            embedded = np.maximum(weights["embedding.weight"] @ cosines + weights["embedding.bias"], 0.0)
            product = np.maximum(seen[row].numpy(), 0.0) * embedded
            expected = weights["output.weight"] @ product + weights["output.bias"]
            assert found[row, :, place].tolist() == pytest.approx(expected.tolist(), abs=1e-5)


def test_who_asks_for_no_fractions_is_told_of_even_ones() -> None:
    net, seen = ImplicitQuantileNet(IMPLICIT, Body(), 2), torch.randn(4, 7)
    even = torch.tensor([0.125, 0.375, 0.625, 0.875])
    assert torch.equal(middles(4, CPU), even)
    assert torch.allclose(net({"seen": seen}), net({"seen": seen, "fractions": even.expand(4, -1)}), atol=1e-6)


def test_fractions_are_drawn_evenly_and_anew_for_every_key() -> None:
    keys = fold(torch.tensor([7]), 0), fold(torch.tensor([7]), 1)
    first, again, other = (IMPLICIT.draw(key, 4000) for key in (keys[0], keys[0], keys[1]))
    assert {name: value.shape for name, value in first.items()} == {
        "fractions": (4000, 3),
        "target_fractions": (4000, 2),
    }
    for name, value in first.items():
        assert torch.equal(value, again[name])
        assert not torch.equal(value, other[name])
        assert ((value > 0.0) & (value < 1.0)).all()
        assert value.histc(10, 0.0, 1.0).div(value.numel()).tolist() == pytest.approx([0.1] * 10, abs=0.02)


# ---- all ---------------------------------------------------------------------------------------------------------


def test_dueling_streams_are_joined_by_the_mean_of_the_advantages() -> None:
    """Advantages 1, 2, 6 with mean 3; the state's value 10."""
    streams = torch.tensor([[1.0, 2.0, 6.0, 10.0]]).unsqueeze(2).expand(2, 4, 5)
    assert dueling_outputs(streams)[0, :, 0].tolist() == [8.0, 9.0, 13.0]
    assert dueling_outputs(streams).shape == (2, 3, 5)


def test_what_is_told_of_an_action_is_found_in_both_shapes() -> None:
    told, action = torch.arange(24.0).view(2, 3, 4), torch.tensor([2, 0])
    assert of_action(told, action).tolist() == [[8.0, 9.0, 10.0, 11.0], [12.0, 13.0, 14.0, 15.0]]
    assert of_action(told[:, :, 0], action).tolist() == [8.0, 12.0]
