"""Transitions: the experience of one seat, from one of its decisions to its next, and of all seats of a player.

Letters: M rows, B worlds, T rounds.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from palestra.games.game import Observation

STORED = ("action", "reward", "next_legal", "terminated", "truncated")  # always, by these names


@dataclass
class Transitions:
    """The experience of one seat, from one of its decisions to its next: M rows, of which only `valid` ones count.

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
        """Return all fields but `valid` as one flat dict, the form in which a buffer stores them.

        `legal` is left out if all actions are always legal.
        """
        flat: dict[str, Tensor] = {}
        for name in ("observation", "next_observation", "extras"):
            flat |= {f"{name}.{key}": value for key, value in getattr(self, name).items()}
        names = STORED if self.always_legal else (*STORED, "legal")
        return flat | {name: getattr(self, name) for name in names}

    @classmethod
    def from_rows(cls, rows: Mapping[str, Tensor]) -> "Transitions":
        """Make transitions of a dict such as `rows` returns; every row is valid."""
        fields: dict[str, Any] = {name: rows[name] for name in STORED}
        fields |= {"observation": {}, "next_observation": {}, "extras": {}}
        for name, value in rows.items():
            part, dot, key = name.partition(".")
            if dot:
                fields[part][key] = value
        legal = rows.get("legal")
        return cls(
            **fields,
            valid=torch.ones_like(rows["terminated"]),
            legal=torch.ones_like(rows["next_legal"]) if legal is None else legal,
            always_legal=legal is None,
        )

    @staticmethod
    def concatenate(parts: "list[Transitions]") -> "Transitions":
        """Join rows; all parts have the same keys."""
        if len(parts) == 1:
            return parts[0]
        return Transitions(**by_tensor(lambda *each: torch.cat(each), *map(vars, parts)))

    def at(self, index: Tensor) -> "Transitions":
        """Return the rows of these numbers, int64 (N,), in this order."""
        return Transitions(**by_tensor(lambda each: each[index], vars(self)))


def by_tensor(function: Callable[..., Tensor], *values: Any) -> Any:
    """Call a function with the tensors at the same places in dicts of dicts; what is no tensor stays the first's."""
    if isinstance(values[0], dict):
        return {key: by_tensor(function, *(value[key] for value in values)) for key in values[0]}
    return function(*values) if isinstance(values[0], Tensor) else values[0]


def join_roles(by_role: Mapping[str, Transitions], moves: Sequence[str], num_worlds: int) -> Transitions:
    """Join the experience of the roles: M = T * moves * B rows, by round, in a round by move, in a move by world.

    by_role: rows in the same order. moves: the role of each move in a round. num_worlds: B.
    """
    if len(by_role) == 1:
        return next(iter(by_role.values()))
    num_rows = sum(len(rows.valid) for rows in by_role.values())
    num_rounds = num_rows // (len(moves) * num_worlds)
    by_move, start = {}, 0
    for role, rows in by_role.items():  # the numbers of its rows after concatenation, each entry (T, B)
        numbers = torch.arange(start, start + len(rows.valid), device=rows.valid.device)
        by_move[role] = iter(numbers.view(num_rounds, -1, num_worlds).unbind(1))
        start += len(rows.valid)
    order = torch.stack([next(by_move[role]) for role in moves], dim=1)
    return Transitions.concatenate(list(by_role.values())).at(order.flatten())
