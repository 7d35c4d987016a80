"""Distributions of actions turn a network's outputs into actions and log-probabilities, in few tensor operations.

A family (Categorical, ClippedGaussian, SquashedGaussian) holds what never changes, such as the bounds of a Box. It
makes a Distribution of the outputs for B observations.

`legal` masks actions as everywhere in palestra (bool, as wide as the action space says). A row without a legal action
is treated as if all were legal: nobody decides there, and no number becomes nan. All chance comes from keys
(palestra.randomness), or from noise that is given. Letters: B rows, A actions, K choices, n numbers of a Box.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from palestra.games.spaces import Box
from palestra.randomness import random_floats

ILLEGAL = -1e9  # a logit: its probability is exactly 0, and 0 * its logarithm is 0, as -inf would not have it
LARGEST_TANH = 1.0 - 1e-6  # of a value that was squashed; its inverse is finite
LOG_ROOT_2_PI = 0.5 * math.log(2.0 * math.pi)
HERMITE_NODES, HERMITE_WEIGHTS = (values.tolist() for values in np.polynomial.hermite_e.hermegauss(24))


# ---- categorical ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Categorical:
    """Draws one of several actions for every choice. nums: how many actions each choice has.

    Parameters are logits, (B, sum(nums)). Actions are int64: (B,) of a Discrete (`is_single`), else (B, K).
    """

    nums: tuple[int, ...]
    is_single: bool

    def sample(self, logits: Tensor, legal: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Draw actions, and return them and their log-probabilities (B,). keys: int64 (B,)."""
        uniforms = random_floats(keys, len(self.nums))
        distribution = self.distribution(logits, legal)
        drawn = [_invert(part, uniforms[:, index]) for index, part in enumerate(distribution.log_probs)]
        action = self._shaped(torch.stack(drawn, dim=1))
        return action, distribution.log_prob(action)

    def mode(self, logits: Tensor, legal: Tensor) -> Tensor:
        """Return the most likely actions; of equally likely ones the first."""
        masked = logits.masked_fill(~legal, ILLEGAL)
        return self._shaped(torch.stack([part.argmax(1) for part in masked.split(list(self.nums), dim=1)], dim=1))

    def distribution(self, logits: Tensor, legal: Tensor) -> "CategoricalDistribution":
        """Make the distribution of these logits, in which illegal actions have probability 0."""
        masked = logits.masked_fill(~legal, ILLEGAL)
        if self.is_single:
            return CategoricalDistribution((masked.log_softmax(dim=1),))
        return CategoricalDistribution(tuple(part.log_softmax(dim=1) for part in masked.split(list(self.nums), dim=1)))

    def _shaped(self, drawn: Tensor) -> Tensor:
        return drawn[:, 0] if self.is_single else drawn


class CategoricalDistribution:
    """A categorical distribution for each of B observations.

    log_probs: for every choice those of its actions, float32 (B, num) each.
    """

    def __init__(self, log_probs: tuple[Tensor, ...]) -> None:
        self.log_probs = log_probs

    def log_prob(self, action: Tensor) -> Tensor:
        """Return the log-probabilities, (B,), of actions int64 (B,), or (B, K) of several choices."""
        actions = action.view(len(action), -1).split(1, dim=1)
        return _total([part.gather(1, one) for part, one in zip(self.log_probs, actions, strict=True)])

    def entropy(self) -> Tensor:
        """Return the entropies in nats: float32 (B,)."""
        return -_total([(part.exp() * part).sum(dim=1, keepdim=True) for part in self.log_probs])

    def kl_divergence(self, other: "CategoricalDistribution") -> Tensor:
        """Return KL(self || other), exactly: float32 (B,). An illegal action has probability 0 in both.

        other: another policy's distributions at the same observations.
        """
        pairs = zip(self.log_probs, other.log_probs, strict=True)
        return _total([(own.exp() * (own - theirs)).sum(dim=1, keepdim=True) for own, theirs in pairs])


def _total(columns: list[Tensor]) -> Tensor:
    """Add up columns (B, 1): (B,)."""
    return columns[0].squeeze(1) if len(columns) == 1 else torch.cat(columns, dim=1).sum(dim=1)


def _invert(log_probs: Tensor, uniforms: Tensor) -> Tensor:
    """Return the action at which the distribution function passes a uniform number: int64 (B,)."""
    sums = log_probs.exp().cumsum(dim=1)
    return (sums <= (uniforms * sums[:, -1]).unsqueeze(1)).sum(dim=1).clamp(max=log_probs.shape[1] - 1)


# ---- gaussian ------------------------------------------------------------------------------------------


def gaussian_log_prob(mean: Tensor, log_std: Tensor, value: Tensor) -> Tensor:
    """Return the log-densities, (B,), of normals with diagonal covariance at (B, n); log_std may be (n,)."""
    noise = (value - mean) * torch.exp(-log_std)
    return (-0.5 * noise.square() - log_std - LOG_ROOT_2_PI).sum(dim=1)


def gaussian_entropy(log_std: Tensor) -> Tensor:
    """Return the entropies, (...,), of normals with log standard deviations (..., n)."""
    return (log_std + (0.5 + LOG_ROOT_2_PI)).sum(dim=-1)


def free_numbers(is_free: Tensor) -> Tensor | None:
    """Return the indices, int64, of the numbers of a Box that are not fixed; None if none is fixed.

    A fixed one is played as its one value whatever is drawn, so probabilities, entropies and divergences leave it out.
    is_free: bool (n,).
    """
    return None if bool(is_free.all()) else is_free.nonzero().squeeze(1)


def of_free(free: Tensor | None, *values: Tensor) -> tuple[Tensor, ...]:
    """Select the free numbers of values (..., n)."""
    return values if free is None else tuple(value[..., free] for value in values)


class HalfWidths:
    """Measures actions of a Box in half-widths from its centre.

    Numbers without bounds stay as they are; a fixed one is 0 in half-widths. A number is bounded if the distance of its
    bounds is finite in float32.

    center, half_width: float32 (n,), of a fixed number its value and 0. divisor: half_width, and 1 where that is 0.
    """

    def __init__(self, space: Box, device: torch.device) -> None:
        low, high = (torch.tensor(bound, device=device) for bound in (space.low, space.high))
        is_bounded = (high >= low) & (high - low).isfinite()
        self.center = torch.where(is_bounded, low / 2 + high / 2, 0.0)  # the sum of bounds may be too large
        self.half_width = torch.where(is_bounded, (high - low) / 2, 1.0)
        is_free = self.half_width > 0
        self.divisor = torch.where(is_free, self.half_width, 1.0)
        self.is_free = None if bool(is_free.all()) else is_free.float()  # 1 or 0; None: all are

    def __call__(self, action: Tensor) -> Tensor:
        return (action - self.center) / self.divisor

    def inverse(self, measured: Tensor) -> Tensor:
        return self.center + self.half_width * measured

    def squashed(self) -> "SquashedGaussian":
        """Make the family that draws actions in half-widths, if all numbers are bounded."""
        most = self.without_fixed(torch.ones_like(self.center))
        return SquashedGaussian(-most, most)

    def without_fixed(self, measured: Tensor) -> Tensor:
        """Set the fixed numbers of actions in half-widths, (..., n), to 0."""
        return measured if self.is_free is None else measured * self.is_free


class ClippedGaussian:
    """A diagonal normal whose values are clipped to the bounds of a Box, float32 (n,), on their way into the game.

    All log-probabilities are those of the value before it was clipped. free: see `free_numbers`.
    """

    def __init__(self, low: Tensor, high: Tensor) -> None:
        self.low, self.high, self.free = low, high, free_numbers(low < high)

    def draw(self, mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return the value that standard normal noise (B, n) makes, and its log-probability (B,)."""
        value = mean + torch.exp(log_std) * noise
        log_std, noise = of_free(self.free, log_std, noise)
        return value, (-0.5 * noise.square() - log_std - LOG_ROOT_2_PI).sum(dim=1)

    def action(self, value: Tensor) -> Tensor:
        """Return the action that is played for a value."""
        return torch.clamp(value, self.low, self.high)

    def value(self, action: Tensor) -> Tensor:
        """Return a value for which an action is played."""
        return action

    def log_prob(self, mean: Tensor, log_std: Tensor, value: Tensor) -> Tensor:
        return gaussian_log_prob(*of_free(self.free, mean, log_std, value))

    def entropy(self, mean: Tensor, log_std: Tensor) -> Tensor:
        return gaussian_entropy(*of_free(self.free, log_std))

    def distribution(self, mean: Tensor, log_std: Tensor) -> "GaussianDistribution":
        return GaussianDistribution(self, mean, log_std)


class SquashedGaussian:
    """A diagonal normal whose values are played as center + half_width * tanh(value), within the bounds of a Box.

    low, high: the finite bounds, float32 (n,). Log-probabilities are densities of the action (Haarnoja et al. 2018,
    appendix C), computed from the value before the tanh, where nothing is lost to rounding. free: see `free_numbers`.
    """

    def __init__(self, low: Tensor, high: Tensor) -> None:
        self.center, self.half_width = low / 2 + high / 2, (high - low) / 2  # the sum of bounds may be too large
        self.divisor = torch.where(self.half_width > 0, self.half_width, 1.0)
        self.free = free_numbers(self.half_width > 0)

    def draw(self, mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return the value before the tanh that standard normal noise (B, n) makes, and its action's log-probability.

        The value is a reparametrised sample: gradients flow through it. The log-probability is (B,).
        """
        value = mean + torch.exp(log_std) * noise
        log_std, noise, drawn = of_free(self.free, log_std, noise, value)
        return value, (-0.5 * noise.square() - log_std - LOG_ROOT_2_PI - self._log_derivative(drawn)).sum(dim=1)

    def action(self, value: Tensor) -> Tensor:
        """Return the action that is played for a value."""
        return self.center + self.half_width * torch.tanh(value)

    def value(self, action: Tensor) -> Tensor:
        """Return the value before the tanh for which an action is played: at the bounds a large one, not infinity."""
        return ((action - self.center) / self.divisor).clamp(-LARGEST_TANH, LARGEST_TANH).atanh()

    def log_prob(self, mean: Tensor, log_std: Tensor, value: Tensor) -> Tensor:
        """Return the log-probability, (B,), of the action that a value before the tanh, (B, n), makes."""
        mean, log_std, value = of_free(self.free, mean, log_std, value)
        return gaussian_log_prob(mean, log_std, value) - self._log_derivative(value).sum(dim=1)

    def entropy(self, mean: Tensor, log_std: Tensor) -> Tensor:
        """Return the entropies, (B,): the normal's, and the tanh's mean log-derivative by Gauss-Hermite quadrature."""
        mean, log_std = of_free(self.free, mean, log_std)
        nodes, weights = mean.new_tensor(HERMITE_NODES), mean.new_tensor(HERMITE_WEIGHTS) / math.sqrt(2.0 * math.pi)
        values = mean.unsqueeze(1) + torch.exp(log_std).unsqueeze(-2) * nodes.unsqueeze(1)  # (B, nodes, n)
        return gaussian_entropy(log_std) + weights @ self._log_derivative(values).sum(dim=-1).T

    def distribution(self, mean: Tensor, log_std: Tensor) -> "GaussianDistribution":
        return GaussianDistribution(self, mean, log_std)

    def _log_derivative(self, value: Tensor) -> Tensor:
        """Return log(d action / d value) = log(half_width * (1 - tanh(value)^2)), exact where the tanh is 1.

        value: the free numbers alone.
        """
        (half_width,) = of_free(self.free, self.half_width)
        return torch.log(half_width) + 2.0 * (math.log(2.0) - value - torch.nn.functional.softplus(-2.0 * value))


class GaussianDistribution:
    """A distribution of the values, (B, n), that a family clips or squashes. mean: (B, n). log_std: (B, n) or (n,)."""

    def __init__(self, family: ClippedGaussian | SquashedGaussian, mean: Tensor, log_std: Tensor) -> None:
        self.family, self.mean, self.log_std = family, mean, log_std

    def log_prob(self, action: Tensor) -> Tensor:
        """Return the log-densities of one action, as it was drawn, at each observation: float32 (B,)."""
        return self.family.log_prob(self.mean, self.log_std, action)

    def draw(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return the values that standard normal noise (B, n) makes, and their log-probabilities (B,).

        Gradients flow through both.
        """
        return self.family.draw(self.mean, self.log_std, noise)

    def entropy(self) -> Tensor:
        return self.family.entropy(self.mean, self.log_std).expand(len(self.mean))

    def kl_divergence(self, other: "GaussianDistribution") -> Tensor:
        """Return KL(self || other), exactly: float32 (B,).

        It is that before clipping, which `log_prob` ignores too; a tanh changes none.
        """
        mean, log_std, other_mean, other_log_std = of_free(
            self.family.free, self.mean, self.log_std, other.mean, other.log_std
        )
        square = (torch.exp(2.0 * log_std) + (mean - other_mean).square()) * torch.exp(-2.0 * other_log_std)
        return (other_log_std - log_std + 0.5 * (square - 1.0)).sum(dim=1)


Distribution = CategoricalDistribution | GaussianDistribution
