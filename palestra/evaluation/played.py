"""The result of games that were played on demand, as an object."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from palestra.runtime.scores import Estimate


@dataclass(frozen=True)
class PlayedGames:
    """The result of the games of one pairing. Intervals are 95% intervals.

    players: role -> player. num_games: without those that were over at their start. num_finished: ended by the rules;
    the others were cut off. scores: those that the game declares, as "return/ROLE", the mean return of a role; nan
    where one is not known. won: in games of two roles, the share of contests that each has won; a contest is a game,
    won by the higher return (equal returns count half), or what the game says. lengths: of the games in rounds: mean,
    std, min, max, median, iqm, iqm_low, iqm_high. return_statistics: the same of the returns, by role. record:
    everything as an evaluation's record has it (docs/evaluation.md).
    """

    players: Mapping[str, str]
    num_games: int
    num_finished: int
    scores: Mapping[str, Estimate]
    won: Mapping[str, float]
    lengths: Mapping[str, float]
    return_statistics: Mapping[str, Mapping[str, float]]
    record: Mapping[str, Any] = field(repr=False)

    @classmethod
    def from_record(cls, pair: Mapping[str, Any]) -> Self:
        """Read the result in one of the `pairs` of an evaluation's record, as `Evaluations.play` gives it."""
        intervals = pair["intervals"]
        return cls(
            players=pair["players"],
            num_games=pair["games"],
            num_finished=pair["finished"],
            scores={name: Estimate.of(value, *intervals.get(name, ())) for name, value in pair["scores"].items()},
            won=pair["won"],
            lengths=pair["statistics"]["episode_length"],
            return_statistics=pair["statistics"]["episode_return"],
            record=pair,
        )
