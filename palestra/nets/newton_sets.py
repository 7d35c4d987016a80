"""`newton_sets`: `deep_sets` for Newton polyhedra, which are the same wherever they lie."""

from typing import Literal

from torch import Tensor

from palestra.games.spaces import Space
from palestra.nets.deep_sets import DeepSets, SetsConfig
from palestra.nets.sets import PackedSets, PaddedSets


class NewtonSetsConfig(SetsConfig):
    name: Literal["newton_sets"]
    """deep_sets that sees points from the least corner of their set, on a log scale; for boards of plain integers
    (rescale: false)"""

    def build(self, spaces: dict[str, Space], num_outputs: int) -> "NewtonSets":
        return NewtonSets(self, spaces, num_outputs)


class NewtonSets(DeepSets):
    """DeepSets on log(1 + x - corner), the corner being the least coordinate of the present points on every axis.

    The polyhedra game does not change under translations: moves are linear, and which points stay depends on their
    differences alone. So nothing is lost with the corner, and a network need not learn that it means nothing. The
    logarithm keeps small differences in sight while the coordinates grow exponentially.
    """

    def coordinates(self, sets: PackedSets | PaddedSets) -> Tensor:
        corner = sets.minimum(sets.members)
        return sets.clear_absent(sets.members - sets.spread(corner)).log1p()
