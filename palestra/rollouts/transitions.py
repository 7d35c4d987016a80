"""Experience of one seat, from one of its decisions to its next; and of all seats of a player.

Letters: M rows, B worlds, T rounds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from palestra.games.game import Observation


@dataclass
class Transitions:
    """Experience of one seat: from one of its decisions to its next. M rows, of which only those with `valid` count.

    reward: float32 (M,), the sum of all rewards in between. next_observation: the seat's observation at its next
    decision; without meaning where terminated, because there is none. legal, next_legal: the legal actions at the two
    observations, bool (M, flags of the action space). always_legal: whether all are, throughout the game. truncated:
    the world was cut off in between; the next observation is the true one, from which to bootstrap.
    """

    observation: Observation
    action: Tensor
    reward: Tensor
    next_observation: Observation
    next_legal: Tensor
    terminated: Tensor
    truncated: Tensor
    valid: Tensor
    extras: dict[str, Tensor]
    legal: Tensor
    always_legal: bool = False

    def rows(self) -> dict[str, Tensor]:
        """All fields but `valid` as one flat dict, the form in which a buffer stores them; without `legal` if all
        actions are always legal.
        """
        flat: dict[str, Tensor] = {}
        for name in ("observation", "next_observation", "extras"):
            flat |= {f"{name}.{key}": value for key, value in getattr(self, name).items()}
        names = ["action", "reward", "next_legal", "terminated", "truncated", *([] if self.always_legal else ["legal"])]
        return flat | {name: getattr(self, name) for name in names}

    @classmethod
    def from_rows(cls, rows: Mapping[str, Tensor]) -> "Transitions":
        """The inverse of `rows`; every row is valid."""
        parts: dict[str, dict[str, Tensor]] = {"observation": {}, "next_observation": {}, "extras": {}}
        for name, value in rows.items():
            part, dot, key = name.partition(".")
            if dot:
                parts[part][key] = value
        next_legal, legal = rows["next_legal"], rows.get("legal")
        return cls(
            **parts,
            action=rows["action"],
            reward=rows["reward"],
            next_legal=next_legal,
            terminated=rows["terminated"],
            truncated=rows["truncated"],
            valid=torch.ones_like(rows["terminated"]),
            legal=torch.ones_like(next_legal) if legal is None else legal,
            always_legal=legal is None,
        )

    @staticmethod
    def concatenate(parts: "list[Transitions]") -> "Transitions":
        """Join rows; all parts have the same keys."""
        if len(parts) == 1:
            return parts[0]

        def join(name: str) -> Any:
            values = [getattr(part, name) for part in parts]
            if isinstance(values[0], dict):
                return {key: torch.cat([value[key] for value in values]) for key in values[0]}
            return torch.cat(values) if isinstance(values[0], Tensor) else values[0]

        return Transitions(**{name: join(name) for name in Transitions.__dataclass_fields__})

    def at(self, index: Tensor) -> "Transitions":
        """The rows of these numbers, int64 (N,), in this order."""

        def pick(value: Any) -> Any:
            if isinstance(value, dict):
                return {key: each[index] for key, each in value.items()}
            return value[index] if isinstance(value, Tensor) else value

        return Transitions(**{name: pick(value) for name, value in vars(self).items()})


# What a roll-out brings: for each shard of the worlds (today there is one, with all of them) the experience by role.
RollOut = list[dict[str, Transitions]]


def join_roles(roll_out: Sequence[Mapping[str, Transitions]], moves: Sequence[str], num_worlds: int) -> Transitions:
    """A roll-out as one: M = T * moves * B rows, round by round, in a round move by move, in a move world by world.

    roll_out: of each role its rows in the same order. moves: the role of each move in a round. num_worlds: B, of all
    shards together.
    """
    pieces = [(role, rows) for shard in roll_out for role, rows in shard.items()]
    if len(pieces) == 1:
        return pieces[0][1]
    num_moves = {role: list(moves).count(role) for role in moves}
    num_rows = sum(len(rows.valid) for _, rows in pieces)
    num_rounds = num_rows // (len(moves) * num_worlds)
    numbers: dict[str, list[Tensor]] = {role: [] for role in num_moves}  # of the rows in `pieces`, each (T, moves, B)
    start = 0
    for role, rows in pieces:
        own = torch.arange(start, start + len(rows.valid), device=rows.valid.device)
        numbers[role].append(own.view(num_rounds, num_moves[role], -1))
        start += len(own)
    by_move = {role: iter(torch.cat(of_shards, dim=2).unbind(1)) for role, of_shards in numbers.items()}
    order = torch.stack([next(by_move[role]) for role in moves], dim=1)
    return Transitions.concatenate([rows for _, rows in pieces]).at(order.flatten())
