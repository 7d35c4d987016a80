"""The targets of docs/own-algorithm.md are what they say: their fixed points are known, and so is every number."""

import sys
from collections.abc import Iterator
from itertools import product
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from palestra.config import check
from palestra.games.spaces import Discrete, Space
from palestra.players.player import Player
from palestra.rollouts.transitions import Transitions
from tests.algorithms.kernels.variants import DQN_CONFIG
from tests.docs.test_examples_resume import block
from tests.gym_probes import two_states_backup

CPU = torch.device("cpu")
STATES = {"seen": torch.eye(2)}
SPACES = {"seen": Space((2,), torch.float32, padded=False)}
GAMMA = 0.9


@pytest.fixture(scope="module")
def targets() -> Iterator[Any]:
    """The module of the page."""
    module = ModuleType("targets")
    sys.modules["targets"] = module
    exec(block("own-algorithm.md", "class SoftDQN"), module.__dict__)
    yield module
    del sys.modules["targets"]


def made(cls: Any, **keys: Any) -> Any:
    """A DQN whose network is a table of states and actions."""
    config = DQN_CONFIG | {
        "name": f"targets:{cls.__name__}",
        "gamma": GAMMA,
        "net": {"name": "mlp", "net_arch": [], "activation": "relu"},
        "target": {"name": "polyak", "tau": 0.2, "interval": 1},
        "learning_rate": {"name": "linear", "initial": 0.05, "final": 0.0, "num_steps": 1500},
    }
    player = Player("player", ("agent",), SPACES, Discrete(2), CPU, seed=1, compile=False, by_hand=True)
    player.algorithm = dqn = cls(check(config | keys, cls.Config), player)
    return dqn


def two_states() -> Transitions:
    """Every action in every state of TwoStates, as in tests/gym_probes.py."""
    state, action = torch.tensor(list(product((0, 1), (0, 1)))).unbind(dim=1)
    following = torch.where(state == 0, action, 0)
    legal = torch.ones(4, 2, dtype=torch.bool)
    return Transitions(
        observation={"seen": STATES["seen"][state]},
        action=action,
        reward=torch.tensor([0.1, 0.0, 1.0, 2.0]),
        next_observation={"seen": STATES["seen"][following]},
        next_legal=legal,
        terminated=(state == 1) & (action == 1),
        truncated=torch.zeros(4, dtype=torch.bool),
        valid=torch.ones(4, dtype=torch.bool),
        extras={},
        legal=legal,
    )


def learned(dqn: Any) -> np.ndarray:
    """The Q-values after 1500 opt steps on all of these, (state, action)."""
    rows = two_states().rows()
    for _ in range(1500):
        dqn.opt_step(rows)
        dqn.player.opt_steps += 1
    with torch.no_grad():
        found: np.ndarray = dqn.online.net(STATES).numpy()
    return found


def soft_values(q: np.ndarray, temperature: float) -> np.ndarray:
    return temperature * np.log(np.exp(q / temperature).sum(axis=1))


def test_soft_q_learning_finds_the_soft_values(targets: Any) -> None:
    q = np.zeros((2, 2))
    for _ in range(500):
        q = two_states_backup(soft_values(q, 0.5), GAMMA)
    dqn = made(targets.SoftDQN, temperature=0.5)
    assert np.allclose(learned(dqn), q, atol=2e-2)
    assert dqn.gradient_kernel is None


def test_munchausen_finds_its_fixed_point(targets: Any) -> None:
    q = np.zeros((2, 2))
    for _ in range(3000):
        bonus = 0.5 * (q - soft_values(q, 0.5)[:, None])
        q = two_states_backup(soft_values(q, 0.5), GAMMA) + np.clip(0.8 * bonus / 0.5, -100.0, 0.0)
    found = learned(made(targets.MunchausenDQN, temperature=0.5, share=0.8, lowest=-100.0))
    assert np.allclose(found, q, atol=5e-2)


def test_bonuses_below_the_lowest_count_as_it(targets: Any) -> None:
    soft, dqn = (
        made(targets.SoftDQN, temperature=0.1),
        made(targets.MunchausenDQN, temperature=0.1, share=0.5, lowest=-0.2),
    )
    with torch.no_grad():
        for each in (soft, dqn):
            each.target_net.net.layers[0].weight.copy_(torch.tensor([[5.0, 0.0], [0.0, 5.0]]))
            each.target_net.net.layers[0].bias.zero_()
        batch = two_states()
        outputs = dqn.target_net.net(batch.next_observation)
        bonus = dqn.target(outputs, outputs, batch) - soft.target(outputs, outputs, batch)
    assert torch.allclose(bonus, torch.tensor([0.0, -0.1, -0.1, 0.0]), atol=1e-6)


# ---- Retrace -----------------------------------------------------------------------------------------------


def roll_out(num_rounds: int, num_worlds: int) -> Transitions:
    """Rows that follow each other, round by round; some games end."""
    generator = torch.Generator().manual_seed(0)
    num = num_rounds * num_worlds
    seen = torch.randn(num + num_worlds, 2, generator=generator)
    kind = torch.randint(6, (num,), generator=generator)
    flags = torch.rand(num + num_worlds, 2, generator=generator) < 0.8
    flags[:, 0] = True
    return Transitions(
        observation={"seen": seen[:num]},
        action=torch.randint(2, (num,), generator=generator),
        reward=torch.randn(num, generator=generator),
        next_observation={"seen": seen[num_worlds:]},
        next_legal=flags[num_worlds:],
        terminated=kind == 0,
        truncated=kind == 1,
        valid=torch.rand(num, generator=generator) < 0.9,
        extras={"probability": 0.1 + 0.9 * torch.rand(num, generator=generator)},
        legal=flags[:num],
    )


def plain_retrace(dqn: Any, rows: Transitions, first: int, num_worlds: int, trace: float) -> float:
    """Of one row, step by step (Munos et al. 2016, eq. 4)."""

    def q(seen: Tensor) -> list[float]:
        with torch.no_grad():
            values: list[float] = dqn.target_net.net({"seen": seen[None]})[0].tolist()
        return values

    own = q(rows.observation["seen"][first])[int(rows.action[first])]
    total, weight = own, 1.0
    for row in range(first, len(rows.valid), num_worlds):
        values = q(rows.observation["seen"][row])
        legal = [action for action in (0, 1) if rows.legal[row, action]]
        action = int(rows.action[row])
        if row > first:
            if (
                not rows.valid[row - num_worlds]
                or rows.terminated[row - num_worlds]
                or rows.truncated[row - num_worlds]
            ):
                break
            is_best = action == max(legal, key=lambda each: values[each])
            weight *= GAMMA * trace * min(1.0, is_best / float(rows.extras["probability"][row]))
        following = q(rows.next_observation["seen"][row])
        next_value = max(following[each] for each in (0, 1) if rows.next_legal[row, each])
        td_error = float(rows.reward[row]) + GAMMA * next_value * (not rows.terminated[row]) - values[action]
        total += weight * td_error
    return total


@pytest.mark.parametrize("trace", [0.0, 0.7, 1.0])
def test_retrace_is_the_sum_that_the_paper_says(targets: Any, trace: float) -> None:
    dqn, rows = made(targets.RetraceDQN, trace=trace), roll_out(num_rounds=5, num_worlds=3)
    builder = targets.Segments(targets.Segments.Config(name="targets:Segments"), GAMMA, 5, ("agent",), CPU)
    batch = builder(rows)
    with torch.no_grad():
        outputs = dqn.target_net.net(batch.next_observation)
        found = dqn.target(outputs, outputs, batch)
    for row in rows.valid.nonzero().flatten().tolist():
        assert float(found[row]) == pytest.approx(plain_retrace(dqn, rows, row, 3, trace), abs=1e-5)
    assert torch.equal(batch.valid, rows.valid)


def test_probabilities_are_those_of_the_choices(targets: Any) -> None:
    dqn = made(targets.RetraceDQN, trace=1.0)
    num = 4000
    seen, legal = {"seen": torch.ones(num, 2)}, torch.tensor([[True, True]]).expand(num, 2)
    decision = dqn.policy(explore=True).act(seen, legal, torch.arange(num) * 7919, {})
    for action in (0, 1):
        chosen = decision.action == action
        (probability,) = decision.extras["probability"][chosen].unique().tolist()
        assert float(chosen.float().mean()) == pytest.approx(probability, abs=0.03)
