"""PPO's gradient by hand, for plain mlps and networks of sets, and its advantages in one loop over rows, on a CPU.

There, starting the hundred small operations of a loss and of its derivatives, or the dozen of a step of advantages,
takes several times as long as what they compute.

Letters: B rows.
"""

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from palestra.algorithms.parts.actor_critic import POLICY, VALUE, HeadedNet
from palestra.algorithms.parts.advantages import Experience, Sequences
from palestra.algorithms.parts.distributions import (
    HERMITE_NODES,
    HERMITE_WEIGHTS,
    LOG_ROOT_2_PI,
    Categorical,
    ClippedGaussian,
    SquashedGaussian,
)
from palestra.nets.kernels.learning import LearningNet, Pass, learning_net
from palestra.nets.kernels.mlp import Array
from palestra.players.player import Player
from palestra.runtime.compiling import inner, njit
from palestra.runtime.guard import Kernel

GRADIENT = Kernel(
    __name__,
    "ppo_gradient",
    mirrors=(
        *("gradient", "loss", "net.distribution_and_value", "net.forward"),
        *("net.head.distribution", "net.head.family.distribution"),
    ),
    # python -m benchmarks.kernels, row P2
    cost="autograd finds the gradients, and PPO in 8 x CartPole-v1 takes 2.6 times as long",
)
ADVANTAGES = Kernel(
    __name__,
    "generalized_advantages",
    mirrors=("compute_advantages",),
    # python -m benchmarks.kernels, row P2
    cost="torch computes the advantages, and PPO in 8 x CartPole-v1 takes 1.4 times as long",
)
METRICS = ("loss", "policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "value_mean")
ROWS_AT_ONCE = 512  # the workspace of so many rows stays in a processor's cache
NODES = np.array(HERMITE_NODES, dtype=np.float32)
WEIGHTS = np.array(HERMITE_WEIGHTS, dtype=np.float32) / np.float32(np.sqrt(2.0 * np.pi))
LOG_2 = float(np.log(2.0))


class Rows(NamedTuple):
    """The columns of an Experience, as arrays."""

    legal: Array
    action: Array
    log_prob: Array
    value: Array
    advantage: Array
    value_target: Array
    weight: Array
    role: Array


class Terms(NamedTuple):
    """The numbers of the loss of one minibatch.

    clip_range, value_clip: inf if nothing is clipped. kl_coefficient: 0 without a penalty. total_weight: the sum over
    all rows. mean, scale: float64 (roles,), by which advantages are normalized to (advantage - mean) * scale.
    """

    clip_range: float
    kl_coefficient: float
    entropy_coefficient: float
    value_clip: float
    value_coefficient: float
    total_weight: float
    mean: Array
    scale: Array


class Arrays(NamedTuple):
    """An experience as arrays.

    inputs: what the first layer of each network reads, float32 (M, ...); only one array if all observe the same.
    """

    inputs: list[Array]
    rows: Rows


class PPOGradient:
    """The gradient of the clipped or KL-penalized surrogate, the value's squared error and the entropy.

    nets: of the policy and of the value, or the one network that both share. log_std: a head's own weights, whose
    gradient follows those of the networks; None for discrete actions. roles: those of the player.
    """

    def __init__(
        self,
        nets: list[LearningNet],
        family: Categorical | ClippedGaussian | SquashedGaussian,
        log_std: Tensor | None,
        roles: tuple[str, ...],
    ) -> None:
        self.nets, self.roles = nets, roles
        self.num_inputs = 1 if all(net.spaces == nets[0].spaces for net in nets) else len(nets)
        num_weights = sum(len(net.weights) for net in nets)
        self.gradient = torch.zeros(num_weights + (0 if log_std is None else len(log_std)))
        self.by_weights, self.by_log_std = np.split(self.gradient.numpy(), [num_weights])
        self.nums = np.array(family.nums) if isinstance(family, Categorical) else None
        self.log_std = None if log_std is None else log_std.detach().numpy()
        self.half_width = family.half_width.numpy() if isinstance(family, SquashedGaussian) else np.zeros(0, np.float32)

    def read(self, experience: Experience) -> Arrays:
        """Read an experience once for all passes over it."""
        observation, _, _, *columns = experience
        inputs = [net.read(observation) for net in self.nets[: self.num_inputs]]
        return Arrays(inputs, Rows(*(column.numpy() for column in columns)))

    def __call__(
        self,
        arrays: Arrays,
        index: Array,
        clip_range: float,
        kl_coefficient: float,
        entropy_coefficient: float,
        value_clip: float | None,
        value_coefficient: float,
        normalize_advantages: bool,
    ) -> tuple[Tensor, dict[str, float]]:
        """Return the gradient of the minibatch of rows `index` by all weights, and metrics.

        The next call overwrites the gradient.
        """
        index, total, totals, mean, scale = _normalization(arrays.rows, index, len(self.roles), normalize_advantages)
        limit = math.inf if value_clip is None else value_clip
        terms = Terms(clip_range, kl_coefficient, entropy_coefficient, limit, value_coefficient, total, mean, scale)
        sums = np.zeros((len(self.roles), len(METRICS)))
        self.by_log_std[:] = 0.0
        if not len(index):
            self.by_weights[:] = 0.0
        for start in range(0, len(index), ROWS_AT_ONCE):
            part = index[start : start + ROWS_AT_ONCE]
            inputs = [x[part] for x in arrays.inputs]
            passed = Pass(self.nets, inputs * (len(self.nets) // self.num_inputs))
            output_grads = [np.empty_like(outputs) for outputs in passed.outputs]
            ends = (part, passed.outputs[0], passed.outputs[-1], output_grads[0], output_grads[-1], sums)
            if self.nums is not None:
                _discrete_grads(arrays.rows, terms, self.nums, *ends)
            else:
                _box_grads(arrays.rows, terms, self.log_std, self.half_width, self.by_log_std, *ends)
            passed.backward(output_grads, self.by_weights, adds=start > 0)
            passed.release()
        of_all = sums[0] if len(sums) == 1 else sums.sum(axis=0)
        metrics = dict(zip(METRICS, of_all.tolist(), strict=True))
        if len(self.roles) > 1:
            means = sums * (total / np.maximum(totals, 1.0))[:, np.newaxis]
            for role, own in zip(self.roles, means.tolist(), strict=True):
                metrics |= {f"{name}/{role}": value for name, value in zip(METRICS, own, strict=True)}
        return self.gradient, metrics


def gradient_of(net: HeadedNet, player: Player) -> PPOGradient | None:
    """Make the kernel for the networks; None if it cannot compute them, or if the player asks for no kernels."""
    nets = [net.net_of(head) for head in ((POLICY,) if net.is_shared else (POLICY, VALUE))]
    learning = [each for each in map(learning_net, nets) if each is not None]
    weights = [weight for part in (*nets, net.head) for weight in part.parameters()]
    is_whole = list(map(id, weights)) == list(map(id, net.parameters()))  # in the order of the kernel's gradient
    counts_all = getattr(net.head.family, "free", None) is None  # the kernel counts every number of a Box
    if not player.by_hand or len(learning) < len(nets) or not is_whole or not counts_all:
        return None
    return PPOGradient(learning, net.head.family, getattr(net.head, "log_std", None), player.roles)


@njit()
def _normalization(
    rows: Rows, index: Array, num_roles: int, normalize_advantages: bool
) -> tuple[Array, float, Array, Array, Array]:
    """Return the rows of a minibatch that count, the sum of their weights, at least 1, and numbers of each role.

    In games of turns half of the rows do not count. The numbers of each role, float64 (roles,), are the sum of the
    weights, the mean of the advantages, and the factor that normalizes these.
    """
    totals, mean, square = np.zeros(num_roles), np.zeros(num_roles), np.zeros(num_roles)
    counted, num = np.empty_like(index), 0
    for row in index:
        if rows.weight[row] > 0.0:
            counted[num] = row
            num += 1
        totals[rows.role[row]] += rows.weight[row]
        mean[rows.role[row]] += rows.weight[row] * rows.advantage[row]
    counted, total = counted[:num], max(totals.sum(), 1.0)
    if not normalize_advantages:
        return counted, total, totals, np.zeros(num_roles), np.ones(num_roles)
    mean /= np.maximum(totals, 1.0)
    for row in counted:
        square[rows.role[row]] += rows.weight[row] * (rows.advantage[row] - mean[rows.role[row]]) ** 2
    return counted, total, totals, mean, 1.0 / (np.sqrt(square / np.maximum(totals, 1.0)) + 1e-8)


@inner()
def _row_grads(
    rows: Rows, terms: Terms, row: int, log_prob: Any, entropy: Any, value: Any, sums: Array
) -> tuple[float, float]:
    """Return the derivatives of one row's loss by its log-probability and value, and add its metrics to `sums`."""
    weight, role = rows.weight[row] / terms.total_weight, rows.role[row]
    advantage = (rows.advantage[row] - terms.mean[role]) * terms.scale[role]
    log_ratio = log_prob - rows.log_prob[row]
    ratio = np.exp(log_ratio)
    kl = ratio - 1.0 - log_ratio
    clipped_ratio = min(max(ratio, 1.0 - terms.clip_range), 1.0 + terms.clip_range)
    surrogate = ratio * advantage - terms.kl_coefficient * kl
    by_log_prob = ratio * advantage - terms.kl_coefficient * (ratio - 1.0)
    if ratio * advantage > clipped_ratio * advantage:
        surrogate, by_log_prob = clipped_ratio * advantage, 0.0

    error = value - rows.value_target[row]
    by_value = 2.0 * error
    change = value - rows.value[row]
    clipped_error = rows.value[row] + min(max(change, -terms.value_clip), terms.value_clip) - rows.value_target[row]
    if clipped_error * clipped_error > error * error:
        error = clipped_error
        by_value = 2.0 * clipped_error if abs(change) <= terms.value_clip else 0.0

    loss = -surrogate + terms.value_coefficient * error * error - terms.entropy_coefficient * entropy
    sums[role, 0] += weight * loss
    sums[role, 1] -= weight * surrogate
    sums[role, 2] += weight * error * error
    sums[role, 3] += weight * entropy
    sums[role, 4] += weight * kl
    sums[role, 5] += weight * (ratio != clipped_ratio)
    sums[role, 6] += weight * value
    return -weight * by_log_prob, weight * terms.value_coefficient * by_value


@njit()
def _discrete_grads(
    rows: Rows,
    terms: Terms,
    nums: Array,
    index: Array,
    logits: Array,
    values: Array,
    by_logits: Array,
    by_values: Array,
    sums: Array,
) -> None:
    """Write the derivatives of the loss by logits, (B, sum(nums)) or one more column, and by values, the last one."""
    log_probs, entropies = np.zeros(logits.shape[1], dtype=np.float32), np.zeros(len(nums), dtype=np.float32)
    actions = rows.action.reshape(len(rows.weight), len(nums))
    for i, row in enumerate(index):
        log_prob, entropy, start = np.float32(0.0), np.float32(0.0), 0
        for k, num in enumerate(nums):
            top, total, entropies[k] = np.float32(-np.inf), np.float32(0.0), 0.0
            for a in range(start, start + num):
                if rows.legal[row, a]:
                    top = max(top, logits[i, a])
            for a in range(start, start + num):
                if rows.legal[row, a]:
                    total += np.exp(logits[i, a] - top)
            shift = top + np.log(total)
            for a in range(start, start + num):
                if rows.legal[row, a]:
                    log_probs[a] = logits[i, a] - shift
                    entropies[k] -= np.exp(log_probs[a]) * log_probs[a]
            log_prob += log_probs[start + actions[row, k]]
            entropy += entropies[k]
            start += num
        by_log_prob, by_value = _row_grads(rows, terms, row, log_prob, entropy, values[i, -1], sums)
        by_entropy, start = -terms.entropy_coefficient * rows.weight[row] / terms.total_weight, 0
        for k, num in enumerate(nums):
            for a in range(start, start + num):
                by_logit = 0.0
                if rows.legal[row, a]:
                    p = np.exp(log_probs[a])
                    taken = 1.0 if a == start + actions[row, k] else 0.0
                    by_logit = by_log_prob * (taken - p) - by_entropy * p * (log_probs[a] + entropies[k])
                by_logits[i, a] = by_logit
            start += num
        by_values[i, -1] = by_value


@njit(error_model="numpy")  # as torch, which gives a loss that is no number for a deviation of 0
def _box_grads(
    rows: Rows,
    terms: Terms,
    log_std: Array,
    half_width: Array,
    by_log_std: Array,
    index: Array,
    means: Array,
    values: Array,
    by_means: Array,
    by_values: Array,
    sums: Array,
) -> None:
    """Write the derivatives of the loss by means, (B, n) or one more column, and by values; add those by log_std, (n,).

    half_width: (n,) if actions are squashed, else empty.
    """
    std, is_squashed = np.exp(log_std), len(half_width) > 0
    for i, row in enumerate(index):
        log_prob, entropy = 0.0, 0.0
        by_entropy = -terms.entropy_coefficient * rows.weight[row] / terms.total_weight
        for k in range(len(log_std)):
            noise = (rows.action[row, k] - means[i, k]) / std[k]
            log_prob -= 0.5 * noise * noise + log_std[k] + LOG_ROOT_2_PI
            entropy += log_std[k] + LOG_ROOT_2_PI + 0.5
            by_means[i, k] = 0.0
            if is_squashed:
                log_prob -= _log_derivative(rows.action[row, k], half_width[k])
                for node, weight in zip(NODES, WEIGHTS):  # noqa: B905
                    value = means[i, k] + std[k] * node
                    entropy += weight * _log_derivative(value, half_width[k])
                    by_value = -2.0 * weight * np.tanh(value)
                    by_means[i, k] += by_entropy * by_value
                    by_log_std[k] += by_entropy * by_value * std[k] * node
        by_log_prob, by_value = _row_grads(rows, terms, row, log_prob, entropy, values[i, -1], sums)
        for k in range(len(log_std)):
            noise = (rows.action[row, k] - means[i, k]) / std[k]
            by_means[i, k] += by_log_prob * noise / std[k]
            by_log_std[k] += by_log_prob * (noise * noise - 1.0) + by_entropy
        by_values[i, -1] = by_value


@inner()
def _log_derivative(value: float, half_width: float) -> float:
    """Return log(half_width * (1 - tanh(value)^2)), as SquashedGaussian does."""
    softplus = max(-2.0 * value, 0.0) + np.log1p(np.exp(-abs(2.0 * value)))
    return np.log(half_width) + 2.0 * (LOG_2 - value - softplus)


# ---- advantages ---------------------------------------------------------------------------------------


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
