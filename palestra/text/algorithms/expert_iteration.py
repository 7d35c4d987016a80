"""Expert iteration: a player learns from those of its own answers that went well (Anthony et al. 2017).

With a minimal reward this is rejection sampling, or STaR (Zelikman et al. 2022).
"""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from palestra.config import ByName, Config, PositiveInt
from palestra.games.dialogue.protocol import VERDICTS, Verdict
from palestra.randomness import fold, random_floats, random_permutation
from palestra.schedules import ShareScheduleConfig
from palestra.text.algorithms.algorithm import Example, JobConfig, Seat, TextAlgorithm
from palestra.text.rollouts import DecisionRow, Rollouts, verdicts_of


class ThresholdConfig(Config):
    name: Literal["threshold"]
    """dialogues in which the player got a reward, or more, are learned from"""
    reward: float
    """the least one"""


class WeightedConfig(Config):
    name: Literal["weighted"]
    """dialogues are drawn, each as often as the player's reward exceeds a floor"""
    num_dialogues: PositiveInt
    """how many are drawn; without replacement at most those whose reward exceeds the floor"""
    floor: float
    """a dialogue with this reward, or less, is never drawn"""
    replacement: bool
    """true: a dialogue may be drawn several times"""


class ExpertIterationConfig(JobConfig):
    usual: ClassVar[dict[str, Any]] = {
        **JobConfig.usual,
        "select": {"name": "threshold", "reward": 1.0},
        "labels": "equal",
        "epochs": "this",
        "truth": {"name": "constant", "value": 0.0},
    }

    losses = ("supervised",)

    name: Literal["expert_iteration"]
    """a player learns from those of its own dialogues that went well"""
    select: Annotated[ThresholdConfig | WeightedConfig, ByName()]
    """which dialogues are learned from, by the player's reward"""
    labels: Literal["equal", "as_they_come"]
    """equal: of the label with more selected dialogues, only as many as of the other are learned from"""
    epochs: Literal["this", "all"]
    """whose dialogues are learned from: those of this epoch alone, or of all epochs so far"""
    truth: ShareScheduleConfig
    """share of the verdicts that are replaced by the label before dialogues are selected, between 0 and 1; a step of
    the schedule is an epoch"""

    def build(self, seat: Seat) -> "ExpertIteration":
        return ExpertIteration(self, seat)

    def most_dialogues(self, num: int) -> int:
        match self.select:
            case WeightedConfig(num_dialogues=drawn, replacement=replacement):
                return drawn if replacement else min(drawn, num)
        return num


class Part(NamedTuple):
    """What a player has answered in one role of a dialogue, and what it got."""

    reward: float
    label: int
    examples: list[Example]


class ExpertIteration(TextAlgorithm):
    """The examples are all answers of the player in the selected dialogues.

    Where a player sits in several roles, a dialogue counts once for each of them.
    """

    def __init__(self, config: ExpertIterationConfig, seat: Seat) -> None:
        super().__init__(config, seat)
        self.all_epochs = config.epochs == "all"

    def examples(self, rollouts: Rollouts, keys: Tensor) -> list[Example]:
        dialogue_keys, select_key, label_key = (fold(keys, number) for number in range(3))
        parts = [
            part
            for number, dialogue in enumerate(rollouts.dialogues())
            for part in self._parts(dialogue, fold(dialogue_keys, number))
        ]
        rewards = torch.tensor([part.reward for part in parts], dtype=torch.float64)
        match self.config.select:
            case ThresholdConfig(reward=least):
                chosen = (rewards >= least).nonzero().flatten()
            case WeightedConfig(num_dialogues=num, floor=floor, replacement=replacement):
                chosen = drawn_by_weight((rewards - floor).clamp(min=0.0), num, replacement, select_key)
        if self.config.labels == "equal":
            chosen = equally_many(chosen, torch.tensor([part.label for part in parts], dtype=torch.int64), label_key)
        return [example for number in chosen.tolist() for example in parts[number].examples]

    def _parts(self, dialogue: Sequence[DecisionRow], key: Tensor) -> Iterator[Part]:
        """Yield what the player did in a dialogue, by role, with the label as its verdict where this is drawn."""
        protocol, verdicts = self.seat.protocol, verdicts_of(dialogue)
        label, variant = dialogue[0].label, dialogue[0].variant
        is_replaced = float(random_floats(key, 1)) < self.config.truth(dialogue[0].epoch)
        for role in protocol.roles:
            rows = [row for row in dialogue if row.role == role and row.player == self.seat.player]
            if not rows:
                continue
            reward, truth = rows[0].reward, None
            if is_replaced and verdicts.get(role) is not None:
                paid: dict[str, Verdict] = {**dict.fromkeys(protocol.verifiers), **verdicts}
                truth = self.seat.verdict_words[label]
                right: dict[str, Verdict] = {**paid, role: VERDICTS[label]}
                reward += protocol.reward(role, right, label, variant) - protocol.reward(role, paid, label, variant)
            yield Part(reward, label, [Example(row, 1.0, truth if row.verdict is not None else None) for row in rows])


def drawn_by_weight(weights: Tensor, num: int, replacement: bool, key: Tensor) -> Tensor:
    """Draw numbers of items in proportion to weights, one after the other: int64 (at most num,), in order.

    weights: float64 (N,), nonnegative. replacement: whether an item may be drawn again; without it, each draw is among
    those left (by exponential times, Efraimidis & Spirakis 2006), and those with weight 0 are never drawn. key: int64
    (1,).
    """
    if (num_positive := int((weights > 0).sum())) == 0:
        return torch.zeros(0, dtype=torch.int64)
    if replacement:
        bounds = weights.cumsum(0)
        places = random_floats(key, num)[0].double() * bounds[-1]
        return torch.searchsorted(bounds, places, right=True).sort().values
    times = -torch.log(1.0 - random_floats(key, len(weights))[0].double()) / weights  # inf or nan where the weight is 0
    times = torch.where(weights > 0, times, torch.inf)
    return times.argsort(stable=True)[: min(num, num_positive)].sort().values


def equally_many(chosen: Tensor, labels: Tensor, key: Tensor) -> Tensor:
    """Keep as many of the chosen items of each label as the rarer label has, drawn at random: int64, in order.

    chosen: int64 (M,), numbers of items. labels: int64 (N,), 0 or 1, of all items. key: int64 (1,).
    """
    by_label = [chosen[labels[chosen] == label] for label in (0, 1)]
    least = min(map(len, by_label))
    kept = [each[random_permutation(fold(key, n), len(each))[:least]] for n, each in enumerate(by_label)]
    return torch.cat(kept).sort().values
