"""The input of a network: a dict observation becomes one vector.

Rows of a padded entry that have a negative number are absent. Their numbers never reach a network: they are replaced by
zeros, and a flag per row says which are present.
"""

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from palestra.games.spaces import Space
from palestra.runtime.compiling import njit

Array = np.ndarray[Any, Any]


def flatten_observation(observation: Mapping[str, Tensor], spaces: dict[str, Space]) -> Tensor:
    """Join the entries of an observation in the order of `spaces`: float32 (B, flat_size(spaces)).

    Pixels are scaled to [0, 1]. The flags of a padded entry follow it.
    """
    parts: list[Tensor] = []
    for name, space in spaces.items():
        value = observation[name].to(torch.float32)
        if space.padded:
            present = presence(value)
            parts += [(value * present.unsqueeze(-1)).flatten(1), present]
        else:
            value = value / 255.0 if space.is_image else value
            parts.append(value.unsqueeze(-1).flatten(1))  # a bare number is a vector of one
    return torch.cat(parts, dim=1)


def flatten_on_cpu(observation: Mapping[str, Tensor], spaces: dict[str, Space]) -> Array:
    """Compute `flatten_observation` for kernels on a CPU. Do not write to the result: it may be the observation."""
    if len(spaces) == 1:
        ((name, space),) = spaces.items()
        if not space.padded and observation[name].dtype == torch.float32:
            rows = np.ascontiguousarray(observation[name].numpy())
            return rows if rows.ndim == 2 else rows.reshape(len(rows), prod(space.shape))
    num = len(next(iter(observation.values())))
    flat, start = np.empty((num, flat_size(spaces)), dtype=np.float32), 0
    for name, space in spaces.items():
        value, size = observation[name].numpy(), prod(space.shape)
        if space.padded:
            _flatten_padded(value.reshape(num, space.shape[0], prod(space.shape[1:])), flat[:, start:])
            start += size + space.shape[0]
        else:
            flat[:, start : start + size] = value.reshape(num, size)
            if space.is_image:
                flat[:, start : start + size] /= 255.0
            start += size
    return flat


@njit()
def _flatten_padded(rows: Array, flat: Array) -> None:
    """Write rows (B, N, n), absent ones as zeros, and their flags to flat (B, at least N * n + N)."""
    B, N, n = rows.shape
    for world in range(B):
        for i in range(N):
            present = True
            for k in range(n):
                present &= rows[world, i, k] >= 0
            for k in range(n):
                flat[world, i * n + k] = rows[world, i, k] if present else 0.0
            flat[world, N * n + i] = present


def flat_size(spaces: dict[str, Space]) -> int:
    """Return the length of `flatten_observation`'s vectors."""
    return sum(prod(space.shape) + (space.shape[0] if space.padded else 0) for space in spaces.values())


def zeros_of(spaces: Mapping[str, Space], *num: int, device: torch.device | None = None) -> dict[str, Tensor]:
    """Make an observation of zeros: (*num, ...) by entry."""
    return {name: torch.zeros(*num, *space.shape, dtype=space.dtype, device=device) for name, space in spaces.items()}


def presence(points: Tensor) -> Tensor:
    """Return 1.0 for present rows and 0.0 for absent ones: float32 (B, N) of (B, N, n)."""
    return (points.amin(-1) >= 0).to(torch.float32)
