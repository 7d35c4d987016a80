"""Exploration by name, for players that value every action: how one is chosen by its value."""

from typing import Annotated, Literal

import numba
import numpy as np
import torch
from torch import Tensor

from palestra.config import ByName, Config
from palestra.nets.kernels.mlp import evaluate
from palestra.randomness import U_GAMMA, choice, fold, mix, random_choice, random_floats, runs_on_cpu
from palestra.schedules import Schedule, ScheduleConfig


def best_legal(q: Tensor, legal: Tensor) -> Tensor:
    """The legal action of largest value: int64 (B,). q, legal: (B, actions). Rows without a legal action give 0."""
    return q.masked_fill(~legal, -torch.inf).argmax(dim=1)


class EpsilonGreedyConfig(Config):
    name: Literal["epsilon_greedy"]
    """the best legal action, and now and then a random legal one"""
    epsilon: ScheduleConfig
    """probability of a random one, a function of the player's opt steps"""

    @property
    def schedule(self) -> Schedule:
        return self.epsilon

    def choose(self, q: Tensor, legal: Tensor, keys: Tensor, epsilon: float) -> Tensor:
        """int64 (B,) of q float32 and legal bool (B, actions), keys int64 (B,)."""
        if runs_on_cpu(q):
            return torch.from_numpy(_choose_greedily(q.detach().numpy(), legal.numpy(), keys.numpy(), epsilon))
        explore = random_floats(fold(keys, 0), 1).squeeze(1) < epsilon
        return torch.where(explore, random_choice(fold(keys, 1), legal), best_legal(q, legal))


class SoftmaxConfig(Config):
    name: Literal["softmax"]
    """legal actions with probabilities in proportion to exp(value / temperature)"""
    temperature: ScheduleConfig
    """a function of the player's opt steps; 0: the best legal action"""

    @property
    def schedule(self) -> Schedule:
        return self.temperature

    def choose(self, q: Tensor, legal: Tensor, keys: Tensor, temperature: float) -> Tensor:
        """int64 (B,) of q float32 and legal bool (B, actions), keys int64 (B,)."""
        uniforms = random_floats(keys, q.shape[1]) + 2.0**-25  # the middles of the intervals: never 0, nor 1
        gumbel = -torch.log(-torch.log(uniforms))  # the largest of q / t + gumbel has the law of the softmax
        return best_legal(q + temperature * gumbel, legal)


ExplorationConfig = Annotated[EpsilonGreedyConfig | SoftmaxConfig, ByName()]


@numba.njit(cache=True, nogil=True)
def choose_by_mlp(
    x: np.ndarray,
    weights: np.ndarray,
    moments: np.ndarray | None,
    widths: np.ndarray,
    norms: np.ndarray,
    eps: np.float32,
    is_tanh: bool,
    legal: np.ndarray,
    keys: np.ndarray,
    epsilon: float,
) -> np.ndarray:
    """`EpsilonGreedyConfig.choose` by what `evaluate` gives: with few worlds, to start two kernels costs more than both
    compute."""
    return _choose_greedily(evaluate(x, weights, moments, widths, norms, eps, is_tanh), legal, keys, epsilon)


@numba.njit(cache=True, nogil=True)
def _choose_greedily(q: np.ndarray, legal: np.ndarray, keys: np.ndarray, epsilon: float) -> np.ndarray:
    """`EpsilonGreedyConfig.choose` on a CPU: one loop over the worlds instead of a dozen operations."""
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
