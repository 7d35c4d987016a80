"""Q-learning's gradient by hand, for plain mlps and networks of sets on a CPU that give expected returns.

There, starting the operations of a loss and of its derivatives takes several times as long as what they compute.

Letters: B rows, A actions.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from palestra.nets.kernels.learning import LearningNet, Pass
from palestra.nets.kernels.mlp import Array
from palestra.players.player import Metrics
from palestra.rollouts.transitions import Transitions
from palestra.runtime.compiling import njit
from palestra.runtime.guard import Kernel

KERNEL = Kernel(
    __name__,
    "dqn_gradient",
    mirrors=(
        *("gradient", "next_outputs", "target", "loss", "priorities"),
        *("online.__call__", "online.gradient", "target_net.__call__", "acting.__call__"),
    ),
    # python -m benchmarks.kernels, row P4
    cost="autograd finds the gradients, and DQN in CartPole-v1 takes 1.4 to 1.8 times as long",
)
NO_NUMBERS = np.empty(0, np.float32)


class DQNGradient:
    """The gradient of the mean Huber loss of one-step or n-step TD errors, double or not, by the online network."""

    def __init__(self, online: LearningNet, target: LearningNet) -> None:
        self.online, self.target = online, target

    def __call__(
        self, batch: Transitions, is_double: bool, gamma: float, huber_delta: float
    ) -> tuple[Tensor, Metrics, Tensor]:
        """Return the gradient by all weights, the metrics, and the TD errors, (B,)."""
        online, target, extras = self.online, self.target, batch.extras
        next_x = online.read(batch.next_observation)
        next_target = target.outputs(next_x)
        next_online = online.outputs(next_x) if is_double else next_target
        passed = Pass([online], [online.read(batch.observation)])
        (q_values,) = passed.outputs
        output_grads, td_error = np.zeros_like(q_values), np.empty(len(q_values), np.float32)
        discounts, weights = (extras[name].numpy() if name in extras else NO_NUMBERS for name in ("discount", "weight"))
        columns: Any = (column.numpy() for column in (batch.action, batch.reward, batch.terminated, batch.next_legal))
        numbers: Any = (discounts, np.float32(gamma), weights, np.float32(huber_delta))
        means = _output_grads(*columns, q_values, next_online, next_target, *numbers, output_grads, td_error)
        gradient = torch.empty(len(online.weights))
        passed.backward([output_grads], gradient.numpy())
        passed.release()
        return gradient, dict(zip(("loss", "q_mean", "td_error"), means, strict=True)), torch.from_numpy(td_error)


@njit()
def _output_grads(
    action: Array,
    reward: Array,
    terminated: Array,
    next_legal: Array,
    q_values: Array,
    next_online: Array,
    next_target: Array,
    discounts: Array,
    gamma: np.float32,
    weights: Array,
    huber_delta: np.float32,
    output_grads: Array,
    td_error: Array,
) -> tuple[float, float, float]:
    """Write the derivatives of the mean loss by the Q-values into `output_grads`, (B, A) zeros, and the TD errors.

    Returns the means of the loss, the Q-value and the TD error's size. discounts, weights: (B,), or empty if every row
    has gamma, or 1.
    """
    num, loss, value, size = len(action), 0.0, 0.0, 0.0
    for row in range(num):
        value_target = reward[row]
        if not terminated[row]:
            best, most = 0, np.float32(-np.inf)
            for a in range(next_online.shape[1]):
                if next_legal[row, a] and next_online[row, a] > most:
                    best, most = a, next_online[row, a]
            value_target += (discounts[row] if len(discounts) else gamma) * next_target[row, best]
        error = q_values[row, action[row]] - value_target
        weight = weights[row] if len(weights) else np.float32(1.0)
        clipped = min(max(error, -huber_delta), huber_delta)
        loss += weight * clipped * (error - np.float32(0.5) * clipped)
        value += q_values[row, action[row]]
        size += abs(error)
        td_error[row] = error
        output_grads[row, action[row]] = weight * clipped / np.float32(num)
    return loss / num, value / num, size / num
