"""The bases of FusedGame and SoloGame, and of the worlds that they play in.

Letters: B worlds, R roles.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from palestra.games.game import Game
from palestra.games.policy import Policy
from palestra.randomness import base_key, world_keys
from palestra.runtime.device import moved

NUM_RECENT = 100  # in a ring buffer float32 (NUM_RECENT + 1, R), whose last row takes returns that are not stored


def remember(recent: Tensor, num_finished: Tensor, ended: Tensor, returns: Tensor) -> tuple[Tensor, Tensor]:
    """Add the games that have `ended`, bool (M,), in their order; return the new ring buffer and number.

    returns: (M, R). Does not wait for a GPU.
    """
    numbers = num_finished + ended.cumsum(0) - 1
    num_finished = num_finished + ended.sum()
    is_kept = ended & (numbers >= num_finished - NUM_RECENT)
    places = torch.where(is_kept, numbers % NUM_RECENT, NUM_RECENT)
    return recent.index_copy(0, places, returns * is_kept.unsqueeze(1)), num_finished


@dataclass
class RunningGames:
    """A batch of running games, which belongs to one roll-out loop.

    lengths: (B,), returns: (B, R), or (B,) with one role, of the games so far. totals: float64, sums over finished
    games, in the order of `PlayedGame.total_names`. recent, num_finished: as `remember` gives them.
    """

    keys: Tensor
    num_moves: int
    lengths: Tensor
    returns: Tensor
    totals: Tensor
    recent: Tensor
    num_finished: Tensor

    def state_dict(self) -> dict[str, Any]:
        return dict(vars(self))

    def forget_results(self) -> None:
        """Forget the games that have finished, but the last ones' returns."""
        self.totals = torch.zeros_like(self.totals)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in self.__dataclass_fields__:
            setattr(self, name, moved(state[name], self.keys.device))


class PlayedGame:
    """Plays a game with a policy in every seat. The policies may be exchanged between calls."""

    def __init__(self, game: Game, policies: dict[str, Policy]) -> None:
        self.policies, self.statistics = policies, game.statistics
        self.total_names = (
            *("episodes", "terminated", "truncated", "length"),
            *(f"return/{role}" for role in game.roles),
            *game.tallies,
        )
        self.num_roles, self.device = len(game.roles), game.device

    def counters(self, num_worlds: int, seed: int, stream: str, first: int) -> dict[str, Any]:
        """Return the fields of RunningGames, but `returns`, for new worlds that draw from (seed, stream).

        first: the number of the first of them.
        """
        return {
            "keys": world_keys(base_key(seed, stream), num_worlds, self.device, first),
            "num_moves": 1,
            "lengths": torch.zeros(num_worlds, dtype=torch.int32, device=self.device),
            "totals": torch.zeros(len(self.total_names), dtype=torch.float64, device=self.device),
            "recent": torch.zeros(NUM_RECENT + 1, self.num_roles, device=self.device),
            "num_finished": torch.zeros((), dtype=torch.int64, device=self.device),
        }

    def take_totals(self, worlds: RunningGames) -> dict[str, float]:
        """Return the sums over the games that have finished since the last call, by name. Waits for the device."""
        values = dict(zip(self.total_names, worlds.totals.tolist(), strict=True))
        worlds.totals = torch.zeros_like(worlds.totals)
        return values

    def recent_returns(self, worlds: RunningGames) -> Tensor:
        """Give the returns of the last finished games, oldest first: float32 (at most 100, R). Waits for the device."""
        num, recent = int(worlds.num_finished), worlds.recent
        return recent[:num] if num <= NUM_RECENT else recent[:-1].roll(-(num % NUM_RECENT), 0)

    def added(self) -> list[Any]:
        """Return what was added to running statistics that are shared, since all have joined theirs, by actor."""
        return [[each.added.own_state() for each in self.statistics() if each.added is not None]]

    def is_exact(self, worlds: Any) -> bool:
        """Return whether all games went on to the same bits after a resume: those of a TensorGame always do."""
        return True

    def forget_waiting(self, worlds: Any, roles: Collection[str]) -> None:
        """Forget the last decisions of these roles, if they wait for their next ones, so that they become no rows."""
