from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv
from gymnasium.vector.vector_env import AutoresetMode

from palestra.games.gymnasium.environments import LeanSyncVectorEnv
from palestra.games.world import EnvironmentFailed
from tests.gym_oddities import Blink, Cockpit, Drawn
from tests.gym_probes import Walk

NUM_STEPS = 60


def assert_equal(ours: Any, theirs: Any) -> None:
    """To the bit and the type, through dicts, tuples and arrays of objects."""
    assert type(ours) is type(theirs)
    if isinstance(ours, dict):
        assert list(ours) == list(theirs)
        for name in ours:
            assert_equal(ours[name], theirs[name])
    elif isinstance(ours, tuple) or (isinstance(ours, np.ndarray) and ours.dtype == object):
        assert len(ours) == len(theirs)
        for mine, other in zip(ours, theirs, strict=True):
            assert_equal(mine, other)
    elif isinstance(ours, np.ndarray):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)
    else:
        assert ours == theirs


class Digit(Walk):
    """A Walk that is seen as one of six."""

    observation_space = gymnasium.spaces.Discrete(6)

    def seen(self) -> Any:
        return np.int64(self.age)


class Dial(Walk):
    """A Walk that is seen as a number without a shape."""

    observation_space = gymnasium.spaces.Box(0.0, 5.0, (), np.float32)

    def seen(self) -> Any:
        return np.float32(self.age)


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("make", [Walk, Blink, Cockpit, Digit, Dial, Drawn])
def test_steps_are_those_of_gymnasium(make: type[gymnasium.Env], num_envs: int, mode: AutoresetMode) -> None:
    ours, theirs = LeanSyncVectorEnv([make] * num_envs, mode), SyncVectorEnv([make] * num_envs, autoreset_mode=mode)
    assert_equal(ours.reset(seed=3)[0], theirs.reset(seed=3)[0])
    ours.action_space.seed(4)
    num_ends = 0
    for _ in range(NUM_STEPS):
        actions = ours.action_space.sample()
        outcome, *expected = ours.step(actions), *theirs.step(actions)
        assert_equal(outcome[:4], tuple(expected[:4]))
        assert ("final_obs" in outcome[4]) == ("final_obs" in expected[4])
        if "final_obs" in outcome[4]:
            assert_equal(outcome[4]["final_obs"], expected[4]["final_obs"])
        ended = outcome[2] | outcome[3]
        num_ends += int(ended.sum())
        if mode is AutoresetMode.DISABLED and ended.any():
            begun = [vector.reset(options={"reset_mask": ended})[0] for vector in (ours, theirs)]
            assert_equal(*begun)
    assert num_ends > 5


def test_what_a_step_has_given_stays_but_for_observations() -> None:
    vector = LeanSyncVectorEnv([Walk], AutoresetMode.DISABLED)
    vector.reset(seed=0)
    outcome = vector.step(np.array([5]))
    while not (outcome[2] | outcome[3]).any():
        outcome = vector.step(np.array([5]))
    given = [array.copy() for array in outcome[1:4]]
    vector.reset(options={"reset_mask": np.array([True])})
    vector.step(np.array([5]))
    assert_equal(tuple(outcome[1:4]), tuple(given))


def test_who_steps_on_after_an_end_is_told() -> None:
    vector = LeanSyncVectorEnv([Blink], AutoresetMode.DISABLED)
    vector.reset(seed=0)
    vector.step(np.array([0]))
    with pytest.raises(AssertionError, match="expected a reset of every environment whose episode has ended"):
        vector.step(np.array([0]))


class Growing(Walk):
    """A Walk that sees more after a step than its space says."""

    def seen(self) -> Any:
        return np.zeros(3 + self.age)


@pytest.mark.parametrize("num_envs", [1, 2])
def test_observations_of_another_shape_are_refused(num_envs: int) -> None:
    vector = LeanSyncVectorEnv([Growing] * num_envs, AutoresetMode.NEXT_STEP)
    vector.reset(seed=0)
    with pytest.raises(
        EnvironmentFailed, match=r"expected shape \(3,\) of the observation, as in its space, got \(4,\)"
    ):
        vector.step(np.full(num_envs, 5))
