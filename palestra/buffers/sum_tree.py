"""SumTree: numbers that change, with a fast search for the index at which their running sum reaches an amount.

Every node has 16 children that lie side by side: the tree has few levels, and each takes one read.
"""

from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from palestra.runtime.compiling import inner, njit

NUM_CHILDREN = 16


class SumTree:
    """`num` nonnegative numbers, 0 at first, float64 on one device.

    A sum is always recomputed from its children, so the tree is a function of its leaves alone, not of their history.
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
        """Return the sum of all numbers: float64 ()."""
        return self.levels[-1].sum()

    def set(self, places: Tensor, values: Tensor) -> None:
        """Set numbers. places: int64 (B,); values: float64 (B,), equal where a place occurs twice."""
        if self.on_cpu:
            set_leaves(self.nodes.numpy(), self.starts, places.numpy(), values.numpy())
            return
        self.leaves[places] = values
        for below, above in pairwise(self.levels):
            places = places // NUM_CHILDREN
            above[places] = below.view(-1, NUM_CHILDREN)[places].sum(dim=1)

    def fill(self, values: Tensor) -> None:
        """Set the first numbers to `values`, and all others to 0."""
        self.nodes.zero_()
        self.leaves[: len(values)] = values
        self.set(torch.arange(len(values), device=self.nodes.device), self.leaves[: len(values)].clone())

    def find(self, amounts: Tensor) -> Tensor:
        """Find the places of the numbers at which the running sum exceeds amounts: int64 (B,) for float64 (B,).

        Amounts must be below the total. The place of a 0 is never returned, unless all numbers are 0.
        """
        if self.on_cpu:
            found = np.empty(len(amounts), dtype=np.int64)
            find(self.nodes.numpy(), self.starts, amounts.numpy(), found)
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


@njit()
def set_leaves(nodes: np.ndarray, starts: np.ndarray, places: np.ndarray, values: np.ndarray) -> None:
    """Do `SumTree.set` level by level, so that the processor computes several sums at once.

    Neighbours that share a parent compute its sum once.
    """
    changed = places.copy()
    for i in range(len(places)):
        nodes[places[i]] = values[i]
    for level in range(1, len(starts) - 1):
        parent = -1
        for i in range(len(changed)):
            changed[i] //= NUM_CHILDREN
            if changed[i] == parent:
                continue
            parent = changed[i]
            first, total = starts[level - 1] + parent * NUM_CHILDREN, 0.0
            for quarter in range(first, first + NUM_CHILDREN, 4):
                total += nodes[quarter] + nodes[quarter + 1] + nodes[quarter + 2] + nodes[quarter + 3]
            nodes[starts[level] + parent] = total


@njit()
def find(nodes: np.ndarray, starts: np.ndarray, amounts: np.ndarray, places: np.ndarray) -> None:
    """Do `SumTree.find`; write the places into `places`, and overwrite `amounts`.

    All amounts descend one level before the next, without branches, so that the processor works on several at once.
    """
    places[:] = 0
    for level in range(len(starts) - 2, -1, -1):
        for i in range(len(amounts)):
            first, amount = starts[level] + places[i] * NUM_CHILDREN, amounts[i]
            chosen, before = _descend(nodes, first, amount)
            places[i] = places[i] * NUM_CHILDREN + chosen
            amounts[i] = amount - before


@inner(forceinline=True)
def _descend(nodes: np.ndarray, first: int, amount: float) -> tuple[int, float]:
    """Return which of 16 children contains the amount, and the sum of those before it; find the quarter first."""
    one = nodes[first] + nodes[first + 1] + nodes[first + 2] + nodes[first + 3]
    two = one + (nodes[first + 4] + nodes[first + 5] + nodes[first + 6] + nodes[first + 7])
    three = two + (nodes[first + 8] + nodes[first + 9] + nodes[first + 10] + nodes[first + 11])
    quarter = (one <= amount) + (two <= amount) + (three <= amount)
    running = three if quarter == 3 else two if quarter == 2 else one if quarter == 1 else 0.0
    before, chosen = running, 4 * quarter
    for child in range(first + chosen, first + chosen + 4):
        running += nodes[child]
        is_beyond = running <= amount
        chosen += is_beyond
        before = running if is_beyond else before
    if chosen < 4 * quarter + 4:
        return chosen, before
    running, before, chosen = 0.0, 0.0, 0  # rounding has led beyond the last child
    for child in range(min(4 * quarter + 4, NUM_CHILDREN)):
        if nodes[first + child] > 0.0:
            chosen, before = child, running
        running += nodes[first + child]
    return chosen, before
