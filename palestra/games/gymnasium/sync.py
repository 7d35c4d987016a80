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
    """Steps return the same as gymnasium's, to the bit; the next step overwrites the observations. Raises
    EnvironmentFailed if an environment raises, exits or returns an invalid value in a step."""

    def __init__(self, env_fns: Sequence[Callable[[], gymnasium.Env]], autoreset_mode: AutoresetMode) -> None:
        super().__init__(env_fns, copy=False, autoreset_mode=autoreset_mode)
        space = self.single_observation_space
        if isinstance(space, Box) and space.shape:
            self._concatenated = self._observations.reshape(-1, *space.shape[1:])  # one environment after another
            self._lengths = [space.shape[0]] * self.num_envs
        else:
            self._concatenated = None

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        infos, space = dict[str, Any](), self.single_observation_space
        observations: list[Any] = self._env_obs
        rewards = self._rewards
        terminated, truncated = self._terminations, self._truncations
        resets_now = self._autoreset_envs.tolist()
        any_ended = any(resets_now)
        if self.autoreset_mode is AutoresetMode.DISABLED:
            assert not any_ended, "expected a reset of every environment whose episode has ended"
        is_same_step = self.autoreset_mode is AutoresetMode.SAME_STEP
        if any_ended:
            terminated[:] = truncated[:] = False
        i = 0
        try:
            for i, env in enumerate(self.envs):
                if resets_now[i] and not is_same_step:
                    observations[i], info = env.reset()
                    rewards[i] = 0.0
                else:
                    outcome = env.step(actions[i])
                    if not isinstance(outcome, tuple) or len(outcome) != 5:
                        raise_for(fault_of_step(space, outcome), i)
                    observations[i], reward, is_terminated, is_truncated, info = outcome
                    # what nearly every step gives needs no closer look
                    if (
                        is_terminated is not False
                        or is_truncated is not False
                        or type(info) is not dict
                        or not isinstance(reward, float)
                    ):
                        raise_for(fault_of_results(reward, is_terminated, is_truncated, info), i)
                        terminated[i], truncated[i] = is_terminated, is_truncated
                        if is_terminated or is_truncated:
                            any_ended = True
                            if is_same_step:
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
        if self._concatenated is not None:
            try:
                if list(map(len, observations)) == self._lengths:  # their sum alone could fill the array
                    np.concatenate(observations, out=self._concatenated)
                    return
            except (TypeError, ValueError):
                pass  # the loop below finds the fault
        for world, observation in enumerate(observations):
            raise_for(fault_of_observation(self.single_observation_space, observation), world)
        self._observations = concatenate(self.single_observation_space, observations, self._observations)
