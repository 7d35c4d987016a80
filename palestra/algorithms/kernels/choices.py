"""Choices and draws of discrete actions on a CPU, in one loop over the worlds or rows.

With few worlds, starting the dozens of operations of a choice takes longer than all the rest of acting.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from palestra.algorithms.parts.distributions import Categorical
from palestra.nets.kernels.mlp import Array
from palestra.randomness import U_GAMMA, choice, mix
from palestra.runtime.compiling import njit
from palestra.runtime.guard import Kernel

GREEDY = Kernel(
    __name__,
    "greedy_choice",
    mirrors=("config.exploration.choose",),
    # python -m benchmarks.kernels, row P4
    cost="torch chooses the actions, and DQN in one CartPole-v1 takes 1.4 times as long",
)
CATEGORICAL = Kernel(
    __name__,
    "categorical_draw",
    mirrors=("net.head.draw", "net.head.family.sample"),
    # python -m benchmarks.kernels, row P2
    cost="torch draws the actions, and PPO in 8 x CartPole-v1 takes 1.6 times as long",
)


# ---- epsilon-greedy choices --------------------------------------------------------------------------


def choose_greedily(q_values: Tensor, legal: Tensor, keys: Tensor, epsilon: float) -> Tensor:
    """Choose as `EpsilonGreedyConfig.choose` does, on a CPU."""
    return torch.from_numpy(_greedy(q_values.detach().numpy(), legal.numpy(), keys.numpy(), epsilon))


@njit()
def _greedy(q: Array, legal: Array, keys: Array, epsilon: float) -> Array:
    """Choose the legal action of largest value, or with probability epsilon a random one: int64 (B,)."""
    chosen = np.zeros(len(q), dtype=np.int64)
    for world in range(len(q)):
        key = np.uint64(keys[world])
        uniform = np.float32(mix(mix(key + U_GAMMA) + U_GAMMA) >> np.uint64(40)) * np.float32(2.0**-24)
        if uniform < np.float32(epsilon):
            chosen[world] = choice(mix(key + U_GAMMA + U_GAMMA), legal[world])
            continue
        best = np.float32(-np.inf)
        for action in range(q.shape[1]):
            if legal[world, action] and q[world, action] > best:
                best, chosen[world] = q[world, action], action
    return chosen


# ---- draws of discrete and multi-discrete actions -----------------------------------------------------


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
        for k in range(num_choices):
            num = nums[k]
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
            chosen[row, k] = last
            log_prob[row] += (np.float32(0.0) if is_free else logits[row, start + last] - top) - np.log(total)
            start += num
    return chosen, log_prob
