"""Supervised tuning on answers that somebody knows: right verdicts, or what a scripted player would have answered.

The latter are those of the situations into which the player's own answers have led (Ross et al. 2011).
"""

from typing import Any, ClassVar, Literal

from torch import Tensor

from palestra.text.algorithms.algorithm import Example, JobConfig, Seat, TextAlgorithm
from palestra.text.rollouts import Rollouts
from palestra.text.scripts import ScriptName, own_names


class SupervisedConfig(JobConfig):
    usual: ClassVar[dict[str, Any]] = {**JobConfig.usual, "scripted": "honest"}

    losses = ("supervised",)

    name: Literal["supervised"]
    """a player learns right verdicts, or what a scripted player would have answered in its place"""
    scripted: ScriptName | None
    """the scripted player; null: a verifier learns the right verdict wherever it may decide, and a prover nothing"""

    def user_names(self) -> list[str]:
        return own_names(self.scripted)

    def build(self, seat: Seat) -> "Supervised":
        return Supervised(self, seat)


class Supervised(TextAlgorithm):
    """The examples are all decisions of the player, or those that it could make as a verifier, answered rightly."""

    def __init__(self, config: SupervisedConfig, seat: Seat) -> None:
        super().__init__(config, seat)
        self.teacher = config.scripted

    def examples(self, rollouts: Rollouts, keys: Tensor) -> list[Example]:
        protocol, words = self.seat.protocol, self.seat.verdict_words
        rows = rollouts.of(self.seat.player)
        if self.teacher is not None:
            return [Example(row, 1.0, row.taught) for row in rows]
        return [
            Example(row, 1.0, words[row.label])
            for row in rows
            if row.role in protocol.verifiers and protocol.may_decide(row.role, row.round, row.variant)
        ]
