"""Prioritized replay (Schaul et al. 2016, proportional variant): draws rows with a large TD error more often."""

from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from palestra.buffers.memory import NoRoom, room_for
from palestra.buffers.replay import Batch, ReplayBuffer, ReplayConfig
from palestra.buffers.sum_tree import SumTree, find, set_leaves
from palestra.config import ConfigErrorItem, NonNegativeFloat, PartError, PositiveFloat
from palestra.randomness import U_GAMMA, mix, random_floats
from palestra.runtime.compiling import njit
from palestra.schedules import ScheduleConfig


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
                weights = torch.from_numpy(_weigh(self.tree.leaves.numpy(), self.drawn.numpy(), beta))
                return weights.to(self.device)
            priorities = self.tree.leaves[self.drawn]
            return (priorities.min() / priorities).pow(beta).float()

    def update_priorities(self, td_error: Tensor) -> None:
        """Set the priorities of the rows drawn last by their TD errors: float32 (batch,)."""
        with self.time_log.during("memory"):
            config, tree = self.config, self.tree
            if self._on_cpu:
                errors, places = td_error.detach().to(self.home).numpy(), self.drawn.numpy()
                _prioritize(
                    tree.nodes.numpy(), tree.starts, places, errors, config.eps, config.alpha, self.largest.numpy()
                )
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


# ---- the same on a CPU: loops that start many times faster than operations of torch -------------------


@njit()
def _draw_places(nodes: np.ndarray, starts: np.ndarray, key: int, num_samples: int, places: np.ndarray) -> None:
    """Draw one place from each of B equal shares of the sum, by the same numbers as random_floats."""
    amounts, total = np.empty(len(places)), nodes[starts[-2] :].sum()
    state = mix(np.uint64(key) + np.uint64(num_samples + 1) * U_GAMMA)
    for i in range(len(places)):
        state += U_GAMMA
        amounts[i] = (i + np.float64(mix(state) >> np.uint64(40)) * 2.0**-24) / len(places) * total
    find(nodes, starts, amounts, places)


@njit()
def _weigh(leaves: np.ndarray, drawn: np.ndarray, beta: float) -> np.ndarray:
    weights, least = np.empty(len(drawn), np.float32), np.inf
    for place in drawn:
        least = min(least, leaves[place])
    for i in range(len(drawn)):
        weights[i] = (least / leaves[drawn[i]]) ** beta
    return weights


@njit()
def _prioritize(
    nodes: np.ndarray,
    starts: np.ndarray,
    places: np.ndarray,
    errors: np.ndarray,
    eps: float,
    alpha: float,
    largest: np.ndarray,
) -> None:
    priorities = np.empty(len(places))
    for i in range(len(places)):
        priorities[i] = (abs(np.float64(errors[i])) + eps) ** alpha
        largest[()] = max(largest[()], priorities[i])
    set_leaves(nodes, starts, places, priorities)
