"""What an environment does wrong, told in one line: it raises, it exits, or it gives what Gymnasium does not allow."""

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np

from palestra.config.errors import listed
from palestra.games.world import EnvironmentFailed


def raise_for(fault: str | None, world: int | None = None) -> None:
    """Raise EnvironmentFailed if there is a fault."""
    if fault is not None:
        raise EnvironmentFailed(fault, world)


def fault_of_reset(space: gymnasium.Space, given: Any) -> str | None:
    """What is wrong with what `reset` gave, if anything. space: of the observations."""
    if not isinstance(given, tuple) or len(given) != 2:
        return f"reset gave {_told(given)}; expected a tuple (observation, info)"
    observation, info = given
    return _fault_of_info(info) or fault_of_observation(space, observation)


def fault_of_step(space: gymnasium.Space, given: Any) -> str | None:
    """What is wrong with what `step` gave, if anything. space: of the observations."""
    if not isinstance(given, tuple) or len(given) != 5:
        return f"step gave {_told(given)}; expected a tuple (observation, reward, terminated, truncated, info)"
    observation, *results = given
    return fault_of_results(*results) or fault_of_observation(space, observation)


def fault_of_results(reward: Any, terminated: Any, truncated: Any, info: Any) -> str | None:
    """What is wrong with what a step gives beside the observation, if anything."""
    if not isinstance(reward, float) and not _is_number(reward, "biuf"):
        return f"the reward is {_told(reward)}; expected a number"
    for name, flag in (("terminated", terminated), ("truncated", truncated)):
        if type(flag) is not bool and not (_is_number(flag, "biu") and flag in (0, 1)):
            return f"{name} is {_told(flag)}; expected True or False"
    return _fault_of_info(info)


def fault_of_observation(space: gymnasium.Space, value: Any, name: str = "the observation") -> str | None:
    """What in an observation is not as its space says, if anything: entries, shape, dtype, and which choices there are.
    Numbers beyond a Box's bounds are let through, and so is every dtype of the same kind, as float64 for float32."""
    match space:
        case gymnasium.spaces.Dict():
            if not isinstance(value, Mapping) or not space.keys() <= value.keys():
                return f"{name} is {_told(value)}; expected a dict with the entries {listed(space)}"
            inner = [(space[key], value[key], f"{name}[{key!r}]") for key in space]
            return next(filter(None, (fault_of_observation(*each) for each in inner)), None)
        case gymnasium.spaces.Tuple():
            if not isinstance(value, tuple | list) or len(value) != len(space):
                return f"{name} is {_told(value)}; expected a tuple of {len(space)}"
            inner = [(space[index], value[index], f"{name}[{index}]") for index in range(len(space))]
            return next(filter(None, (fault_of_observation(*each) for each in inner)), None)
    try:
        array = np.asarray(value)
    except ValueError:  # lists that differ in length
        return f"{name} is {_told(value)}; expected an array of shape {space.shape}"
    if array.shape != space.shape:
        return f"{name} has shape {array.shape}; expected {space.shape}, as its space says"
    if space.dtype is not None and not np.can_cast(array.dtype, space.dtype, "same_kind"):
        return f"{name} has dtype {array.dtype}; expected {space.dtype}, as its space says"
    if isinstance(space, gymnasium.spaces.Discrete | gymnasium.spaces.MultiDiscrete):
        num = space.n if isinstance(space, gymnasium.spaces.Discrete) else space.nvec
        if not ((array >= space.start) & (array < space.start + num)).all():
            return f"{name} is {_told(value)}; expected one of {space}"
    return None


def _fault_of_info(info: Any) -> str | None:
    return None if isinstance(info, dict) else f"info is {_told(info)}; expected a dict"


def _is_number(value: Any, kinds: str) -> bool:
    """Whether it is a number or an array that holds a single one without an axis; kinds: those of numpy's dtypes."""
    try:
        array = np.asarray(value)
    except ValueError:  # lists that differ in length
        return False
    return array.shape == () and array.dtype.kind in kinds


def _told(value: Any) -> str:
    """A value, for a message: what it is, and how large, where it does not fit into a few words."""
    if isinstance(value, np.ndarray) and value.size > 1:
        return f"an array of shape {value.shape} and dtype {value.dtype}"
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    if isinstance(value, Mapping):
        return f"a dict with the entries {listed(value)}"
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:77]}..."
