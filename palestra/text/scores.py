"""The scores of dialogues in words: those of any dialogue, and how long answers are and how often they fail."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import chain
from statistics import fmean
from typing import Any

import torch

from palestra.games.dialogue.protocol import Protocol
from palestra.games.dialogue.scores import declared_scores, verdict_scores
from palestra.runtime.scores import DeclaredScore, Estimate
from palestra.runtime.statistics import Share, clusters_of, estimate_mean
from palestra.text.rollouts import DecisionRow, Rollouts, verdicts_of

Found = dict[str, Share | Estimate | float | None]
OF_ANSWERS = (
    ("tokens", "mean number of tokens of an answer of {}", "tokens"),
    ("retries", "mean number of answers of {} that were asked for again, in a turn", "answers"),
    ("cut_off", "share of the answers of {} that the limit of tokens has ended", "share"),
)


def text_scores(protocol: Protocol) -> tuple[DeclaredScore, ...]:
    """Declare the scores of dialogues by a protocol: those of tensor dialogues, and some of each role's answers."""
    of_answers = (
        DeclaredScore(f"{name}/{role}", meaning.format(role), unit, (), (), shown=False)
        for role in protocol.roles
        for name, meaning, unit in OF_ANSWERS
    )
    return (*declared_scores(protocol, []), *of_answers)


def found_scores(rollouts: Rollouts, protocol: Protocol, same: Sequence[int] | None) -> Found:
    """Find the scores of dialogues, but for their returns. What nobody has done, such as answering, is not known.

    same: by the number of a question in the roll-outs, that of a cluster (palestra.runtime.statistics);
    None: intervals do not matter.
    """

    def clusters(rows: Iterable[DecisionRow]) -> torch.Tensor | None:
        return None if same is None else clusters_of(same[row.question] for row in rows)

    dialogues, verifier = list(rollouts.dialogues()), protocol.verifiers[0]
    verdicts = [verdicts_of(rows).get(verifier) for rows in dialogues]
    numbers = torch.tensor([-1 if verdict is None else verdict for verdict in verdicts], dtype=torch.int64)
    labels = torch.tensor([rows[0].label for rows in dialogues], dtype=torch.int64)
    found: Found = {**verdict_scores(numbers, labels, clusters(rows[0] for rows in dialogues))}
    for role in protocol.roles:
        rows = [row for row in rollouts.rows if row.role == role and row.stop != "scripted"]
        found[f"tokens/{role}"] = _mean([len(row.answer_ids) for row in rows], clusters(rows))
        found[f"retries/{role}"] = _mean([row.attempts - 1 for row in rows], clusters(rows))
        is_cut = torch.tensor([row.stop == "length" for row in rows], dtype=torch.bool)
        found[f"cut_off/{role}"] = Share.of(is_cut, clusters(rows)) if rows else None
    return found


def _mean(numbers: list[int], clusters: torch.Tensor | None) -> Estimate | None:
    return estimate_mean(torch.tensor(numbers, dtype=torch.float64), clusters) if numbers else None


# ---- what records say of the dialogues of an epoch ------------------------------------------------------


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
    return {name: value for name, each in found.items() if (value := _value(each)) is not None}


def returns_of(rollouts: Rollouts, role: str) -> list[float]:
    """Return what a role got in each dialogue, also in those in which it was silent."""
    return [_return(rows, role) for rows in rollouts.dialogues()]


def _return(rows: Sequence[DecisionRow], role: str) -> float:
    return next(row.returns for row in reversed(rows) if row.returns is not None)[role]


def _value(score: Share | Estimate | float | None) -> float | None:
    estimate = score.estimate() if isinstance(score, Share) else score
    return estimate.value if isinstance(estimate, Estimate) else estimate
