"""Generalized advantages on a CPU, in one loop over rows.

Starting a dozen operations of torch at every step of a roll-out takes hundreds of times as long as what they compute.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from palestra.algorithms.parts.advantages import Sequences
from palestra.nets.kernels.mlp import Array
from palestra.runtime.compiling import njit
from palestra.runtime.guard import Kernel

KERNEL = Kernel(
    __name__,
    "generalized_advantages",
    mirrors=("compute_advantages",),
    # python -m benchmarks.kernels, row P2
    cost="torch computes the advantages, and PPO in 8 x CartPole-v1 takes 1.4 times as long",
)


def compute_advantages(sequences: Sequences, gamma: float, gae_lambda: float) -> tuple[Tensor, Tensor]:
    """Compute what PPO's method of this name computes; but sums are float64 before they are rounded."""
    arrays: Any = (column.numpy() for column in sequences)
    advantage = torch.from_numpy(_loop_over_rows(Sequences(*arrays), gamma, gae_lambda))
    return advantage, advantage + sequences.value


@njit()
def _loop_over_rows(sequences: Any, gamma: float, gae_lambda: float) -> Array:
    """Return the advantages, float32 (T, W), of Sequences of arrays."""
    num_steps, num_sequences = sequences.reward.shape
    advantages = np.zeros((num_steps, num_sequences), dtype=np.float32)
    ahead, later = np.zeros(num_sequences, dtype=np.float32), np.zeros(num_sequences, dtype=np.float32)
    is_last = np.ones(num_sequences, dtype=np.bool_)
    for t in range(num_steps - 1, -1, -1):
        for w in range(num_sequences):
            if sequences.valid[t, w]:
                advantage = sequences.reward[t, w] - sequences.value[t, w]
                if not sequences.terminated[t, w]:
                    is_cut = sequences.truncated[t, w] or is_last[w]
                    following = sequences.next_value[t, w] if is_cut else later[w] + gae_lambda * ahead[w]
                    advantage += gamma * following
                advantages[t, w] = advantage
                ahead[w], later[w], is_last[w] = advantage, sequences.value[t, w], False
    return advantages
