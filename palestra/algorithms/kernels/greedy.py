"""Epsilon-greedy choices on a CPU: one loop over the worlds, or one kernel for a plain mlp and the choice.

With few worlds, to start the dozen operations of a choice costs more than a small network computes.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from palestra.nets.kernels.acting import ActingMLP
from palestra.nets.kernels.mlp import Array, evaluate
from palestra.randomness import U_GAMMA, choice, mix
from palestra.runtime.compiling import njit
from palestra.runtime.guard import Kernel

# What they cost: python -m benchmarks.kernels
CHOICE = Kernel(
    __name__,
    "greedy_choice",
    mirrors=("config.exploration.choose",),
    cost="torch chooses the actions, which takes 2.3 times as long in 8 worlds, 1.2 times in 1024",
)
KERNEL = Kernel(
    __name__,
    "greedy_mlp",
    mirrors=("values", "q_values", "outputs", "config.exploration.choose"),
    cost="values and choices take two kernels, 1.4 times as long in 8 worlds, 1.1 times in 1024",
)


class Greedy:
    """Chooses by values that are given. values: of observations, float32 (B, A) on a CPU."""

    def __init__(self, values: Callable[[Any], Tensor]) -> None:
        self.values = values

    def __call__(self, observation: Mapping[str, Tensor], legal: Tensor, keys: Tensor, epsilon: float) -> Tensor:
        """The actions: int64 (B,)."""
        q = self.values(observation).detach().numpy()
        return torch.from_numpy(choose(q, legal.numpy(), keys.numpy(), epsilon))


class GreedyMLP(Greedy):
    """Chooses by the outputs of a plain mlp, which are the `values`."""

    def __init__(self, mlp: ActingMLP, values: Callable[[Any], Tensor]) -> None:
        super().__init__(values)
        self.mlp = mlp

    def __call__(self, observation: Mapping[str, Tensor], legal: Tensor, keys: Tensor, epsilon: float) -> Tensor:
        """The actions: int64 (B,)."""
        arguments = self.mlp.arguments(observation)
        if arguments is None:
            return super().__call__(observation, legal, keys, epsilon)
        return torch.from_numpy(choose_by_mlp(*arguments, legal.numpy(), keys.numpy(), epsilon))


@njit()
def choose_by_mlp(
    x: Array,
    weights: Array,
    moments: Array | None,
    widths: Array,
    norms: Array,
    eps: np.float32,
    is_tanh: bool,
    legal: Array,
    keys: Array,
    epsilon: float,
) -> Array:
    """`choose` by what `evaluate` gives."""
    return choose(evaluate(x, weights, moments, widths, norms, eps, is_tanh), legal, keys, epsilon)


@njit()
def choose(q: Array, legal: Array, keys: Array, epsilon: float) -> Array:
    """The legal action of largest value, or with probability epsilon a random one: int64 (B,)."""
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
