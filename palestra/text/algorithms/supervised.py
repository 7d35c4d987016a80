"""Supervised tuning on right verdicts: what a verifier should have decided wherever it could decide."""

from typing import Any, ClassVar, Literal

from torch import Tensor

from palestra.text.algorithms.algorithm import Example, JobConfig, Seat, TextAlgorithm
from palestra.text.rollouts import Rollouts


class SupervisedConfig(JobConfig):
    usual: ClassVar[dict[str, Any]] = {**JobConfig.usual}

    name: Literal["supervised"]
    """a verifier learns the right verdict, wherever it may decide"""

    def build(self, seat: Seat) -> "Supervised":
        return Supervised(self, seat)


class Supervised(TextAlgorithm):
    """The examples are the decisions that the player could make as a verifier, with the label as the answer."""

    def examples(self, rollouts: Rollouts, keys: Tensor) -> list[Example]:
        protocol, words = self.seat.protocol, self.seat.verdict_words
        return [
            Example(row, 1.0, words[row.label])
            for row in rollouts.of(self.seat.player)
            if row.role in protocol.verifiers and protocol.may_decide(row.role, row.round, row.variant)
        ]
