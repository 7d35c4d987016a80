"""Prioritized replay memory (Schaul et al. 2016, proportional variant): what surprised is drawn more often."""

from typing import Any, Literal

import numba
import numpy as np
import torch
from torch import Tensor

from palestra.buffers.replay import Batch, ReplayBuffer
from palestra.buffers.sum_tree import SumTree
from palestra.config import Config, NonNegativeFloat, PositiveFloat, PositiveInt
from palestra.randomness import U_GAMMA, fold, mix, random_floats
from palestra.schedules import ScheduleConfig


class PrioritizedReplayConfig(Config):
    name: Literal["prioritized"]
    """a stored transition is drawn with probability in proportion to (|TD error| + eps)^alpha, with replacement"""
    capacity: PositiveInt
    """transitions kept; the oldest go first"""
    alpha: NonNegativeFloat
    """how much the TD error counts; 0: not at all, every transition is drawn with equal probability"""
    beta: ScheduleConfig
    """how far weights in the loss make up for the drawing, a function of the player's opt steps; 1: wholly"""
    eps: PositiveFloat
    """added to the TD error, so that every transition is drawn now and then"""


class PrioritizedReplay(ReplayBuffer):
    """A replay buffer with a priority per row, |TD error| + eps to the power of alpha.

    A new row has the largest priority that there has been, 1 at first. A batch is drawn from as many equal shares of
    the sum of priorities as it has rows. The priorities are part of `state_dict`.
    """

    def __init__(self, config: PrioritizedReplayConfig, device: torch.device, seed: int, stream: str) -> None:
        super().__init__(config, device, seed, stream)
        self.config = config
        self.tree = SumTree(self.capacity + 1, device)  # the last place is for what is not to be kept: priority 0
        self.largest = torch.ones((), dtype=torch.float64, device=device)
        self.drawn = torch.zeros(0, dtype=torch.int64, device=device)

    def _append(self, staged: Batch, valid: Tensor) -> None:
        super()._append(staged, valid)
        self.tree.set(staged.places, torch.where(valid, self.largest, 0.0))

    def _draw(self, places: Tensor) -> None:
        if self._on_cpu:
            shares = torch.from_numpy(_draw_shares(self.key, self.num_samples, len(places)))
        else:
            key = torch.tensor([self.key], device=self.device)
            uniforms = random_floats(fold(key, self.num_samples), len(places)).squeeze(0).double()
            shares = (torch.arange(len(places), device=self.device) + uniforms) / len(places)
        places.copy_(self.tree.find(shares * self.tree.total()))
        self.drawn = places

    def importance(self, opt_steps: int) -> Tensor:
        """The weights in the loss of the rows drawn last, at most 1: float32 (batch,)."""
        priorities = self.tree.leaves[self.drawn]
        return (priorities.min() / priorities).pow(self.config.beta(opt_steps)).float()

    def learn_surprise(self, td_error: Tensor) -> None:
        """Give the rows drawn last the priorities that follow from their TD errors: float32 (batch,)."""
        priorities = (td_error.detach().double().abs() + self.config.eps).pow(self.config.alpha)
        self.tree.set(self.drawn, priorities)
        torch.maximum(self.largest, priorities.max(), out=self.largest)

    def state_dict(self) -> dict[str, Any]:
        held = {"priorities": self.tree.leaves[: len(self)].clone(), "largest": self.largest.clone()}
        return super().state_dict() | held

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.tree.fill(state["priorities"].to(self.device))
        self.largest.copy_(state["largest"])


@numba.njit(cache=True, nogil=True)
def _draw_shares(key: int, num_samples: int, num: int) -> np.ndarray:
    """One uniform number from each of `num` equal parts of [0, 1): the numbers that random_floats draws."""
    shares = np.empty(num)
    state = mix(np.uint64(key) + np.uint64(num_samples + 1) * U_GAMMA)
    for i in range(num):
        state += U_GAMMA
        shares[i] = (i + np.float64(mix(state) >> np.uint64(40)) * 2.0**-24) / num
    return shares
