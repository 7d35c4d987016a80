"""A tree of sums: numbers that change, and the place where their running sum reaches a given amount.

Every node has 16 children, which lie side by side: few levels, each read at once.
"""

from itertools import pairwise
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

NUM_CHILDREN = 16


class SumTree:
    """`num` nonnegative numbers, 0 at first, float64 on one device.

    A sum is always taken anew from its children, so the tree is a function of its leaves, whatever their history.
    """

    def __init__(self, num: int, device: torch.device) -> None:
        sizes = [_rounded_up(num)]
        while sizes[-1] > NUM_CHILDREN:
            sizes.append(_rounded_up(sizes[-1] // NUM_CHILDREN))
        self.starts = np.cumsum([0, *sizes])
        self.nodes = torch.zeros(int(self.starts[-1]), dtype=torch.float64, device=device)
        self.levels = [self.nodes[start:stop] for start, stop in pairwise(self.starts.tolist())]
        self.leaves = self.nodes[:num]
        self.on_cpu = device.type == "cpu"

    def total(self) -> Tensor:
        """The sum of all numbers: float64 ()."""
        return self.levels[-1].sum()

    def set(self, places: Tensor, values: Tensor) -> None:
        """places: int64 (B,); values: float64 (B,), the same wherever a place comes twice."""
        if self.on_cpu:
            _set(self.nodes.numpy(), self.starts, places.numpy(), values.numpy())
            return
        self.leaves[places] = values
        for below, above in pairwise(self.levels):
            places = places // NUM_CHILDREN
            above[places] = below.view(-1, NUM_CHILDREN)[places].sum(dim=1)

    def fill(self, values: Tensor) -> None:
        """Set the first numbers, and 0 for all others."""
        self.nodes.zero_()
        self.leaves[: len(values)] = values
        self.set(torch.arange(len(values), device=self.nodes.device), self.leaves[: len(values)].clone())

    def find(self, amounts: Tensor) -> Tensor:
        """The place of the number by which the running sum exceeds an amount: int64 (B,) of float64 (B,).

        Amounts below the total; never the place of a 0, unless all are.
        """
        if self.on_cpu:
            found = np.empty(len(amounts), dtype=np.int64)
            _find(self.nodes.numpy(), self.starts, amounts.numpy(), found)
            return torch.from_numpy(found)
        places = torch.zeros_like(amounts, dtype=torch.int64)
        for level in reversed(self.levels):
            children = level.view(-1, NUM_CHILDREN)[places]
            sums = children.cumsum(dim=1)
            last = (torch.arange(NUM_CHILDREN, device=amounts.device) * (children > 0)).amax(dim=1)
            chosen = torch.minimum((sums <= amounts.unsqueeze(1)).sum(dim=1), last)  # rounding may lead beyond the last
            before = sums.gather(1, chosen.unsqueeze(1)) - children.gather(1, chosen.unsqueeze(1))
            amounts = amounts - before.squeeze(1)
            places = places * NUM_CHILDREN + chosen
        return places


def _rounded_up(num: int) -> int:
    return -(-num // NUM_CHILDREN) * NUM_CHILDREN


# ---- the same on a CPU: loops that start many times faster than operations of torch -------------------


@numba.njit(cache=True, nogil=True)
def _set(nodes: np.ndarray, starts: np.ndarray, places: np.ndarray, values: np.ndarray) -> None:
    for i in range(len(places)):
        place = places[i]
        nodes[place] = values[i]
        for level in range(1, len(starts) - 1):
            place //= NUM_CHILDREN
            total = 0.0
            for child in range(NUM_CHILDREN):
                total += nodes[starts[level - 1] + place * NUM_CHILDREN + child]
            nodes[starts[level] + place] = total


@numba.njit(cache=True, nogil=True)
def _find(nodes: np.ndarray, starts: np.ndarray, amounts: np.ndarray, places: np.ndarray) -> Any:
    for i in range(len(amounts)):
        amount, place = amounts[i], 0
        for level in range(len(starts) - 2, -1, -1):
            first, chosen = starts[level] + place * NUM_CHILDREN, 0
            for child in range(NUM_CHILDREN):
                value = nodes[first + child]
                if value > 0.0:
                    chosen = child
                    if amount < value:
                        break
                    amount -= value
            place = place * NUM_CHILDREN + chosen
        places[i] = place
