"""The conversions of observations and actions in operations that torch.export traces.

They do what palestra.games.gymnasium.spaces and the normalisation of observations do. Letters: B worlds.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

from palestra.games.gymnasium.config import EnvironmentConfig
from palestra.games.gymnasium.normalization import Moments
from palestra.games.gymnasium.spaces import Entry, ObservationReader
from palestra.games.outside import Outside, OutsideEntry
from palestra.games.spaces import ActionSpace

Convert = Callable[[Tensor], Tensor]
KINDS = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64")  # that programs take


def outside_of(
    config: EnvironmentConfig,
    reader: ObservationReader,
    moments: Mapping[str, Moments],
    space: ActionSpace,
    to_gym_actions: Callable[[np.ndarray], np.ndarray],
    device: torch.device,
) -> Outside:
    """Describe what an environment's player observes and does, for programs that act without palestra.

    moments: of the entries that are normalised. space: of our actions, which `to_gym_actions` converts.
    """
    leaves = {entry.name: _leaf(reader.gym_space, entry) for entry in reader.entries}
    entries = {
        entry.name: OutsideEntry(leaves[entry.name].shape or (), _dtype(leaves[entry.name]), entry.path)
        for entry in reader.entries
    }
    converts = {entry.name: _converter(leaves[entry.name], entry, device) for entry in reader.entries}
    numbers = {entry.name for entry in reader.entries if entry.is_number}
    normalize, clip = config.observation.normalize, config.observation.clip
    scales = {
        name: tuple(
            torch.tensor(each, device=device) for each in (found.center(), np.sqrt(found.variance + normalize.eps))
        )
        for name, found in moments.items()
        if normalize is not None
    }

    def read(observation: dict[str, Tensor]) -> dict[str, Tensor]:
        found = {}
        for name, value in observation.items():
            if name in scales:
                mean, deviation = scales[name]
                value = (value.to(torch.float64).reshape(-1, *mean.shape) - mean) / deviation
            value = converts[name](value)
            found[name] = value.clamp(-clip, clip) if clip is not None and name in numbers else value
        return found

    setting = {
        "id": config.id,
        "arguments": dict(config.arguments),
        "wrappers": [wrapper.model_dump(mode="json") for wrapper in config.wrappers],
        "action_mask": config.action_mask,
    }
    return Outside(entries, read, *_actions(space, to_gym_actions, device), setting)


def _leaf(space: Any, entry: Entry) -> gymnasium.Space:
    for key in entry.path:
        space = space[key]
    return space


def _dtype(leaf: gymnasium.Space) -> torch.dtype:
    """Return the type of an entry in a program: its own if it is one of KINDS, else int64."""
    name = np.dtype(leaf.dtype).name
    return getattr(torch, name if name in KINDS else "int64")


def _converter(leaf: gymnasium.Space, entry: Entry, device: torch.device) -> Convert:
    """Make a function that does for tensors what `entry.read` does."""
    match leaf:
        case gymnasium.spaces.Discrete():
            return _one_hots(np.array([leaf.n]), np.array([leaf.start]), device)
        case gymnasium.spaces.MultiDiscrete():
            return _one_hots(leaf.nvec.flatten(), leaf.start.flatten(), device)
    shape = entry.space.shape
    if entry.space.dtype != torch.uint8:
        return lambda value: value.to(torch.float32).reshape(-1, *shape)
    places = np.arange(int(np.prod(leaf.shape or ()))).reshape(1, *(leaf.shape or ()))
    order = torch.from_numpy(entry.read(places).flatten()).to(device)  # where each pixel comes from
    return lambda value: value.flatten(1)[:, order].reshape(-1, *shape)


def _one_hots(nums: np.ndarray, starts: np.ndarray, device: torch.device) -> Convert:
    """Make a function that gives the one-hots of all choices in a row, by comparing each with all of its values."""
    values = np.concatenate([np.arange(num) + start for num, start in zip(nums, starts, strict=True)])
    owners = torch.from_numpy(np.repeat(np.arange(len(nums)), nums)).to(device)
    wanted = torch.from_numpy(values).to(device)
    return lambda value: (value.to(torch.int64).reshape(-1, len(nums))[:, owners] == wanted).to(torch.float32)


def _actions(
    space: ActionSpace, to_gym_actions: Callable[[np.ndarray], np.ndarray], device: torch.device
) -> tuple[Convert, Convert]:
    """Make functions that convert our actions to Gymnasium's, and back.

    The conversion gives another shape and type and adds what choices start from, which those of zeros tell.
    """
    zeros = np.asarray(to_gym_actions(torch.zeros(1, *space.shape, dtype=space.dtype).numpy()))
    starts = torch.from_numpy(zeros[0].astype(zeros.dtype)).to(device) if zeros[0].ndim else int(zeros[0])
    act = partial(_to_gym, starts=starts, shape=zeros.shape[1:], dtype=getattr(torch, zeros.dtype.name))
    return act, lambda actions: (actions - starts).reshape(-1, *space.shape).to(space.dtype)


def _to_gym(actions: Tensor, starts: Any, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return (actions.reshape(-1, *shape) + starts).to(dtype)
