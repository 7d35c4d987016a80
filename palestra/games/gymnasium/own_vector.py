"""An environment's own vector environment, whose failures are reported in the same words as those of others."""

from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space

from palestra.config import failure
from palestra.games.gymnasium.faults import described, fault_of_observation, raise_for
from palestra.games.world import EnvironmentFailed


class CheckedVector(VectorWrapper):
    """Raises EnvironmentFailed if the vector environment raises, exits or returns an invalid value; names no world."""

    def __init__(self, env: VectorEnv) -> None:
        super().__init__(env)
        self.batch = batch_space(env.single_observation_space, env.num_envs)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        result = self._ask("reset", seed=seed, options=options)
        if not isinstance(result, tuple) or len(result) != 2:
            raise EnvironmentFailed(
                f"expected a tuple (observations, infos) from reset of the vector environment, got {described(result)}"
            )
        observations, infos = result
        raise_for(fault_of_observation(self.batch, observations, "the batch of observations"))
        return observations, _dict(infos)

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        result = self._ask("step", actions)
        if not isinstance(result, tuple) or len(result) != 5:
            raise EnvironmentFailed(
                "expected a tuple (observations, rewards, terminated, truncated, infos) from step, "
                f"got {described(result)}"
            )
        observations, rewards, terminated, truncated, infos = result
        raise_for(fault_of_observation(self.batch, observations, "the batch of observations"))
        return (
            observations,
            self._column("rewards", rewards, "biuf"),
            self._column("terminated", terminated, "b"),
            self._column("truncated", truncated, "b"),
            _dict(infos),
        )

    def _ask(self, method: str, *args: Any, **kwargs: Any) -> Any:
        try:
            return getattr(self.env, method)(*args, **kwargs)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # an environment may call sys.exit, or raise what is no Exception
            raise EnvironmentFailed(failure(error)) from error

    def _column(self, name: str, values: Any, kinds: str) -> np.ndarray:
        """Copy values to an array with one for every world, (B,). kinds: the allowed kinds of numpy's dtypes."""
        try:
            array = np.array(values)  # its own may be written into by the next step
        except ValueError:  # lists that differ in length
            array = np.empty(0, dtype=object)
        if array.shape != (self.num_envs,) or array.dtype.kind not in kinds:
            expected = "numbers" if "f" in kinds else "bools"
            raise EnvironmentFailed(
                f"expected {self.num_envs} {expected} as {name}, got shape {array.shape} and dtype {array.dtype}"
            )
        return array


def _dict(infos: Any) -> dict[str, Any]:
    if not isinstance(infos, dict):
        raise EnvironmentFailed(f"expected a dict as infos, got a {type(infos).__name__}")
    return infos
