"""Transition builders by name: they turn roll-outs into rows of a replay buffer.

Letters: M rows.
"""

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor

from palestra.config import ByName, Config, InBranch, PositiveInt, UserConfig
from palestra.rollouts.transitions import Transitions
from palestra.runtime.device import moved


class TransitionBuilder(ABC):
    """Turns roll-outs into rows of a replay buffer. A user's own class derives from it and carries its `Config`.

    gamma: discount per decision. num_rounds: the rounds of a roll-out. moves: the roles of the player's moves in a
    round, in order.
    """

    def __init__(
        self, config: Config, gamma: float, num_rounds: int, moves: tuple[str, ...], device: torch.device
    ) -> None:
        self.config, self.gamma, self.num_rounds, self.moves, self.device = config, gamma, num_rounds, moves, device

    @abstractmethod
    def __call__(self, experience: Transitions) -> Transitions:
        """Return the rows to store. Their number is the same at every call; only those with `valid` are stored.

        If the discount of the next observation's value is not gamma, it is `extras["discount"]`, float32 (M,).
        """

    def sequences(self, num_rows: int) -> Tensor:
        """Return the number of the sequence to which each row of a roll-out belongs: int64 (num_rows,), from 0 on.

        A sequence has the decisions of one role in one world. Its valid rows are in the order of time, and if one is
        neither terminated nor truncated, its next observation is the observation of the next row.
        """
        num_worlds, roles = num_rows // (self.num_rounds * len(self.moves)), list(dict.fromkeys(self.moves))
        role = torch.tensor([roles.index(move) for move in self.moves], device=self.device)
        one_round = role.unsqueeze(1) * num_worlds + torch.arange(num_worlds, device=self.device)
        return one_round.flatten().repeat(self.num_rounds)

    def forget_waiting(self) -> None:  # noqa: B027 (most builders keep nothing)
        """Drop the rows that wait for the next roll-out, because the player was frozen since the last one."""

    def state_dict(self) -> dict[str, Any]:
        """Return what the builder keeps from one roll-out to the next."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027 (most builders keep nothing)
        """The inverse of `state_dict`."""


class TransitionsConfig(Config):
    """The base of the configs of transition builders."""

    made: ClassVar[type[TransitionBuilder]]

    name: str

    def build(self, gamma: float, num_rounds: int, moves: tuple[str, ...], device: torch.device) -> TransitionBuilder:
        return self.made(self, gamma, num_rounds, moves, device)


class OneStep(TransitionBuilder):
    """Leaves every row as it is."""

    def __call__(self, experience: Transitions) -> Transitions:
        return experience


class OneStepConfig(TransitionsConfig):
    made = OneStep

    name: Literal["one_step"]
    """from a decision to the next one"""


class NStep(TransitionBuilder):
    """Sums n discounted rewards (Sutton & Barto 2018, chapter 7); after k of them the next value's discount is gamma^k.

    A sum ends where a row is terminated or truncated. Rows that lack rewards of rounds not yet played wait for the next
    roll-out in `waiting`, a part of `state_dict`: at most n - 1 of each sequence, in the order of time.
    """

    config: "NStepConfig"
    waiting: dict[str, Tensor] | None = None

    def __call__(self, experience: Transitions) -> Transitions:
        new = experience.rows() | {"valid": experience.valid, "sequence": self.sequences(len(experience.valid))}
        num_sequences = new["sequence"].max() + 1
        if self.waiting is None:  # before the first rows; a GPU waits here once
            room = (self.config.steps - 1) * int(num_sequences)
            self.waiting = {name: value.new_zeros(room, *value.shape[1:]) for name, value in new.items()}
        rows = {name: torch.cat([self.waiting[name], value]) for name, value in new.items()}
        order = torch.where(rows["valid"], rows["sequence"], num_sequences).argsort(stable=True)
        rows = {name: value[order] for name, value in rows.items()}
        summed, waits = self._sum(rows)
        places = (~waits).int().argsort(stable=True)[: len(self.waiting["valid"])]
        self.waiting = {name: value[places] for name, value in (rows | {"valid": waits}).items()}
        return replace(Transitions.from_rows(summed), valid=rows["valid"] & ~waits)

    def _sum(self, rows: dict[str, Tensor]) -> tuple[dict[str, Tensor], Tensor]:
        """Return rows with the sums of up to n rewards and with what followed these, and which rows wait for more.

        The latter is bool (M,). rows: the valid ones first, sequence by sequence in the order of time.
        """
        ended, valid, sequence = rows["terminated"] | rows["truncated"], rows["valid"], rows["sequence"]
        has_next = valid & _later(valid, 1) & (_later(sequence, 1) == sequence)
        goes_on = has_next & ~ended & _is_continued_by_next(rows)
        reward, sums, last = rows["reward"].clone(), valid, torch.arange(len(valid), device=valid.device)
        for step in range(1, self.config.steps):
            sums = sums & _later(goes_on, step - 1)
            reward += torch.where(sums, self.gamma**step * _later(rows["reward"], step), 0.0)
            last = last + sums
        waits = valid & ~sums & ~ended[last] & ~has_next[last]
        ends = [name for name in rows if name.startswith("next_") or name in ("terminated", "truncated")]
        after = {name: rows[name][last] for name in ends}
        num_rewards = last - torch.arange(len(last), device=last.device) + 1
        discount = torch.pow(self.gamma, num_rewards.float())
        return rows | after | {"reward": reward, "extras.discount": discount}, waits

    def forget_waiting(self) -> None:
        self.waiting = None

    def state_dict(self) -> dict[str, Any]:
        return {"waiting": self.waiting}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.waiting = moved(state["waiting"], self.device)


def _later(values: Tensor, steps: int) -> Tensor:
    """Return values[i + steps] at place i, and zeros beyond the end."""
    return torch.cat([values[steps:], torch.zeros_like(values[:steps])])


def _is_continued_by_next(rows: dict[str, Tensor]) -> Tensor:
    """Return whether the next row's observation is the next observation of each row: bool (M,).

    It is, unless a world that cannot be replayed from its seed began a new episode when the run was resumed.
    """
    begins = rows["valid"]
    for name, value in rows.items():
        if name.startswith("observation."):
            same = rows[f"next_{name}"] == _later(value, 1)
            begins = begins & same.view(len(same), -1).all(dim=1)
    return begins


class NStepConfig(TransitionsConfig):
    made = NStep
    usual: ClassVar = {"steps": 3}

    name: Literal["n_step"]
    """from a decision to the n-th one after it, their rewards summed with discounts"""
    steps: PositiveInt
    """n; fewer where the game ends or is cut off before"""


AnyTransitionsConfig = Annotated[
    OneStepConfig | NStepConfig | UserConfig, ByName(user_class=TransitionBuilder, usual="one_step"), InBranch.FIXED
]
