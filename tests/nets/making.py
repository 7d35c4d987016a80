"""Networks and observations for tests."""

from math import prod
from typing import Any

import torch
from torch import nn

from palestra.config import Config, check
from palestra.games.game import Observation
from palestra.games.spaces import Space
from palestra.nets import AnyNetConfig, NetConfig, make_net
from palestra.randomness import fold, random_normals


class FeedForwardHolder(Config):
    net: NetConfig


class Holder(Config):
    net: AnyNetConfig


def build(data: dict[str, Any], spaces: dict[str, Space], num_outputs: int = 4, key: int = 1) -> nn.Module:
    return make_net(check({"net": data}, Holder).net, spaces, num_outputs, key)


def space(shape: tuple[int, ...], dtype: torch.dtype = torch.float32, padded: bool = False) -> Space:
    return Space(shape, dtype, padded)


def observe(spaces: dict[str, Space], *num: int) -> Observation:
    """Any numbers: by entry, tensors (*num, *shape)."""
    generator = torch.Generator().manual_seed(0)

    def entry(space: Space) -> torch.Tensor:
        if space.dtype == torch.uint8:
            return torch.randint(0, 256, (*num, *space.shape), dtype=torch.uint8, generator=generator)
        return (3.0 * torch.randn(*num, *space.shape, generator=generator)).to(space.dtype)

    return {name: entry(space) for name, space in spaces.items()}


def random_observations(spaces: dict[str, Space], keys: torch.Tensor) -> dict[str, torch.Tensor]:
    """Draw observations of standard normal numbers, one per key, int64 (B,), to compare two implementations."""
    return {
        name: random_normals(fold(keys, place), prod(space.shape)).view(-1, *space.shape).to(space.dtype)
        for place, (name, space) in enumerate(spaces.items())
    }
