"""The policy gradient: what a player has answered becomes more likely, the better its reward was than expected.

REINFORCE with a baseline (Williams 1992); with the rewards of a question normalised, GRPO (Shao et al. 2024).
"""

from collections import defaultdict
from typing import ClassVar, Literal

import torch
from torch import Tensor

from palestra.text.algorithms.algorithm import Example, JobConfig, Seat, TextAlgorithm
from palestra.text.rollouts import DecisionRow, Rollouts

EPSILON = 1e-4  # added to a standard deviation, as by Shao et al.'s implementation


class PolicyGradientConfig(JobConfig):
    usual: ClassVar = {**JobConfig.usual, "advantage": "question", "loss": "policy_gradient"}

    losses = ("policy_gradient",)

    name: Literal["policy_gradient"]
    """answers become more likely, the better their dialogues went than others"""
    advantage: Literal["batch", "question", "normalized"]
    """what a reward is compared with. batch: the mean of all dialogues of the epoch; question: the mean of the other
    dialogues on the same question; normalized: the mean of all dialogues on the same question, in their standard
    deviations"""

    def build(self, seat: Seat) -> "PolicyGradient":
        return PolicyGradient(self, seat)


class PolicyGradient(TextAlgorithm):
    """The examples are all answers of the player, with an advantage, which is the same for all in a dialogue."""

    def examples(self, rollouts: Rollouts, keys: Tensor) -> list[Example]:
        groups: dict[tuple[int, ...], dict[tuple[int, int], list[DecisionRow]]] = defaultdict(lambda: defaultdict(list))
        for row in rollouts.of(self.seat.player):
            role = self.seat.protocol.roles.index(row.role)
            group = (role,) if self.config.advantage == "batch" else (role, row.question)
            groups[group][row.question, row.rollout].append(row)
        found: dict[int, float] = {}
        for dialogues in groups.values():
            rewards = torch.tensor([rows[0].reward for rows in dialogues.values()], dtype=torch.float64)
            for rows, advantage in zip(dialogues.values(), self._advantages(rewards).tolist(), strict=True):
                found |= {id(row): advantage for row in rows}
        return [Example(row, found[id(row)]) for row in rollouts.of(self.seat.player)]

    def _advantages(self, rewards: Tensor) -> Tensor:
        """Return the advantages of the dialogues of a group: float64 (N,)."""
        num, difference = len(rewards), rewards - rewards.mean()
        match self.config.advantage:
            case "batch":
                return difference
            case "question":  # the mean of the others, which the dialogue itself does not move
                return difference * num / (num - 1) if num > 1 else torch.zeros_like(rewards)
            case _:
                return difference / (rewards.std(correction=1) + EPSILON) if num > 1 else torch.zeros_like(rewards)
