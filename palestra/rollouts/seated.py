"""Seats that several players share: in some worlds sits one, in others another.

Letters: B worlds, N worlds of one sitter, R roles.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from palestra.games.policy import Decision, Memory, Observes, Policy
from palestra.rollouts.transitions import by_tensor


class Sitter(NamedTuple):
    """Who sits in some of the worlds. worlds: their numbers, int64 (N,), ascending."""

    worlds: Tensor
    policy: Policy


class SeatedPolicy:
    """The policy of a seat in which each of several sitters decides in its own worlds.

    held: bool (B,), the worlds whose experience is wanted: the first sitter's, whose decisions alone keep extras. It
    gets every view that there is, by what policies observe. Each sitter has a memory of its own.
    """

    observes: Observes = "seats"

    def __init__(self, sitters: Sequence[Sitter], num_worlds: int, device: torch.device) -> None:
        self.sitters = {number: each for number, each in enumerate(sitters) if len(each.worlds) or number == 0}
        self.observed = [each.policy.observes for each in self.sitters.values()]
        self.held = torch.zeros(num_worlds, dtype=torch.bool, device=device)
        self.held[sitters[0].worlds] = True

    def act(self, view: Mapping[str, Any], legal: Tensor, keys: Tensor, memory: Memory) -> Decision:
        """Let each sitter decide in its worlds. view: by what policies observe, tensors (B, ...) by name."""
        action, extras, remembered = torch.zeros(0), {}, dict[str, Tensor]()
        for number, (worlds, policy) in self.sitters.items():
            rows = worlds if len(worlds) else torch.zeros(1, dtype=torch.int64, device=worlds.device)  # for the shapes
            prefix = f"{number}/"
            own = {name.removeprefix(prefix): each[rows] for name, each in memory.items() if name.startswith(prefix)}
            seen = by_tensor(lambda each, rows=rows: each[rows], view[policy.observes])
            decision = policy.act(seen, legal[rows], keys[rows], own)
            put = _put(worlds, len(legal))
            if number == 0:
                action, extras = put(decision.action), {name: put(each) for name, each in decision.extras.items()}
            else:
                action[worlds] = decision.action
            remembered |= {f"{prefix}{name}": put(each) for name, each in decision.memory.items()}
        return Decision(action, extras, remembered)


def _put(worlds: Tensor, num_worlds: int) -> Callable[[Tensor], Tensor]:
    """Return what makes (B, ...) of the values (N, ...) of some worlds, with zeros in the others."""

    def put(values: Tensor) -> Tensor:
        rows = values.new_zeros((num_worlds, *values.shape[1:]))
        rows[worlds] = values[: len(worlds)]
        return rows

    return put


@dataclass
class Results:
    """The results of the games that have ended in each world, for who sits where.

    sums: float64 (B, 1 + 2 R): games, the return of each role, and the contests that each has won; of the latter, none
    in games of other than two roles. sitters: int64 (B, R), the past self that sits in a seat, by the opt steps after
    which it was copied; -1 where none does.
    """

    sums: Tensor
    sitters: Tensor

    def add(self, ended: Tensor, returns: Tensor, wins: Sequence[Tensor]) -> None:
        """Add the games that have `ended`, bool (B,). returns: (B, R). wins: of each role, (B,), or none."""
        columns = [torch.ones_like(ended), *returns.unbind(1), *wins]
        added = torch.stack([column.double() for column in columns], dim=1).masked_fill(~ended.unsqueeze(1), 0.0)
        self.sums[:, : len(columns)] += added

    def take(self) -> Tensor:
        """Return the sums since the last call. Waits for the device."""
        taken, self.sums = self.sums.cpu(), torch.zeros_like(self.sums)
        return taken
