"""WholeGames: keeps the rows of a roll-out until their game has ended.

Letters: T decisions of each of W sequences.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from palestra.algorithms.parts.advantages import side_by_side
from palestra.rollouts.transitions import Transitions
from palestra.runtime.device import moved


class WholeGames:
    """Keeps the rows of running games from one roll-out to the next.

    waiting: rows (T, W), one sequence in a column, in the order of time; those that wait come first.
    """

    def __init__(self) -> None:
        self.waiting: Transitions | None = None

    def __call__(self, batch: Transitions, sequences: list[Tensor]) -> tuple[Transitions, Tensor] | None:
        """Return the rows of all games that have ended, as sequences, and their numbers (T, W); None if no game has.

        batch: a roll-out. sequences: the numbers of its rows that follow each other, (T, W) each. Waits for a GPU.
        """
        rows = _in_columns(batch, sequences)
        num_columns = sum(own.shape[1] for own in sequences)
        if self.waiting is not None:
            rows = Transitions.concatenate([self.waiting, rows])
        valid, ended = rows.valid.view(-1, num_columns), (rows.terminated | rows.truncated).view(-1, num_columns)
        is_whole = (ended & valid).flip(0).cumsum(0).flip(0) > 0
        self.waiting, _ = _only(rows, valid & ~is_whole)
        whole, numbers = _only(rows, valid & is_whole)
        return None if whole is None else (whole, numbers)

    def state_dict(self) -> dict[str, Any]:
        if self.waiting is None:
            return {"waiting": None}
        return {"waiting": self.waiting.rows() | {"valid": self.waiting.valid}}

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        self.waiting = None
        if state["waiting"] is not None:
            rows = moved(state["waiting"], device)
            valid = rows.pop("valid")
            self.waiting = replace(Transitions.from_rows(rows), valid=valid)


def _in_columns(batch: Transitions, sequences: list[Tensor]) -> Transitions:
    """Put the sequences of a roll-out side by side, the shorter ones filled up with rows that do not count."""
    numbers, exists = side_by_side(sequences)
    rows = batch.at(numbers.flatten())
    return replace(rows, valid=rows.valid & exists.flatten())


def _only(rows: Transitions, where: Tensor) -> tuple[Transitions | None, Tensor]:
    """Move the rows where bool (T, W) is true to the front of their columns; return them and their numbers (T, W).

    The rows are None if there are none.
    """
    length = int(where.sum(dim=0).max())
    order = (~where).to(torch.uint8).argsort(dim=0, stable=True)[:length]
    numbers = torch.arange(order.numel(), device=where.device).view_as(order)
    if length == 0:
        return None, numbers
    places = torch.arange(where.numel(), device=where.device).view_as(where).gather(0, order)
    return replace(rows.at(places.flatten()), valid=where.gather(0, order).flatten()), numbers
