"""How games ended, from which a game finds its scores."""

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor


class GameEnds(NamedTuple):
    """How n games of a pairing ended, without those that were over at their start.

    finished: bool (n,), ended by the rules; the others were cut off. lengths: int64 (n,), rounds played. returns:
    float32 (n,) by role. outcomes: the `outcome_entries` of the game, as they were at the end, (n, ...).
    clusters: which games have equal starts (palestra.runtime.statistics), for intervals; None: no two have.
    """

    finished: Tensor
    lengths: Tensor
    returns: Mapping[str, Tensor]
    outcomes: Mapping[str, Tensor]
    clusters: Tensor | None


def wins_by_return(returns: Mapping[str, Tensor]) -> dict[str, float]:
    """Count the games that each of two roles has won by the higher return; equal returns count half for each.

    Empty in games of more or fewer roles.
    """
    if len(returns) != 2:
        return {}
    (first, one), (second, other) = returns.items()
    wins = float(((one > other).double() + 0.5 * (one == other).double()).sum())
    return {first: wins, second: len(one) - wins}
