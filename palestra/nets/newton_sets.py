"""`newton_sets`: `deep_sets` for Newton polyhedra, invariant under translations."""

from typing import Literal

from torch import Tensor

from palestra.games.spaces import Space
from palestra.nets.deep_sets import DeepSets, SetsConfig
from palestra.nets.sets import PackedSets, PaddedSets


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
