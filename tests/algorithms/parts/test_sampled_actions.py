"""Heads of soft actor-critic learners: actions and densities against torch's and scipy's own.

Covers palestra.games.spaces.
"""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kstest
from torch import distributions as theirs

from palestra.algorithms.parts.action_heads import LogStdConfig
from palestra.algorithms.parts.sampled_actions import BoxHead, DiscreteHead, SampledActions
from palestra.games.spaces import Box, Discrete
from palestra.randomness import world_keys

CPU = torch.device("cpu")
BOX, DISCRETE = Box((-1.0, 0.0), (1.0, 6.0)), Discrete(4)
NO_FLAGS = torch.ones(20_000, 0, dtype=torch.bool)
KEYS = world_keys(0, 20_000, CPU)


def box_head() -> BoxHead:
    return BoxHead(BOX, LogStdConfig(min=-5.0, max=2.0), CPU)


def test_uniform_actions_fill_the_box() -> None:
    action = box_head().uniform(NO_FLAGS, KEYS)
    for column, (low, high) in zip(action.unbind(1), zip(BOX.low, BOX.high, strict=True), strict=True):
        assert kstest(column, "uniform", (low, high - low)).pvalue > 1e-4


def test_sampled_actions_are_a_squashed_normal_over_the_box() -> None:
    mean, log_std = torch.tensor([0.3, -0.5]), torch.tensor([-1.0, 0.5])
    outputs = torch.cat([mean, log_std]).expand(20_000, -1)
    action = box_head().sample(outputs, NO_FLAGS, KEYS)
    value = torch.atanh((action - torch.tensor([0.0, 3.0])) / torch.tensor([1.0, 3.0]))
    for column, m, s in zip(value.unbind(1), mean, log_std.exp(), strict=True):
        assert kstest(column, "norm", (float(m), float(s))).pvalue > 1e-4


def test_the_deterministic_action_is_that_of_the_mean() -> None:
    action = box_head().mode(torch.tensor([[0.5, 0.0, 9.0, 9.0]]), NO_FLAGS[:1])
    assert action.tolist() == [pytest.approx([math.tanh(0.5), 3.0])]


def test_an_action_that_was_drawn_has_its_density_in_half_widths() -> None:
    """Against torch's own; outputs beyond the bounds of log_std count as the bounds."""
    outputs = torch.tensor([[0.3, -1.2, 0.1, -0.4], [2.0, 0.0, 9.0, -9.0]])
    noise = torch.tensor([[0.7, -0.2], [0.1, 1.5]])
    actions = box_head().sample_actions(outputs, NO_FLAGS[:2], noise)
    log_std = torch.tensor([[0.1, -0.4], [2.0, -5.0]])
    normal = theirs.Normal(outputs[:, :2], log_std.exp())
    value = normal.loc + normal.scale * noise
    density = theirs.TransformedDistribution(normal, theirs.TanhTransform()).log_prob(torch.tanh(value))
    assert torch.allclose(actions.critic_inputs["action"], torch.tanh(value))
    assert torch.allclose(actions.log_probs, density.sum(1, keepdim=True), atol=1e-4)
    assert actions.weights.tolist() == [[1.0], [1.0]]


def test_critics_see_actions_in_half_widths() -> None:
    seen = box_head().critic_inputs(torch.tensor([[-1.0, 0.0], [1.0, 6.0], [0.5, 4.5]]))["action"]
    assert seen.tolist() == [[-1.0, -1.0], [1.0, 1.0], [0.5, 0.5]]


@given(st.lists(st.floats(-20, 20), min_size=4, max_size=4), st.lists(st.booleans(), min_size=4, max_size=4))
def test_weights_of_discrete_actions_are_the_softmax_over_legal_ones(logits: list[float], legal: list[bool]) -> None:
    flags, outputs = torch.tensor([legal]), torch.tensor([logits], requires_grad=True)
    actions = DiscreteHead(DISCRETE).sample_actions(outputs, flags, torch.zeros(1, 0))
    (gradient,) = torch.autograd.grad(actions.entropy().sum(), outputs)
    assert gradient.isfinite().all()
    if any(legal):
        expected = outputs.masked_fill(~flags, -torch.inf).softmax(1)
        assert torch.allclose(actions.weights, expected, atol=1e-6)
        assert torch.equal(actions.weights[~flags], torch.zeros(4 - sum(legal)))
        assert torch.allclose(actions.entropy(), theirs.Categorical(expected).entropy(), atol=1e-4)


def test_means_are_weighted_and_the_entropy_is_the_exact_one() -> None:
    """Probabilities 3/4 and 1/4, values 1 and 5: mean 2, entropy 0.5623 nats."""
    weights = torch.tensor([[0.75, 0.25]])
    actions = SampledActions({}, weights, weights.log())
    assert actions.mean(torch.tensor([[1.0, 5.0]])).tolist() == [2.0]
    assert actions.entropy().tolist() == pytest.approx([0.562335])


def test_values_of_the_actions_taken() -> None:
    values = torch.arange(24.0).view(2, 3, 4)
    taken = DiscreteHead(DISCRETE).values_of(torch.tensor([0, 3, 1]), values)
    assert taken.tolist() == [[0.0, 7.0, 9.0], [12.0, 19.0, 21.0]]
    assert torch.equal(box_head().values_of(torch.zeros(3, 2), values[:, :, :1]), values[:, :, 0])
