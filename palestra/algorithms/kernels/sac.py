"""SAC's gradients by hand, for plain mlps on a CPU and actions of a Box: there, starting the operations of the losses
and of their derivatives costs a third of what the networks compute.

The numbers are those of `SAC.critic_gradient`, `SAC.policy_gradient` and autograd, up to rounding; a test compares
them. Who changes a loss changes it in sac.py alone: this file is left out where its numbers are others (`agrees`).
"""

from typing import TYPE_CHECKING, Any

import numba
import numpy as np
import torch
from torch import Tensor

from palestra.algorithms.parts.distributions import LOG_ROOT_2_PI
from palestra.games.spaces import Box
from palestra.nets.inputs import made_up
from palestra.nets.kernels.learning import LearningMLP
from palestra.nets.kernels.mlp import Array
from palestra.randomness import fold, random_normals
from palestra.rollouts.transitions import Transitions

if TYPE_CHECKING:
    from palestra.algorithms.sac import SAC

LOG_2 = float(np.log(2.0))
NUM_ROWS_COMPARED = 40


def by_hand_of(sac: "SAC") -> "ByHand | None":
    """What finds the gradients without autograd, where networks, actions and losses allow it."""
    policy, critics, targets = sac.policy_net.learning_mlps, sac.critics.learning_mlps, sac.targets.learning_mlps
    if policy is None or critics is None or targets is None or not isinstance(sac.player.action_space, Box):
        return None
    head: Any = sac.head  # a BoxHead, then
    box = (head.center, head.half_width)
    by_hand = ByHand(policy[0], critics, targets, head.log_std, box, sac.config.gamma)
    return by_hand if agrees(by_hand, sac) else None


def agrees(by_hand: "ByHand", sac: "SAC") -> bool:
    """Whether its gradients are those of the losses as they stand in sac.py, on a batch made up: a loss that was
    changed there is the one that is learned."""
    keys, num = torch.arange(NUM_ROWS_COMPARED), sac.head.num_noise
    noise, no_flags = random_normals(keys, 2 * num + 1), torch.zeros(NUM_ROWS_COMPARED, 0, dtype=torch.bool)
    alpha = torch.tensor(0.3)
    batch = Transitions(
        observation=made_up(sac.player.spaces, fold(keys, 0)),
        action=sac.head.uniform(no_flags, fold(keys, 1)),
        reward=noise[:, -1],
        next_observation=made_up(sac.player.spaces, fold(keys, 2)),
        next_legal=no_flags,
        terminated=keys % 5 == 0,
        truncated=keys % 7 == 0,
        valid=torch.ones_like(keys, dtype=torch.bool),
        extras={"legal": no_flags},
    )
    for size in (0.01, 1.0, 100.0):
        batch.reward = size * noise[:, -1]
        for name, drawn in (("critic_gradient", noise[:, :num]), ("policy_gradient", noise[:, num : 2 * num])):
            wanted, found = (getattr(way, name)(batch, drawn.contiguous(), alpha)[0] for way in (sac, by_hand))
            if not torch.allclose(found, wanted, rtol=1e-3, atol=1e-4 * float(wanted.abs().max())):
                return False
    return True


class ByHand:
    """Twins of the networks; the critics see the action last. low, high: bounds of log standard deviations. center,
    half_width: of the Box, float32 (n,)."""

    def __init__(
        self,
        policy: LearningMLP,
        critics: list[LearningMLP],
        targets: list[LearningMLP],
        log_std: tuple[float, float],
        box: tuple[Tensor, Tensor],
        gamma: float,
    ) -> None:
        self.policy, self.critics, self.targets = policy, critics, targets
        self.low, self.high = log_std
        self.center, self.half_width = (part.numpy() for part in box)
        self.gamma = gamma

    def critic_gradient(self, batch: Transitions, noise: Tensor, alpha: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """As SAC's."""
        next_x = self.policy.read(batch.next_observation)
        action, log_prob = _draw(self.policy.outputs(next_x), noise.numpy(), self.low, self.high)
        next_x = np.hstack([next_x, action])
        next_q = _stacked([target.outputs(next_x) for target in self.targets])
        unit = (batch.action.numpy() - self.center) / self.half_width
        x = np.hstack([self.policy.read(batch.observation), unit])
        passes = [critic.forward(x) for critic in self.critics]
        q = _stacked([outputs for outputs, _ in passes])
        output_grads = np.empty_like(q)
        rest: Any = (batch.reward.numpy(), batch.terminated.numpy(), alpha.item(), self.gamma, output_grads)
        loss = _critic_output_grads(q, next_q, log_prob, *rest)
        gradient, start = torch.empty(sum(len(critic.weights) for critic in self.critics)), 0
        for critic, (_, workspace), output_grad in zip(self.critics, passes, output_grads, strict=True):
            part = gradient.numpy()[start : start + len(critic.weights)]
            critic.backward(output_grad[:, None], x, workspace, part, adds=False)
            critic.release(workspace)
            start += len(part)
        return gradient, {"critic_loss": torch.tensor(loss), "q_mean": torch.tensor(float(q.mean()))}

    def policy_gradient(
        self, batch: Transitions, noise: Tensor, alpha: Tensor
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """As SAC's."""
        policy, num_rows, num = self.policy, *noise.shape
        x = policy.read(batch.observation)
        outputs, policy_workspace = policy.forward(x)
        action, log_prob = _draw(outputs, noise.numpy(), self.low, self.high)
        passes = [critic.forward(np.hstack([x, action])) for critic in self.critics]
        q = _stacked([values for values, _ in passes])
        least, action_grads = q.argmin(axis=0), np.zeros_like(action)
        for number, (critic, (_, workspace)) in enumerate(zip(self.critics, passes, strict=True)):
            output_grads = np.where(least == number, np.float32(-1.0 / num_rows), np.float32(0.0))
            action_grads += critic.backward_to_inputs(output_grads[:, None], workspace)[:, -num:]
            critic.release(workspace)
        numbers = (alpha.item(), self.low, self.high)
        output_grads = _policy_output_grads(outputs, noise.numpy(), action, action_grads, *numbers)
        gradient, entropy = torch.empty(len(policy.weights)), torch.tensor(-log_prob.mean())
        policy.backward(output_grads, x, policy_workspace, gradient.numpy(), adds=False)
        policy.release(policy_workspace)
        loss = -float(q.min(axis=0).mean()) - alpha.item() * float(entropy)
        return gradient, entropy, {"policy_loss": torch.tensor(loss), "entropy": entropy}


def _stacked(outputs: list[Array]) -> Array:
    """(critics, B) of (B, 1) each."""
    return np.hstack(outputs).T.copy()


@numba.njit(cache=True, nogil=True)
def _draw(outputs: Array, noise: Array, low: float, high: float) -> tuple[Array, Array]:
    """Actions in half-widths (B, n), and their log-probabilities (B,), of means and log standard deviations (B, 2n)."""
    num_rows, num = noise.shape
    action, log_probs = np.empty((num_rows, num), np.float32), np.empty(num_rows, np.float32)
    for row in range(num_rows):
        log_prob = 0.0
        for k in range(num):
            log_std = min(max(outputs[row, num + k], low), high)
            value = outputs[row, k] + np.exp(log_std) * noise[row, k]
            log_slope = 2.0 * (LOG_2 - value - max(-2.0 * value, 0.0) - np.log1p(np.exp(-abs(2.0 * value))))
            log_prob -= 0.5 * noise[row, k] ** 2 + log_std + LOG_ROOT_2_PI + log_slope
            action[row, k] = np.tanh(value)
        log_probs[row] = log_prob
    return action, log_probs


@numba.njit(cache=True, nogil=True)
def _critic_output_grads(
    q: Array,
    next_q: Array,
    next_log_prob: Array,
    reward: Array,
    terminated: Array,
    alpha: float,
    gamma: float,
    output_grads: Array,
) -> float:
    """The derivatives of the critics' loss by their values, (critics, B), into `output_grads`; gives the loss."""
    loss, num_rows = 0.0, q.shape[1]
    for row in range(num_rows):
        value_target = float(reward[row])
        if not terminated[row]:
            value_target += gamma * (next_q[:, row].min() - alpha * next_log_prob[row])
        for critic in range(len(q)):
            error = q[critic, row] - value_target
            output_grads[critic, row] = error / num_rows
            loss += 0.5 * error * error / num_rows
    return loss


@numba.njit(cache=True, nogil=True)
def _policy_output_grads(
    outputs: Array, noise: Array, action: Array, action_grads: Array, alpha: float, low: float, high: float
) -> Array:
    """The derivatives of the policy's loss by means and log standard deviations, (B, 2n).

    action_grads: those of the critics' part. That of log pi by the value before the tanh is 2 * action.
    """
    num_rows, num = noise.shape
    entropy_grad, output_grads = alpha / num_rows, np.empty((num_rows, 2 * num), np.float32)
    for row in range(num_rows):
        for k in range(num):
            a, raw = action[row, k], outputs[row, num + k]
            value_grad = action_grads[row, k] * (1.0 - a * a) + entropy_grad * 2.0 * a
            output_grads[row, k] = value_grad
            log_std_grad = value_grad * np.exp(min(max(raw, low), high)) * noise[row, k] - entropy_grad
            output_grads[row, num + k] = log_std_grad if low <= raw <= high else 0.0
    return output_grads
