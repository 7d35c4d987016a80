"""Keeps apart the memory of an environment and of those who call it.

An environment may write into what it gave, and into its actions, whenever it is called again.
"""

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

import gymnasium
import numpy as np
from numpy.lib.array_utils import byte_bounds


def own_copy(value: Any) -> Any:
    """Copy an observation or an action into memory of its own."""
    return value.copy() if isinstance(value, np.ndarray) else deepcopy(value)


def share_memory(observations: Sequence[Any]) -> bool:
    """Tell whether two of several environments gave arrays in the same memory."""
    spans = [
        (*byte_bounds(array), index) for index, each in enumerate(observations) for array in _arrays(each) if array.size
    ]
    furthest, owner = 0, -1
    for start, end, index in sorted(spans):
        if start < furthest and index != owner:
            return True
        if end > furthest:
            furthest, owner = end, index
    return False


def _arrays(observation: Any) -> Iterator[np.ndarray]:
    if isinstance(observation, np.ndarray):
        yield observation
    elif isinstance(observation, Mapping | tuple | list):
        for inner in observation.values() if isinstance(observation, Mapping) else observation:
            yield from _arrays(inner)


class OwnMemory(gymnasium.Wrapper):
    """Stands between an environment and a wrapper of gymnasium that keeps observations or plays an action again."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return _with_own_observation(self.env.reset(seed=seed, options=options))

    def step(self, action: Any) -> Any:
        return _with_own_observation(self.env.step(own_copy(action)))


def _with_own_observation(result: Any) -> Any:
    """Copy the observation in the result of a reset or a step; what is no such result stays as it is."""
    return (own_copy(result[0]), *result[1:]) if isinstance(result, tuple) and result else result
