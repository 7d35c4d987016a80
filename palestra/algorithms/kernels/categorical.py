"""Draws of discrete and multi-discrete actions on a CPU, in one loop over the rows.

With few worlds, starting the dozens of operations of a draw takes longer than all the rest of acting.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from palestra.algorithms.parts.distributions import Categorical
from palestra.nets.kernels.mlp import Array
from palestra.randomness import U_GAMMA, mix
from palestra.runtime.compiling import njit
from palestra.runtime.guard import Kernel

KERNEL = Kernel(
    __name__,
    "categorical_draw",
    mirrors=("net.head.draw", "net.head.family.sample"),
    # python -m benchmarks.kernels, row P2
    cost="torch draws the actions, and PPO in 8 x CartPole-v1 takes 1.6 times as long",
)


class CategoricalDraw:
    """Draws as `DiscreteHead.draw` does, by the same uniform numbers: actions differ only where rounding decides."""

    def __init__(self, family: Categorical) -> None:
        self.nums, self.is_single = np.array(family.nums), family.is_single

    def __call__(self, outputs: Tensor, legal: Tensor, keys: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Draw actions; return them and the extras that learning from them needs. outputs: float32 (B, sum(nums))."""
        chosen, log_prob = _draw(outputs.detach().numpy(), legal.numpy(), keys.numpy(), self.nums)
        action = torch.from_numpy(chosen.ravel() if self.is_single else chosen)
        return action, {"log_prob": torch.from_numpy(log_prob)}


@njit()
def _draw(logits: Array, legal: Array, keys: Array, nums: Array) -> tuple[Any, Any]:
    """Draw actions, int64 (B, K), and return them and their log-probabilities, float32 (B,).

    Where no action is legal, all are equally likely.
    """
    num_rows, num_choices = len(keys), len(nums)
    chosen = np.zeros((num_rows, num_choices), dtype=np.int64)
    log_prob = np.zeros(num_rows, dtype=np.float32)
    weights = np.zeros(logits.shape[1], dtype=np.float32)  # of one choice, which needs no more
    for row in range(num_rows):
        x = np.uint64(keys[row])
        start = 0
        for choice in range(num_choices):
            num = nums[choice]
            x += U_GAMMA
            uniform = np.float32(mix(x) >> np.uint64(40)) * np.float32(2.0**-24)
            top = np.float32(-np.inf)
            for action in range(num):
                if legal[row, start + action] and logits[row, start + action] > top:
                    top = logits[row, start + action]
            is_free = top == -np.inf  # nothing is legal
            total = np.float32(0.0)
            for action in range(num):
                weights[action] = np.float32(1.0) if is_free else np.float32(0.0)
                if legal[row, start + action]:
                    weights[action] = np.exp(logits[row, start + action] - top)
                total += weights[action]
            left = uniform * total
            last = 0
            for action in range(num):
                if weights[action] > 0.0:
                    last = action
                    left -= weights[action]
                    if left < 0.0:
                        break
            chosen[row, choice] = last
            log_prob[row] += (np.float32(0.0) if is_free else logits[row, start + last] - top) - np.log(total)
            start += num
    return chosen, log_prob
