"""PPO's gradient by hand, for plain mlps on a CPU: there, starting the hundred small operations of a loss and of its
derivatives costs several times what they compute.

The numbers are those of `ppo.ppo_loss` and of autograd, up to rounding; a test compares them for every variant. Who
changes the loss changes it there alone: this file is left out where its numbers are others (`agrees`).
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numba
import numpy as np
import torch
from torch import Tensor

from palestra.algorithms.parts.actor_critic import BoxHead
from palestra.algorithms.parts.advantages import Experience, Pace
from palestra.algorithms.parts.distributions import (
    HERMITE_NODES,
    HERMITE_WEIGHTS,
    LOG_ROOT_2_PI,
    Categorical,
    SquashedGaussian,
)
from palestra.nets.inputs import made_up
from palestra.nets.kernels.learning import LearningMLP, learning_mlp
from palestra.randomness import fold, random_normals

if TYPE_CHECKING:
    from palestra.algorithms.ppo import PPO

Array = np.ndarray

NUM_ROWS_COMPARED = 40
ROWS_AT_ONCE = 512  # what a network remembers of so many rows stays in a processor's cache
NODES = np.array(HERMITE_NODES, dtype=np.float32)
WEIGHTS = np.array(HERMITE_WEIGHTS, dtype=np.float32) / np.float32(np.sqrt(2.0 * np.pi))
LOG_2 = float(np.log(2.0))


class Rows(NamedTuple):
    """The columns of an Experience, as arrays."""

    legal: Array
    choice: Array
    log_prob: Array
    value: Array
    advantage: Array
    goal: Array
    weight: Array


class Terms(NamedTuple):
    """What the loss of one minibatch is made of. value_clip: inf where values move freely."""

    is_clipped: bool
    bound: float
    value_clip: float
    value_coefficient: float
    entropy_coefficient: float
    total_weight: float
    advantage_shift: float
    advantage_scale: float


class Seen(NamedTuple):
    """An experience as arrays. x: what the first layers of the networks see, float32 (M, ...)."""

    x: Array
    rows: Rows


def by_hand_of(ppo: "PPO") -> "ByHand | None":
    """What finds the gradient without autograd, where networks and loss allow it."""
    config, net = ppo.config, ppo.net
    parts = ppo.gradient.split([sum(p.numel() for p in part.parameters()) for part in net.children()])
    nets = [net.policy] if net.value is None else [net.policy, net.value]
    if not ppo.player.by_hand:
        return None
    twins = [twin for twin in map(learning_mlp, nets) if twin is not None]
    if len(twins) < len(nets):
        return None
    terms = Terms(
        is_clipped=config.objective.name == "clip",
        bound=0.0,
        value_clip=math.inf if config.value_clip is None else config.value_clip,
        value_coefficient=config.value_coefficient,
        entropy_coefficient=0.0,
        total_weight=1.0,
        advantage_shift=0.0,
        advantage_scale=1.0,
    )
    log_std = net.head.log_std if isinstance(net.head, BoxHead) else None
    by_hand = ByHand(twins, parts, net.head.distribution, log_std, terms, config.normalize_advantages)
    return by_hand if agrees(by_hand, ppo) else None


@torch.no_grad()
def agrees(by_hand: "ByHand", ppo: "PPO") -> bool:
    """Whether its gradients are those of the loss as it stands in ppo.py, on a minibatch made up: a loss that was
    changed there is the one that is learned."""
    keys = torch.arange(NUM_ROWS_COMPARED)
    observation = made_up(ppo.player.spaces, fold(keys, 1))
    legal = torch.ones(NUM_ROWS_COMPARED, ppo.player.action_space.num_flags, dtype=torch.bool)
    fresh = torch.zeros(1, NUM_ROWS_COMPARED, dtype=torch.bool)
    outputs, value = ppo.net(observation, {}, fresh)
    action, drawn = ppo.net.head.draw(outputs.contiguous(), legal, fold(keys, 0))
    noise = random_normals(keys, 3)
    batch = Experience(
        observation=observation,
        memory={},
        fresh=fresh,
        legal=legal,
        choice=drawn.get("choice", action),
        log_prob=drawn["log_prob"] + 0.3 * noise[:, 0],  # beyond what is clipped, on both sides
        value=value + 0.3 * noise[:, 1],
        advantage=noise[:, 2].contiguous(),  # as an experience has it: or kernels would be compiled twice
        goal=value + noise[:, 1],
        weight=(keys % 5 > 0).float(),
    )
    with torch.enable_grad():
        wanted, _ = ppo.gradient_of(batch, Pace(torch.tensor(0.01), torch.tensor(0.2)))
    by_hand.find_gradient(by_hand.see(batch), keys.numpy(), 0.01, 0.2)
    return torch.allclose(ppo.gradient, wanted, rtol=1e-3, atol=1e-4 * float(wanted.abs().max()))


class ByHand:
    """Forward and backward passes over minibatches of one experience.

    twins: of the policy and of the value, or of a network that both share. parts: where their gradients belong, and
    last that of a head's own weights. log_std: of a box, else None.
    """

    def __init__(
        self,
        twins: list[LearningMLP],
        parts: Sequence[Tensor],
        distribution: Any,
        log_std: Tensor | None,
        terms: Terms,
        normalizes: bool,
    ) -> None:
        self.twins, self.terms, self.normalizes = twins, terms, normalizes
        *self.gradients, self.log_std_gradient = (part.numpy() for part in parts)
        self.is_discrete = isinstance(distribution, Categorical)
        if self.is_discrete:
            self.nums = np.array(distribution.nums)
        else:
            assert log_std is not None
            is_squashed = isinstance(distribution, SquashedGaussian)
            self.log_std = log_std.detach().numpy()
            self.half_width = distribution.half_width.numpy() if is_squashed else np.zeros(0, dtype=np.float32)

    def find_gradient(self, seen: Seen, index: Array, entropy_coefficient: float, bound: float) -> Array:
        """Write the gradient of one minibatch, the rows `index`; gives the sums of ppo.METRICS, float64 (7,)."""
        scale = _scale(seen.rows, index, self.normalizes)
        terms = self.terms._replace(
            bound=bound,
            entropy_coefficient=entropy_coefficient,
            total_weight=scale[0],
            advantage_shift=scale[1],
            advantage_scale=scale[2],
        )
        sums = np.zeros(7)
        self.log_std_gradient[:] = 0.0
        for start in range(0, len(index), ROWS_AT_ONCE):
            self._learn_part(seen, terms, index[start : start + ROWS_AT_ONCE], sums, adds=start > 0)
        return sums

    def _learn_part(self, seen: Seen, terms: Terms, part: Array, sums: Array, adds: bool) -> None:
        x = seen.x[part]
        passed = [twin.forward(x) for twin in self.twins]
        outputs = [output for output, _ in passed]
        slopes = [np.empty_like(output) for output in outputs]
        ends = (part, outputs[0], outputs[-1], slopes[0], slopes[-1], sums)
        if self.is_discrete:
            _discrete_slopes(seen.rows, terms, self.nums, *ends)
        else:
            _box_slopes(seen.rows, terms, self.log_std, self.half_width, self.log_std_gradient, *ends)
        for twin, slope, (_, room), gradient in zip(self.twins, slopes, passed, self.gradients, strict=False):
            twin.backward(slope, x, room, gradient, adds)
            twin.release(room)

    def see(self, experience: Experience) -> Seen:
        """What passes over an experience look at."""
        observation, _, _, *columns = experience
        return Seen(self.twins[0].read(observation), Rows(*(column.numpy() for column in columns)))


@numba.njit(cache=True, nogil=True)
def _scale(rows: Rows, index: Array, normalizes: bool) -> tuple[float, float, float]:
    """The sum of the weights of a minibatch, and what is taken from its advantages, and what they are scaled with."""
    total, mean, square = 0.0, 0.0, 0.0
    for row in index:
        total += rows.weight[row]
        mean += rows.weight[row] * rows.advantage[row]
    total = max(total, 1.0)
    if not normalizes:
        return total, 0.0, 1.0
    mean /= total
    for row in index:
        square += rows.weight[row] * (rows.advantage[row] - mean) ** 2
    return total, mean, 1.0 / (np.sqrt(square / total) + 1e-8)


@numba.njit(cache=True, nogil=True)
def _row_slopes(
    rows: Rows, terms: Terms, row: int, log_prob: Any, entropy: Any, value: Any, sums: Array
) -> tuple[float, float]:
    """The derivatives of one row's loss by its log-probability and by its value; adds its metrics to `sums`."""
    weight = rows.weight[row] / terms.total_weight
    advantage = (rows.advantage[row] - terms.advantage_shift) * terms.advantage_scale
    log_ratio = log_prob - rows.log_prob[row]
    ratio = np.exp(log_ratio)
    kl = ratio - 1.0 - log_ratio
    held = min(max(ratio, 1.0 - terms.bound), 1.0 + terms.bound)
    if not terms.is_clipped:
        gain = ratio * advantage - terms.bound * kl
        by_log_prob = ratio * advantage - terms.bound * (ratio - 1.0)
        held = ratio
    elif ratio * advantage <= held * advantage:
        gain = by_log_prob = ratio * advantage
    else:
        gain, by_log_prob = held * advantage, 0.0

    error = value - rows.goal[row]
    by_value = 2.0 * error
    moved = value - rows.value[row]
    near = rows.value[row] + min(max(moved, -terms.value_clip), terms.value_clip) - rows.goal[row]
    if near * near > error * error:
        error = near
        by_value = 2.0 * near if abs(moved) <= terms.value_clip else 0.0

    loss = -gain + terms.value_coefficient * error * error - terms.entropy_coefficient * entropy
    sums[0] += weight * loss
    sums[1] -= weight * gain
    sums[2] += weight * error * error
    sums[3] += weight * entropy
    sums[4] += weight * kl
    sums[5] += weight * (ratio != held)
    sums[6] += weight * value
    return -weight * by_log_prob, weight * terms.value_coefficient * by_value


@numba.njit(cache=True, nogil=True)
def _discrete_slopes(
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
    """The derivatives of the loss by logits, (B, sum(nums)) or one more column, and by values, the last column."""
    log_probs, entropies = np.zeros(logits.shape[1], dtype=np.float32), np.zeros(len(nums), dtype=np.float32)
    choices = rows.choice.reshape(len(rows.weight), len(nums))
    for i, row in enumerate(index):
        if rows.weight[row] == 0.0:
            by_logits[i], by_values[i] = 0.0, 0.0
            continue
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
            log_prob += log_probs[start + choices[row, k]]
            entropy += entropies[k]
            start += num
        by_log_prob, by_value = _row_slopes(rows, terms, row, log_prob, entropy, values[i, -1], sums)
        by_entropy, start = -terms.entropy_coefficient * rows.weight[row] / terms.total_weight, 0
        for k, num in enumerate(nums):
            for a in range(start, start + num):
                slope = 0.0
                if rows.legal[row, a]:
                    p = np.exp(log_probs[a])
                    taken = 1.0 if a == start + choices[row, k] else 0.0
                    slope = by_log_prob * (taken - p) - by_entropy * p * (log_probs[a] + entropies[k])
                by_logits[i, a] = slope
            start += num
        by_values[i, -1] = by_value


@numba.njit(cache=True, nogil=True)
def _box_slopes(
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
    """The same by means, (B, n) or one more column; adds those by log_std, (n,). half_width: (n,) if squashed, else
    empty."""
    std, is_squashed = np.exp(log_std), len(half_width) > 0
    for i, row in enumerate(index):
        if rows.weight[row] == 0.0:
            by_means[i], by_values[i] = 0.0, 0.0
            continue
        log_prob, entropy = 0.0, 0.0
        by_entropy = -terms.entropy_coefficient * rows.weight[row] / terms.total_weight
        for k in range(len(log_std)):
            noise = (rows.choice[row, k] - means[i, k]) / std[k]
            log_prob -= 0.5 * noise * noise + log_std[k] + LOG_ROOT_2_PI
            entropy += log_std[k] + LOG_ROOT_2_PI + 0.5
            by_means[i, k] = 0.0
            if is_squashed:
                log_prob -= _log_slope(rows.choice[row, k], half_width[k])
                for node, weight in zip(NODES, WEIGHTS):  # noqa: B905
                    value = means[i, k] + std[k] * node
                    entropy += weight * _log_slope(value, half_width[k])
                    bend = -2.0 * weight * np.tanh(value)
                    by_means[i, k] += by_entropy * bend
                    by_log_std[k] += by_entropy * bend * std[k] * node
        by_log_prob, by_value = _row_slopes(rows, terms, row, log_prob, entropy, values[i, -1], sums)
        for k in range(len(log_std)):
            noise = (rows.choice[row, k] - means[i, k]) / std[k]
            by_means[i, k] += by_log_prob * noise / std[k]
            by_log_std[k] += by_log_prob * (noise * noise - 1.0) + by_entropy
        by_values[i, -1] = by_value


@numba.njit(cache=True, nogil=True)
def _log_slope(value: float, half_width: float) -> float:
    """As SquashedGaussian's: log of half_width * (1 - tanh(value)^2)."""
    softplus = max(-2.0 * value, 0.0) + np.log1p(np.exp(-abs(2.0 * value)))
    return np.log(half_width) + 2.0 * (LOG_2 - value - softplus)
