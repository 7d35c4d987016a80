"""Epsilon-greedy choices on a CPU, in one loop over the worlds.

With few worlds, starting the dozen operations of a choice takes longer than a small network.
"""

import numpy as np
import torch
from torch import Tensor

from palestra.nets.kernels.mlp import Array
from palestra.randomness import U_GAMMA, choice, mix
from palestra.runtime.compiling import njit
from palestra.runtime.guard import Kernel

KERNEL = Kernel(
    __name__,
    "greedy_choice",
    mirrors=("config.exploration.choose",),
    # python -m benchmarks.kernels, row P4
    cost="torch chooses the actions, and DQN in one CartPole-v1 takes 1.4 times as long",
)


def choose(q_values: Tensor, legal: Tensor, keys: Tensor, epsilon: float) -> Tensor:
    """Choose as `EpsilonGreedyConfig.choose` does, on a CPU."""
    return torch.from_numpy(_choose_greedily(q_values.detach().numpy(), legal.numpy(), keys.numpy(), epsilon))


@njit()
def _choose_greedily(q: Array, legal: Array, keys: Array, epsilon: float) -> Array:
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
