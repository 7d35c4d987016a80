"""DQN's gradient by hand, for plain mlps on a CPU that tell of every action what it is worth: there, starting the
operations of a loss and of its derivatives costs several times what they compute.

The numbers are those of `dqn.td_target`, `dqn.td_loss` and autograd, up to rounding; a test compares them for every
variant. Who changes the loss changes it there alone: this file is left out where its numbers are others (`agrees`).
"""

from typing import TYPE_CHECKING, Any

import numba
import numpy as np
import torch
from torch import Tensor

from palestra.algorithms.parts.return_distributions import ExpectedConfig
from palestra.nets.inputs import made_up
from palestra.nets.kernels.learning import MLPTwin
from palestra.nets.kernels.mlp import Array
from palestra.players.player import Metrics
from palestra.randomness import fold, random_floats, random_normals
from palestra.rollouts.transitions import Transitions

if TYPE_CHECKING:
    from palestra.algorithms.dqn import DQN

NUM_ROWS_COMPARED = 40
NO_NUMBERS = np.empty(0, np.float32)


def by_hand_of(dqn: "DQN") -> "ByHand | None":
    """What finds the gradient without autograd, where networks and loss allow it."""
    config, online, target = dqn.config, dqn.q.by_hand, dqn.target.by_hand
    if online is None or target is None or not isinstance(config.value, ExpectedConfig) or config.dueling:
        return None
    by_hand = ByHand(online[0], target[0], config.double, config.gamma, config.value.huber_delta)
    return by_hand if agrees(by_hand, dqn) else None


def agrees(by_hand: "ByHand", dqn: "DQN") -> bool:
    """Whether its gradients are those of the loss as it stands in dqn.py, on a batch made up: a loss that was changed
    there is the one that is learned."""
    keys, num_actions = torch.arange(NUM_ROWS_COMPARED), dqn.player.action_space.num_flags
    noise, size = random_normals(keys, 4), 10.0 ** (keys % 5 - 2)
    spaces = dqn.player.spaces
    batch = Transitions(
        observation=made_up(spaces, fold(keys, 0)),
        action=as_stored(keys % num_actions),
        reward=as_stored(size * noise[:, 0]),  # beyond a parabola's reach, on both sides
        next_observation=made_up(spaces, fold(keys, 1)),
        next_legal=as_stored((random_floats(fold(keys, 2), num_actions) < 0.7) | (noise[:, :1] < 0.0)),
        terminated=as_stored(keys % 3 == 0),
        truncated=keys % 7 == 0,
        valid=torch.ones_like(keys, dtype=torch.bool),
        extras={"weight": noise[:, 1].abs() / size, "discount": noise[:, 2].abs()},  # all rows count alike
    )
    wanted, surprise, _ = dqn.gradient(batch)
    found, own_surprise, _ = by_hand.find_gradient(batch)
    close = torch.allclose(found, wanted, rtol=1e-3, atol=1e-4 * float(wanted.abs().max()))
    return close and torch.allclose(own_surprise, surprise, rtol=1e-3, atol=1e-4)


def as_stored(column: Tensor) -> Tensor:
    """The column as a replay buffer gives it, between others: numba compiles a kernel for each layout that it meets."""
    return torch.stack((column, column), dim=-1)[..., 0]


class ByHand:
    """online, target: twins of the two networks. is_double: the online network chooses the next action."""

    def __init__(self, online: MLPTwin, target: MLPTwin, is_double: bool, gamma: float, huber_delta: float) -> None:
        self.online, self.target, self.is_double = online, target, is_double
        self.gamma, self.huber_delta = np.float32(gamma), np.float32(huber_delta)

    def find_gradient(self, batch: Transitions) -> tuple[Tensor, Tensor, Metrics]:
        """The gradient of the loss with respect to all weights, how much every row surprises, and metrics."""
        online, target, extras = self.online, self.target, batch.extras
        next_x = online.read(batch.next_observation)
        next_target = target.outputs(next_x)
        next_online = online.outputs(next_x) if self.is_double else next_target
        x = online.read(batch.observation)
        told, room = online.forward(x)
        slopes, surprise = np.zeros_like(told), np.empty(len(told), np.float32)
        discounts, weights = (extras[name].numpy() if name in extras else NO_NUMBERS for name in ("discount", "weight"))
        columns: Any = (column.numpy() for column in (batch.action, batch.reward, batch.terminated, batch.next_legal))
        told_of: Any = (told, next_online, next_target)
        rest: Any = (discounts, self.gamma, weights, self.huber_delta, slopes, surprise)
        means = _slopes(*columns, *told_of, *rest)
        gradient = torch.empty(len(online.weights))
        online.backward(slopes, x, room, gradient.numpy(), adds=False)
        online.release(room)
        metrics = dict(zip(("loss", "q_mean", "td_error"), means, strict=True))
        return gradient, torch.from_numpy(surprise), metrics


@numba.njit(cache=True, nogil=True)
def _slopes(
    action: Array,
    reward: Array,
    terminated: Array,
    next_legal: Array,
    told: Array,
    next_online: Array,
    next_target: Array,
    discounts: Array,
    gamma: np.float32,
    weights: Array,
    huber_delta: np.float32,
    slopes: Array,
    surprise: Array,
) -> tuple[float, float, float]:
    """The derivatives of the mean loss by what was told, (B, A), into `slopes`, which is 0; TD errors into `surprise`.
    Gives the means of loss, value and size of the TD error. discounts, weights: (B,), or empty where all have gamma,
    or 1."""
    num, loss, value, size = len(action), 0.0, 0.0, 0.0
    for row in range(num):
        goal = reward[row]
        if not terminated[row]:
            best, most = 0, np.float32(-np.inf)
            for a in range(next_online.shape[1]):
                if next_legal[row, a] and next_online[row, a] > most:
                    best, most = a, next_online[row, a]
            goal += (discounts[row] if len(discounts) else gamma) * next_target[row, best]
        error = told[row, action[row]] - goal
        weight = weights[row] if len(weights) else np.float32(1.0)
        held = min(max(error, -huber_delta), huber_delta)
        loss += weight * held * (error - np.float32(0.5) * held)
        value += told[row, action[row]]
        size += abs(error)
        surprise[row] = error
        slopes[row, action[row]] = weight * held / np.float32(num)
    return loss / num, value / num, size / num
