"""Prioritized replay (Schaul et al. 2016, proportional variant): draws rows with a large TD error more often.

It searches in a SumTree: numbers that change, with a fast search for the index at which their running sum reaches an
amount. Every node has 16 children that lie side by side: the tree has few levels, and each takes one read.
"""

from itertools import pairwise
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from palestra.buffers.memory import NoRoom, room_for
from palestra.buffers.replay import Batch, ReplayBuffer, ReplayConfig
from palestra.config import ConfigErrorItem, NonNegativeFloat, PartError, PositiveFloat
from palestra.randomness import U_GAMMA, mix, random_floats
from palestra.runtime.compiling import inner, njit
from palestra.schedules import ScheduleConfig

Array = np.ndarray
NUM_CHILDREN = 16


class PrioritizedReplayConfig(ReplayConfig):
    usual: ClassVar[Any] = {"alpha": 0.6, "beta": 0.4, "eps": 1e-6}

    name: Literal["prioritized"]
    """a stored transition is drawn with probability in proportion to (|TD error| + eps)^alpha, with replacement"""
    alpha: NonNegativeFloat
    """exponent of the priorities; 0: every transition is drawn with equal probability"""
    beta: ScheduleConfig
    """exponent of the importance weights in the loss, a function of the player's opt steps; 1: full correction"""
    eps: PositiveFloat
    """added to |TD error|, so that every transition has a positive probability"""

    def build(self, device: torch.device, seed: int, stream: str) -> "PrioritizedReplay":
        return PrioritizedReplay(self, device, seed, stream)


class PrioritizedReplay(ReplayBuffer):
    """A replay buffer with a priority per row, |TD error| + eps to the power of alpha.

    A new row gets the largest priority so far, at first 1. A batch of B rows is drawn by stratified sampling: one row
    from each of B equal shares of the sum of priorities. The priorities are part of `state_dict`.
    """

    def __init__(self, config: PrioritizedReplayConfig, device: torch.device, seed: int, stream: str) -> None:
        super().__init__(config, device, seed, stream)
        try:
            with room_for(8 * self.capacity):
                self.tree = SumTree(self.capacity + 1, self.home)  # the last place is for invalid rows, priority 0
        except NoRoom as error:
            raise PartError(config, [ConfigErrorItem("capacity", str(error))]) from error
        self.largest = torch.ones((), dtype=torch.float64, device=self.home)
        self.drawn = torch.zeros(0, dtype=torch.int64, device=self.home)

    def _append(self, staged: Batch, valid: Tensor) -> None:
        super()._append(staged, valid)
        self.tree.set(staged.places, torch.where(valid, self.largest, 0.0))

    def draw(self, places: Tensor) -> None:
        if self._on_cpu:
            _draw_places(self.tree.nodes.numpy(), self.tree.starts, self.key, self.num_samples, places.numpy())
        else:
            uniforms = random_floats(self.draw_key(), len(places)).squeeze(0).double()
            shares = (torch.arange(len(places), device=self.home) + uniforms) / len(places)
            places.copy_(self.tree.find(shares * self.tree.total()))
        self.drawn = places

    def importance(self, opt_steps: int) -> Tensor:
        """Return the weights in the loss of the rows drawn last, at most 1: float32 (batch,), on the device."""
        with self.time_log.during("memory"):
            beta = self.config.beta(opt_steps)
            if self._on_cpu:
                return torch.from_numpy(_weigh(self.tree.leaves.numpy(), self.drawn.numpy(), beta)).to(self.device)
            priorities = self.tree.leaves[self.drawn]
            return (priorities.min() / priorities).pow(beta).float()

    def update_priorities(self, td_error: Tensor) -> None:
        """Set the priorities of the rows drawn last by their TD errors: float32 (batch,)."""
        with self.time_log.during("memory"):
            config, tree = self.config, self.tree
            if self._on_cpu:
                nodes, places, errors = tree.nodes.numpy(), self.drawn.numpy(), td_error.detach().to(self.home).numpy()
                _prioritize(nodes, tree.starts, places, errors, config.eps, config.alpha, self.largest.numpy())
                return
            priorities = (td_error.detach().double().abs() + config.eps).pow(config.alpha)
            tree.set(self.drawn, priorities)
            torch.maximum(self.largest, priorities.max(), out=self.largest)

    def state_dict(self) -> dict[str, Any]:
        held = {"priorities": self.tree.leaves[: len(self)].clone(), "largest": self.largest.clone()}
        return super().state_dict() | held

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.tree.fill(state["priorities"].to(self.home))
        self.largest.copy_(state["largest"])


# ---- the search --------------------------------------------------------------------------------------


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
        self.leaves, self.on_cpu = self.nodes[:num], device.type == "cpu"

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
def _draw_places(nodes: Array, starts: Array, key: int, num_samples: int, places: Array) -> None:
    """Draw one place from each of B equal shares of the sum, by the same numbers as random_floats."""
    amounts, total = np.empty(len(places)), nodes[starts[-2] :].sum()
    state = mix(np.uint64(key) + np.uint64(num_samples + 1) * U_GAMMA)
    for i in range(len(places)):
        state += U_GAMMA
        amounts[i] = (i + np.float64(mix(state) >> np.uint64(40)) * 2.0**-24) / len(places) * total
    find(nodes, starts, amounts, places)


@njit()
def _weigh(leaves: Array, drawn: Array, beta: float) -> Array:
    weights, least = np.empty(len(drawn), np.float32), np.inf
    for place in drawn:
        least = min(least, leaves[place])
    for i in range(len(drawn)):
        weights[i] = (least / leaves[drawn[i]]) ** beta
    return weights


@njit()
def _prioritize(
    nodes: Array, starts: Array, places: Array, errors: Array, eps: float, alpha: float, largest: Array
) -> None:
    priorities = np.empty(len(places))
    for i in range(len(places)):
        priorities[i] = (abs(np.float64(errors[i])) + eps) ** alpha
        largest[()] = max(largest[()], priorities[i])
    set_leaves(nodes, starts, places, priorities)


@njit()
def set_leaves(nodes: Array, starts: Array, places: Array, values: Array) -> None:
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
def find(nodes: Array, starts: Array, amounts: Array, places: Array) -> None:
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
def _descend(nodes: Array, first: int, amount: float) -> tuple[int, float]:
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
