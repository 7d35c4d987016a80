"""The result of games that were played on demand, as an object."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from palestra.runtime.statistics import Estimate


@dataclass(frozen=True)
class PlayedGames:
    """The result of the games of one pairing. Intervals are 95% intervals.

    players: role -> player. num_games: without those that were over at their start. num_finished: ended by the rules;
    the others were cut off. rho: games finished / rounds played. returns: the mean return of each role. won: in games
    of two roles, the share of games in which the role's return was the higher one; equal returns count half. lengths:
    of the games in rounds: mean, std, min, max, median, iqm, iqm_low, iqm_high. return_statistics: the same of the
    returns, by role. record: everything as an evaluation's record has it (docs/evaluation.md).
    """

    players: Mapping[str, str]
    num_games: int
    num_finished: int
    rho: Estimate
    returns: Mapping[str, Estimate]
    won: Mapping[str, float]
    lengths: Mapping[str, float]
    return_statistics: Mapping[str, Mapping[str, float]]
    record: Mapping[str, Any] = field(repr=False)

    @classmethod
    def from_record(cls, pair: Mapping[str, Any]) -> Self:
        """The result in one of the `pairs` of an evaluation's record, as `Evaluations.play` gives it."""
        return cls(
            players=pair["players"],
            num_games=pair["games"],
            num_finished=pair["finished"],
            rho=Estimate(pair["rho"], pair["low"], pair["high"]),
            returns={role: Estimate(mean, *pair["return_intervals"][role]) for role, mean in pair["returns"].items()},
            won=pair["won"],
            lengths=pair["statistics"]["episode_length"],
            return_statistics=pair["statistics"]["episode_return"],
            record=pair,
        )
