"""Messages for the faults of environments: values from reset and step that Gymnasium's API does not allow."""

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np

from palestra.config.errors import cut, listed
from palestra.games.world import EnvironmentFailed


def raise_for(fault: str | None, world: int | None = None) -> None:
    """Raise EnvironmentFailed if there is a fault."""
    if fault is not None:
        raise EnvironmentFailed(fault, world)


def fault_of_reset(space: gymnasium.Space, result: Any) -> str | None:
    """Say what is wrong with the result of `reset`, or return None. space: of the observations."""
    if not isinstance(result, tuple) or len(result) != 2:
        return f"expected a tuple (observation, info) from reset, got {described(result)}"
    observation, info = result
    return _fault_of_info(info) or fault_of_observation(space, observation)


def fault_of_step(space: gymnasium.Space, result: Any) -> str | None:
    """Say what is wrong with the result of `step`, or return None. space: of the observations."""
    if not isinstance(result, tuple) or len(result) != 5:
        return f"expected a tuple (observation, reward, terminated, truncated, info) from step, got {described(result)}"
    observation, *results = result
    return fault_of_results(*results) or fault_of_observation(space, observation)


def fault_of_results(reward: Any, terminated: Any, truncated: Any, info: Any) -> str | None:
    """Say what is wrong with the result of a step besides its observation, or return None."""
    if not isinstance(reward, float) and not _is_number(reward, "biuf"):
        return f"expected a number as the reward, got {described(reward)}"
    for name, flag in (("terminated", terminated), ("truncated", truncated)):
        if type(flag) is not bool and not (_is_number(flag, "biu") and flag in (0, 1)):
            return f"expected True or False as {name}, got {described(flag)}"
    return _fault_of_info(info)


def fault_of_observation(space: gymnasium.Space, value: Any, name: str = "the observation") -> str | None:
    """Say how an observation differs from its space: in entries, shape, dtype, or choices out of range; or return None.

    Numbers beyond a Box's bounds are allowed, and so is every dtype of the same kind (float64 for float32).
    """
    match space:
        case gymnasium.spaces.Dict():
            if not isinstance(value, Mapping) or not space.keys() <= value.keys():
                return f"expected a dict with the entries {listed(space)} as {name}, got {described(value)}"
            inner = [(space[key], value[key], f"{name}[{key!r}]") for key in space]
            return next(filter(None, (fault_of_observation(*each) for each in inner)), None)
        case gymnasium.spaces.Tuple():
            if not isinstance(value, tuple | list) or len(value) != len(space):
                return f"expected a tuple of {len(space)} as {name}, got {described(value)}"
            inner = [(space[index], value[index], f"{name}[{index}]") for index in range(len(space))]
            return next(filter(None, (fault_of_observation(*each) for each in inner)), None)
    try:
        array = np.asarray(value)
    except ValueError:  # lists that differ in length
        return f"expected an array of shape {space.shape} as {name}, got {described(value)}"
    if array.shape != space.shape:
        return f"expected shape {space.shape} of {name}, as in its space, got {array.shape}"
    if space.dtype is not None and not np.can_cast(array.dtype, space.dtype, "same_kind"):
        return f"expected dtype {space.dtype} of {name}, as in its space, got {array.dtype}"
    if isinstance(space, gymnasium.spaces.Discrete | gymnasium.spaces.MultiDiscrete):
        num = space.n if isinstance(space, gymnasium.spaces.Discrete) else space.nvec
        if not ((array >= space.start) & (array < space.start + num)).all():
            return f"expected a value of {space} as {name}, got {described(value)}"
    return None


def fault_of_numbers(values: np.ndarray, name: str, may_be_infinite: bool) -> tuple[int, str] | None:
    """Find the first world with nan or, unless numbers may be infinite, an infinity; say what is wrong there.

    None if there is no such world. values: floating-point numbers (B, ...).
    """
    is_wrong = np.isnan(values) if may_be_infinite else ~np.isfinite(values)
    if not is_wrong.any():
        return None
    world, *place = np.argwhere(is_wrong)[0].tolist()
    return world, f"expected a finite number as {name}{place or ''}, got {values[world, *place]}"


def _fault_of_info(info: Any) -> str | None:
    return None if isinstance(info, dict) else f"expected a dict as info, got {described(info)}"


def _is_number(value: Any, kinds: str) -> bool:
    """Tell whether a value is one number, or an array without an axis; kinds: those of numpy's dtypes."""
    try:
        array = np.asarray(value)
    except ValueError:  # lists that differ in length
        return False
    return array.shape == () and array.dtype.kind in kinds


def described(value: Any) -> str:
    """Write a value as text for a message; if that is long, its kind and size."""
    if isinstance(value, np.ndarray) and value.size > 1:
        return f"an array of shape {value.shape} and dtype {value.dtype}"
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    if isinstance(value, Mapping):
        return f"a dict with the entries {listed(value)}"
    return cut(" ".join(repr(value).split()))
