"""What records say of the dialogues of an epoch."""

from collections import defaultdict
from collections.abc import Sequence
from itertools import chain
from statistics import fmean
from typing import Any

from palestra.games.dialogue.protocol import Protocol
from palestra.runtime.scores import Estimate
from palestra.runtime.statistics import Share
from palestra.text.rollouts import DecisionRow, Rollouts
from palestra.text.scores import found_scores


def dialogue_statistics(rollouts: Rollouts, protocol: Protocol) -> dict[str, float]:
    """Return statistics by name.

    return/ROLE/worst: the mean return on the question on which it is lowest. length: rounds of a dialogue.
    """
    found: dict[str, Any] = dict(found_scores(rollouts, protocol, None))
    for role in protocol.roles:
        by_question: dict[tuple[int, int], list[float]] = defaultdict(list)
        for rows in rollouts.dialogues():
            by_question[rows[0].epoch, rows[0].question].append(_return(rows, role))
        returns = list(chain.from_iterable(by_question.values()))
        found[f"return/{role}"] = fmean(returns) if returns else None
        found[f"return/{role}/worst"] = min(map(fmean, by_question.values()), default=None)
    lengths = [rows[-1].round + 1 for rows in rollouts.dialogues()]
    found["length"] = fmean(lengths) if lengths else None
    values = {name: _value(each) for name, each in found.items()}
    return {name: value for name, value in values.items() if value is not None}


def returns_of(rollouts: Rollouts, role: str) -> list[float]:
    """Return what a role got in each dialogue, also in those in which it was silent."""
    return [_return(rows, role) for rows in rollouts.dialogues()]


def _return(rows: Sequence[DecisionRow], role: str) -> float:
    return next(row.returns for row in reversed(rows) if row.returns is not None)[role]


def _value(score: Share | Estimate | float | None) -> float | None:
    match score:
        case Share():
            return score.estimate().value
        case Estimate():
            return score.value
    return score
