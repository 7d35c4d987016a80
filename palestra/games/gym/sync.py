"""Environments stepped one after another in this process, as gymnasium's SyncVectorEnv does, at half its own cost."""

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector import SyncVectorEnv
from gymnasium.vector.utils import concatenate
from gymnasium.vector.vector_env import AutoresetMode


class LeanSyncVectorEnv(SyncVectorEnv):
    """Steps give what gymnasium's give, to the bit; observations are overwritten by the next step."""

    def __init__(self, env_fns: Sequence[Callable[[], gymnasium.Env]], autoreset_mode: AutoresetMode) -> None:
        super().__init__(env_fns, copy=False, autoreset_mode=autoreset_mode)
        space = self.single_observation_space
        if isinstance(space, Box) and space.shape:
            self._joined = self._observations.reshape(-1, *space.shape[1:])  # of one environment after another
        else:
            self._joined = None

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        infos: dict[str, Any] = {}
        observations: list[Any] = self._env_obs
        rewards = self._rewards
        terminated, truncated = self._terminations, self._truncations
        begins = self._autoreset_envs.tolist()
        any_ended = any(begins)
        if self.autoreset_mode is AutoresetMode.DISABLED:
            assert not any_ended, "an episode has ended, and its environment was not reset"
        begins_at_once = self.autoreset_mode is AutoresetMode.SAME_STEP
        for i, env in enumerate(self.envs):
            if begins[i] and not begins_at_once:
                observations[i], info = env.reset()
                rewards[i], terminated[i], truncated[i] = 0.0, False, False
            else:
                observations[i], rewards[i], terminated[i], truncated[i], info = env.step(actions[i])
                if terminated[i] or truncated[i]:
                    any_ended = True
                    if begins_at_once:
                        infos = self._add_info(infos, {"final_obs": observations[i], "final_info": info}, i)
                        observations[i], info = env.reset()
            if info:
                infos = self._add_info(infos, info, i)
        if self._joined is None:
            self._observations = concatenate(self.single_observation_space, observations, self._observations)
        else:
            np.concatenate(observations, out=self._joined)
        if any_ended:  # in this step, or in the one before
            self._autoreset_envs = terminated | truncated
        return self._observations, rewards.copy(), terminated.copy(), truncated.copy(), infos
