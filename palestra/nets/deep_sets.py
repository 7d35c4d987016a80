"""`deep_sets`: a permutation-invariant network (Zaheer et al. 2017, "Deep Sets"; pairs after Santoro et al. 2017).

`newton_sets`: the same for Newton polyhedra, invariant under translations.
"""

from collections.abc import Mapping
from itertools import pairwise
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from palestra.config import Config, ConfigError, PositiveInt
from palestra.games.spaces import Space
from palestra.nets.inputs import flat_size, flatten_observation
from palestra.nets.sets import PackedSets, PaddedSets, make_sets


class SetsConfig(Config):
    """The base of the configs of networks whose input is a set."""

    usual: ClassVar = {"point_widths": [64, 64], "head_widths": [128]}

    name: str
    point_widths: list[PositiveInt]
    """widths of the layers that every point goes through"""
    head_widths: list[PositiveInt]
    """widths of the layers after the points are pooled"""


class DeepSetsConfig(SetsConfig):
    name: Literal["deep_sets"]
    """each point through the same layers, then maximum and mean over the points; their order has no effect"""

    def build(self, spaces: dict[str, Space], num_outputs: int) -> "DeepSets":
        return DeepSets(self, spaces, num_outputs)


class DeepSets(nn.Module):
    """A network that sends points through shared layers, pools the present ones by maximum and mean, then has a head.

    Each point goes in together with all entries that are no sets (the host's choice, for instance). Input: an
    observation with exactly one padded entry; raises ConfigError for others. Output: float32 (B, num_outputs).
    """

    def __init__(self, config: SetsConfig, spaces: dict[str, Space], num_outputs: int) -> None:
        super().__init__()
        sets = [name for name, space in spaces.items() if space.padded]
        if len(sets) != 1:
            got = ", ".join(sets) or "none"
            message = f"expected an observation with one set of points for {config.name!r}, got {got}"
            raise ConfigError.at("name", message)
        self.spaces, self.set_name = spaces, sets[0]
        self.rest = {name: space for name, space in spaces.items() if not space.padded}
        dimension, rest = spaces[self.set_name].shape[-1], flat_size(self.rest)
        self.point_layers = _layers([dimension + rest, *config.point_widths])
        pooled = 2 * ([dimension + rest, *config.point_widths][-1])
        self.head = nn.Sequential(_layers([pooled + rest, *config.head_widths]))
        self.output = nn.Linear([pooled + rest, *config.head_widths][-1], num_outputs)

    def forward(self, observation: Mapping[str, Tensor]) -> Tensor:
        sets = make_sets(observation[self.set_name])
        x = self.coordinates(sets)
        if not self.rest:
            return self.output(self.head(sets.pool(self.point_layers(x))))
        rest = flatten_observation(observation, self.rest)
        x = torch.cat([x, sets.spread(rest)], dim=-1)
        return self.output(self.head(torch.cat([sets.pool(self.point_layers(x)), rest], dim=-1)))

    def coordinates(self, sets: PackedSets | PaddedSets) -> Tensor:
        """Return the members as the layers read them: float32, of the shape of `sets.members`, 0 in absent places."""
        return sets.members


def _layers(widths: list[int]) -> nn.Sequential:
    return nn.Sequential(*(m for a, b in pairwise(widths) for m in (nn.Linear(a, b), nn.ReLU(inplace=True))))


class NewtonSetsConfig(SetsConfig):
    name: Literal["newton_sets"]
    """deep_sets whose input is each point minus the least corner of its set, on a log scale; for boards of integers
    (rescale: false)"""

    def build(self, spaces: dict[str, Space], num_outputs: int) -> "NewtonSets":
        return NewtonSets(self, spaces, num_outputs)


class NewtonSets(DeepSets):
    """DeepSets on log(1 + x - corner), where the corner has the least coordinate of the present points on every axis.

    The polyhedra game does not change under translations: moves are linear, and only the differences of points decide
    which ones stay. So the corner carries no information, and the network need not learn to ignore it. The logarithm
    keeps small differences visible while the coordinates grow exponentially.
    """

    def coordinates(self, sets: PackedSets | PaddedSets) -> Tensor:
        corner = sets.minimum(sets.members)
        return sets.clear_absent(sets.members - sets.spread(corner)).log1p()
