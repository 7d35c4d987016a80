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
from palestra.games.gymnasium.memory import own_copy, share_memory
from palestra.games.info import FieldReader, GatheredInfos, GathersInfo


class LeanSyncVectorEnv(GathersInfo, SyncVectorEnv):
    """Steps environments one after another, with checks, at half the cost of gymnasium's class.

    Steps return the same as gymnasium's, to the bit, but for infos, which are GatheredInfos; the next step overwrites
    the observations. Raises EnvironmentFailed if an environment raises, exits or returns an invalid value in a step.

    The environments may share memory, as one array of their class that each writes its observation to. The first step
    finds that out; from then on such observations are copied at once.
    """

    def __init__(self, env_fns: Sequence[Callable[[], gymnasium.Env]], autoreset_mode: AutoresetMode) -> None:
        super().__init__(env_fns, copy=False, autoreset_mode=autoreset_mode)
        space = self.single_observation_space
        if isinstance(space, Box) and space.shape:
            self._concatenated = self._observations.reshape(-1, *space.shape[1:])  # one environment after another
            self._lengths = [space.shape[0]] * self.num_envs
        else:
            self._concatenated = None
        self._read_fields: FieldReader | None = None
        self._copies: bool | None = None  # whether observations are copied at once; None: the first step decides

    def read_info(self, names: Sequence[str]) -> None:
        """From now on, let the infos of steps have these fields."""
        self._read_fields = FieldReader(names)

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        space, read_fields, copies = self.single_observation_space, self._read_fields, self._copies is not False
        infos: Any = {} if read_fields is None else GatheredInfos()
        given: list[Any] = []  # what is copied at once
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
                    observations[i], _ = env.reset()
                    rewards[i] = 0.0
                else:
                    outcome = env.step(actions[i])
                    if not isinstance(outcome, tuple) or len(outcome) != 5:
                        raise_for(fault_of_step(space, outcome), i)
                    observations[i], reward, is_terminated, is_truncated, info = outcome
                    if copies:
                        given.append(observations[i])
                        observations[i] = own_copy(observations[i])
                    # what nearly every step gives needs no closer look
                    if (
                        is_terminated is not False
                        or is_truncated is not False
                        or type(info) is not dict
                        or not isinstance(reward, float)
                    ):
                        raise_for(fault_of_results(reward, is_terminated, is_truncated, info), i)
                        terminated[i], truncated[i] = is_terminated, is_truncated
                        any_ended = any_ended or bool(terminated[i] or truncated[i])
                    rewards[i] = reward
                    if read_fields is not None:
                        infos.fields[i] = read_fields(info)
                    if is_same_step and (is_terminated or is_truncated):
                        raise_for(fault_of_observation(space, observations[i]), i)
                        infos = self._add_info(infos, {"final_obs": own_copy(observations[i])}, i)
                        observations[i], _ = env.reset()
        except (EnvironmentFailed, KeyboardInterrupt):
            raise
        except BaseException as error:  # an environment may call sys.exit, or raise what is no Exception
            raise EnvironmentFailed(failure(error), i) from error
        if self._copies is None:
            self._copies = share_memory(given)
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
