"""MALT: a player learns from trees of dialogues which of two answers leads further (Motwani et al. 2024).

Each round is continued several times. The value of an answer is the mean of what its player got in all dialogues that
go on from it. Of the answers to one prompt, one that is worth at least the middle of the role's rewards and one that is
worth less make a pair, from which the player learns by a preference (as in Hammond & Adam-Day 2025).
"""

from collections import defaultdict
from itertools import product
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field
from torch import Tensor

from palestra.config import PositiveInt
from palestra.games.dialogue.protocol import VERDICTS
from palestra.randomness import random_floats
from palestra.text.algorithms.algorithm import Example, JobConfig, Seat, TextAlgorithm
from palestra.text.rollouts import DecisionRow, Rollouts


class MaltConfig(JobConfig):
    usual: ClassVar[dict[str, Any]] = {
        **JobConfig.usual,
        "num_continuations": 2,
        "most_answers": 1000,
        "loss": "preference",
    }

    losses = ("preference",)

    name: Literal["malt"]
    """of two answers to a prompt, the one that led further becomes more probable"""
    num_continuations: Annotated[int, Field(ge=2)]
    """in how many ways each round goes on in which a model answers; the same for all players that learn so"""
    most_answers: PositiveInt
    """a run whose trees might have more answers, each, is refused"""

    def build(self, seat: Seat) -> "Malt":
        return Malt(self, seat)


class Malt(TextAlgorithm):
    """The examples are pairs of answers of the player, at most one for each place in a tree where it answers."""

    def examples(self, rollouts: Rollouts, keys: Tensor) -> list[Example]:
        places: dict[tuple[Any, ...], list[DecisionRow]] = defaultdict(list)
        for row in rollouts.of(self.seat.player):
            places[row.epoch, row.question, row.rollout, row.parent, row.role].append(row)
        middles = {role: self.middle(role) for role in self.seat.protocol.roles}
        found = []
        for rows, drawn in zip(places.values(), random_floats(keys, len(places))[0].tolist(), strict=True):
            if pairs := pairs_of(rows, middles[rows[0].role]):
                better, worse = pairs[int(drawn * len(pairs))]
                found.append(Example(better, 1.0, worse=worse))
        return found

    def middle(self, role: str) -> float:
        """Return the middle between the least and the most that a role can get at the end of a dialogue."""
        protocol = self.seat.protocol
        verdicts = product(VERDICTS, repeat=len(protocol.verifiers))
        ends = product([dict(zip(protocol.verifiers, each, strict=True)) for each in verdicts], (0, 1))
        rewards = [
            protocol.reward(role, by_verifier, label, variant)
            for by_verifier, label in ends
            for variant in range(protocol.num_variants)
        ]
        return (min(rewards) + max(rewards)) / 2


def pairs_of(rows: list[DecisionRow], middle: float) -> list[tuple[DecisionRow, DecisionRow]]:
    """Return all pairs of a better and a worse answer among the continuations of a place, in order.

    The better one has a value of `middle` or more, the worse one less. Both answer the same prompt, and differ: an
    answer that was asked for again has read more than its siblings.
    """
    return [
        (better, worse)
        for better in rows
        for worse in rows
        if better.reward >= middle > worse.reward
        and better.prompt == worse.prompt
        and (better.answer, better.answer_ids) != (worse.answer, worse.answer_ids)
    ]
