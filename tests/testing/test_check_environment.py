"""`check_environment`: sound environments pass, and each fault is named, with its method.

Covers palestra.testing.environments.
"""

import random
from typing import Any

import gymnasium
import numpy as np
import pytest
from conftest import PLAIN
from gymnasium import spaces

from palestra.config import ConfigError
from palestra.players.as_gymnasium import as_gymnasium
from palestra.randomness import global_states
from palestra.testing import check_environment
from tests.gym_oddities import Blink, Cockpit
from tests.gym_probes import Forgetful, Telling, Walk

NIM = {"name": "nim", "num_heaps": 3, "max_stones": 3, "observation": PLAIN}


class Turning(gymnasium.Env):
    """A walk that may go to one side at a time, by turns, and shows which."""

    observation_space = spaces.Dict({"age": spaces.Discrete(1000), "action_mask": spaces.MultiBinary(2)})
    action_space = spaces.Discrete(2)

    def seen(self) -> Any:
        return {"age": self.num, "action_mask": np.array([self.num % 2, 1 - self.num % 2], dtype=np.int8)}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.num = 0
        return self.seen(), {}

    def step(self, action: Any) -> Any:
        assert self.seen()["action_mask"][action]
        self.num += 1
        return self.seen(), 0.0, self.num == 9, False, {}


@pytest.mark.parametrize(
    "environment",
    [
        Cockpit,
        lambda: gymnasium.make("CartPole-v1"),
        gymnasium.make("Pendulum-v1"),
        lambda: as_gymnasium(NIM, role="first", others={"second": "nim_optimal"}, seed=0, illegal="replace"),
        lambda: as_gymnasium(NIM, role="first", others={"second": "nim_optimal"}, seed=0, illegal="raise"),
        Turning,
    ],
)
def test_sound_environments_pass(environment: Any) -> None:
    before = global_states()
    check_environment(environment)
    assert global_states() == before


class Coin(gymnasium.Env):
    """Three steps; a coin is seen. Sound."""

    observation_space = spaces.Box(0, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def coin(self) -> float:
        return float(self.np_random.random())

    def seen(self) -> Any:
        return np.array([self.coin(), self.age / 3], dtype=np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.age = 0
        return self.seen(), {}

    def step(self, action: Any) -> Any:
        self.age += 1
        return self.seen(), 1.0, self.age == 3, False, {}


class Unseeded(Coin):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return super().reset(seed=None)


class ByOwnChance(Coin):
    def __init__(self) -> None:
        self.draw = random.Random(str(id(self)))
        self.first = self.draw.random()

    def coin(self) -> float:
        return self.first


BROKEN: dict[str, tuple[Any, str]] = {
    "global numpy": ({"coin": lambda self: np.random.random()}, "reset: expected the same episode from the same seed"),
    "global random": ({"coin": lambda self: random.random()}, "reset: expected the same episode from the same seed"),
    "shape": (
        {"seen": lambda self: np.zeros(3, np.float32)},
        "reset: expected 'observation' to be float32 (2,), as observation_space says, got float32 (3,)",
    ),
    "dtype": (
        {"seen": lambda self: np.zeros(2, np.int64)},
        "reset: expected 'observation' to be float32 (2,), as observation_space says, got int64 (2,)",
    ),
    "nan": (
        {"seen": lambda self: np.full(2, np.nan, np.float32)},
        "reset: expected finite numbers in 'observation', got nan or inf",
    ),
    "outside": (
        {"seen": lambda self: np.array([0.5, self.age], np.float32)},
        "step: expected 'observation' inside Box(0.0, 1.0, (2,), float32), as observation_space says, got 2.0",
    ),
    "outside discrete": (
        {"observation_space": spaces.Discrete(2), "seen": lambda self: self.age},
        "step: expected 'observation' inside Discrete(2), as observation_space says, got 2",
    ),
    "no info": (
        {"reset": lambda self, seed=None, options=None: Coin.reset(self, seed=seed)[0]},
        "reset: expected a tuple of observation and info, a dict, got ndarray",
    ),
    "four": (
        {"step": lambda self, action: Coin.step(self, action)[:4]},
        "step: expected observation, reward, terminated,",
    ),
    "reward": (
        {"step": lambda self, action: (Coin.step(self, action)[0], None, True, False, {})},
        "step: expected a finite number as the reward, got None",
    ),
    "end": (
        {"step": lambda self, action: (Coin.step(self, action)[0], 0.0, 1, False, {})},
        "step: expected a bool as terminated, got int",
    ),
    "raises": (
        {"seen": lambda self: 1 / 0},
        "reset: raises ZeroDivisionError: division by zero (test_check_environment",
    ),
    "space": (
        {"observation_space": spaces.Text(4)},
        "observation_space: expected Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple as observation",
    ),
    "actions": (
        {"action_space": spaces.Text(4)},
        "action_space: expected Discrete, MultiDiscrete, MultiBinary or a Box of floats as",
    ),
    "outside at once": (
        {"seen": lambda self: np.full(2, 7.0, np.float32)},
        "reset: expected 'observation' inside Box(0.0, 1.0, (2,), float32), as observation_space says, got 7.0",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_fault_is_named_with_its_method(name: str) -> None:
    members, line = BROKEN[name]
    with pytest.raises(ConfigError) as caught:
        check_environment(type("Broken", (Coin,), members))
    assert str(caught.value).startswith(f"Broken.{line}"), str(caught.value)
    assert len(caught.value.errors) == 1, str(caught.value)


@pytest.mark.parametrize("environment", [Unseeded, Forgetful, Blink])
def test_an_environment_that_forgets_its_seed_is_found(environment: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"reset: expected the same episode from the same seed and actions in the same"
    ):
        check_environment(environment())


def test_an_environment_that_is_no_other_of_its_class_is_found() -> None:
    check_environment(ByOwnChance())
    with pytest.raises(ConfigError, match=r"ByOwnChance.reset: expected the same episode .* in a second environment"):
        check_environment(ByOwnChance)


def test_our_probes_are_sound_but_for_actions_and_bounds_that_gymnasium_dislikes() -> None:
    for probe in (Walk, Telling):
        check_environment(probe)
