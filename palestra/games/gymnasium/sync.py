"""Environments stepped one after another in this process, as gymnasium's SyncVectorEnv does, at half its own cost."""

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector import SyncVectorEnv
from gymnasium.vector.utils import concatenate
from gymnasium.vector.vector_env import AutoresetMode

from palestra.config import failure
from palestra.games.gymnasium.faults import (
    EnvironmentFailed,
    fault_of_observation,
    fault_of_results,
    fault_of_step,
    raise_for,
)


class LeanSyncVectorEnv(SyncVectorEnv):
    """Steps give what gymnasium's give, to the bit; observations are overwritten by the next step. Raises
    EnvironmentFailed for an environment that raises or exits in a step, and for a step that gives something wrong."""

    def __init__(self, env_fns: Sequence[Callable[[], gymnasium.Env]], autoreset_mode: AutoresetMode) -> None:
        super().__init__(env_fns, copy=False, autoreset_mode=autoreset_mode)
        space = self.single_observation_space
        if isinstance(space, Box) and space.shape:
            self._joined = self._observations.reshape(-1, *space.shape[1:])  # of one environment after another
            self._lengths = [space.shape[0]] * self.num_envs
        else:
            self._joined = None

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        infos, space = dict[str, Any](), self.single_observation_space
        observations: list[Any] = self._env_obs
        rewards = self._rewards
        terminated, truncated = self._terminations, self._truncations
        begins = self._autoreset_envs.tolist()
        any_ended = any(begins)
        if self.autoreset_mode is AutoresetMode.DISABLED:
            assert not any_ended, "an episode has ended, and its environment was not reset"
        begins_at_once = self.autoreset_mode is AutoresetMode.SAME_STEP
        if any_ended:
            terminated[:] = truncated[:] = False
        i = 0
        try:
            for i, env in enumerate(self.envs):
                if begins[i] and not begins_at_once:
                    observations[i], info = env.reset()
                    rewards[i] = 0.0
                else:
                    outcome = env.step(actions[i])
                    if not isinstance(outcome, tuple) or len(outcome) != 5:
                        raise_for(fault_of_step(space, outcome), i)
                    observations[i], reward, over, cut, info = outcome
                    # what nearly every step gives needs no closer look
                    if over is not False or cut is not False or type(info) is not dict or not isinstance(reward, float):
                        raise_for(fault_of_results(reward, over, cut, info), i)
                        terminated[i], truncated[i] = over, cut
                        if over or cut:
                            any_ended = True
                            if begins_at_once:
                                raise_for(fault_of_observation(space, observations[i]), i)
                                infos = self._add_info(infos, {"final_obs": observations[i], "final_info": info}, i)
                                observations[i], info = env.reset()
                    rewards[i] = reward
                if info:
                    infos = self._add_info(infos, info, i)
        except (EnvironmentFailed, KeyboardInterrupt):
            raise
        except BaseException as error:  # an environment may call sys.exit, or raise what is no Exception
            raise EnvironmentFailed(failure(error), i) from error
        self._join(observations)
        if any_ended:  # in this step, or in the one before
            self._autoreset_envs = terminated | truncated
        return self._observations, rewards.copy(), terminated.copy(), truncated.copy(), infos

    def _join(self, observations: list[Any]) -> None:
        """Write the observations of all environments to `_observations`."""
        if self._joined is not None:
            try:
                if list(map(len, observations)) == self._lengths:  # to fill the array together is not enough
                    np.concatenate(observations, out=self._joined)
                    return
            except (TypeError, ValueError):
                pass  # it is told below
        for world, observation in enumerate(observations):
            raise_for(fault_of_observation(self.single_observation_space, observation), world)
        self._observations = concatenate(self.single_observation_space, observations, self._observations)
