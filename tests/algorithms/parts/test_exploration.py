"""How actions are chosen by their values."""

import pytest
import torch
from scipy.stats import chi2_contingency, chisquare
from torch import Tensor

from palestra.algorithms.parts.exploration import EpsilonGreedyConfig, SoftmaxConfig, best_legal
from palestra.randomness import world_keys

CPU = torch.device("cpu")
CONSTANT = {"name": "constant", "value": 1.0}
EPSILON_GREEDY = EpsilonGreedyConfig.model_validate({"name": "epsilon_greedy", "epsilon": CONSTANT})
SOFTMAX = SoftmaxConfig.model_validate({"name": "softmax", "temperature": CONSTANT})
VALUES = [0.0, 1.0, 2.0, 3.0]


def choices(config: EpsilonGreedyConfig | SoftmaxConfig, amount: float, legal: list[int], keys: Tensor) -> Tensor:
    """What is chosen by VALUES in as many worlds as there are keys."""
    mask = torch.tensor(legal, dtype=torch.bool).expand(len(keys), -1)
    return config.choose(torch.tensor(VALUES).expand(len(keys), -1), mask, keys, amount)


def told(config: EpsilonGreedyConfig | SoftmaxConfig, amount: float) -> list[float]:
    """With which probabilities it says that it chooses among the first, the second and the fourth action."""
    found = config.probabilities(torch.tensor([VALUES]), torch.tensor([[True, True, False, True]]), amount)
    return [] if found is None else found[0].tolist()


def test_best_legal_action_is_the_first_on_ties_and_0_where_there_is_none() -> None:
    q = torch.tensor([[1.0, 3.0, 2.0], [1.0, 1.0, 1.0], [-5.0, 9.0, -5.0], [1.0, 2.0, 3.0]])
    legal = torch.tensor([[1, 1, 1], [0, 1, 1], [1, 0, 1], [0, 0, 0]], dtype=torch.bool)
    assert best_legal(q, legal).tolist() == [1, 1, 0, 0]
    assert EPSILON_GREEDY.choose(q, legal, torch.arange(4), 0.0).tolist() == [1, 1, 0, 0]


@pytest.mark.parametrize("config", [EPSILON_GREEDY, SOFTMAX])
def test_without_exploration_the_best_legal_action_is_played(config: EpsilonGreedyConfig | SoftmaxConfig) -> None:
    assert choices(config, 0.0, [1, 1, 1, 0], torch.arange(50)).tolist() == [2] * 50
    assert told(config, 0.0) in ([], [0.0, 0.0, 0.0, 1.0])


@pytest.mark.parametrize("epsilon", [0.3, 1.0])
def test_epsilon_greedy_plays_every_legal_action_with_its_probability(epsilon: float) -> None:
    counts = torch.bincount(choices(EPSILON_GREEDY, epsilon, [1, 1, 0, 1], world_keys(0, 20_000, CPU)), minlength=4)
    expected = [epsilon / 3, epsilon / 3, 1 - 2 * epsilon / 3]
    assert counts[2] == 0
    assert chisquare(counts[[0, 1, 3]], [20_000 * p for p in expected]).pvalue > 1e-4
    assert told(EPSILON_GREEDY, epsilon) == pytest.approx([*expected[:2], 0.0, expected[2]])


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_softmax_plays_every_legal_action_with_its_probability(temperature: float) -> None:
    counts = torch.bincount(choices(SOFTMAX, temperature, [1, 1, 0, 1], world_keys(0, 20_000, CPU)), minlength=4)
    expected = torch.tensor([0.0, 1.0, 3.0]).div(temperature).softmax(0).double()
    assert counts[2] == 0
    assert chisquare(counts[[0, 1, 3]], 20_000 * expected / expected.sum()).pvalue > 1e-4
    assert told(SOFTMAX, temperature) == pytest.approx([*expected[:2].tolist(), 0.0, float(expected[2])])


@pytest.mark.parametrize(("config", "amount"), [(EPSILON_GREEDY, 0.5), (SOFTMAX, 2.0)])
def test_seats_that_decide_at_once_explore_independently(
    config: EpsilonGreedyConfig | SoftmaxConfig, amount: float
) -> None:
    """Their keys differ by one."""
    keys = world_keys(0, 20_000, CPU)
    here, there = (choices(config, amount, [1, 1, 1, 1], keys + seat) for seat in (0, 1))
    table = torch.bincount(4 * here + there, minlength=16).view(4, 4)
    assert chi2_contingency(table).pvalue > 1e-4
