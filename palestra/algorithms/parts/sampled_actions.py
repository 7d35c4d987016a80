"""Heads of SAC: they draw actions from the outputs of a policy net, and say what the critics observe of an action.

Critics and log-probabilities measure actions of a Box in half-widths from its centre.
Letters: B rows, K actions over which a mean is taken, n dimensions of a Box, A discrete actions.
"""

from typing import ClassVar, NamedTuple, Self

import torch
from pydantic import model_validator
from torch import Tensor

from palestra.algorithms.parts.distributions import ILLEGAL, Categorical, HalfWidths
from palestra.config import Config, ConfigError
from palestra.games.spaces import Box, Discrete, Space
from palestra.players.player import Player
from palestra.randomness import random_choice, random_floats, random_normals


class LogStdConfig(Config):
    usual: ClassVar = {"min": -20.0, "max": 2.0}

    min: float
    """smaller outputs of the policy net count as this"""
    max: float
    """larger outputs of the policy net count as this"""

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.min >= self.max:
            message = f"expected a number below max, {self.max}, got {self.min}"
            raise ConfigError.at("min", message)
        return self


class SampledActions(NamedTuple):
    """The actions over which means under a policy are taken: one drawn from a Box, or all of a Discrete.

    critic_inputs: what critics observe of the actions beside the observation. weights, log_probs: (B, K); weights are
    probabilities, and 1 for an action that was drawn.
    """

    critic_inputs: dict[str, Tensor]
    weights: Tensor
    log_probs: Tensor

    def mean(self, values: Tensor) -> Tensor:
        """Return the mean under the policy, (B,), of a value per action, (B, K): an unbiased estimate, or exact."""
        return (self.weights * values).sum(dim=1)

    def entropy(self) -> Tensor:
        """Return the policy's entropy in nats, (B,): an unbiased estimate, or exact."""
        return -self.mean(self.log_probs)


def box_errors(player: Player) -> dict[str, str]:
    """Return why critics cannot observe a player's actions in half-widths of a Box: messages by key."""
    space, errors = player.action_space, {}
    assert isinstance(space, Box)
    if not space.is_bounded:
        errors["name"] = f"expected a Box with finite bounds for the actions of {player.roles[0]!r}, got {space}"
    if "action" in player.spaces:
        errors["critic_net"] = "expected no entry 'action' in the observation (critics observe actions under that name)"
    return errors


class BoxHead:
    """Draws actions of a Box.

    The policy net puts out n means and n log standard deviations, of normal numbers before a tanh. Critics observe the
    observation and an action in half-widths from the centre, and put out its value.

    log_std: the bounds to which log standard deviations are clamped. num_free: numbers that are not fixed.
    """

    num_values = 1

    def __init__(self, space: Box, log_std: tuple[float, float], device: torch.device) -> None:
        self.half_widths = HalfWidths(space, device)
        self.center, self.half_width = self.half_widths.center, self.half_widths.half_width
        self.unit = self.half_widths.squashed()
        self.log_std = log_std
        self.num_noise = num = len(space.low)
        self.num_free = num if self.unit.free is None else len(self.unit.free)
        self.num_outputs = 2 * num
        self.critic_spaces = {"action": Space(space.shape, torch.float32, padded=False)}

    def uniform(self, legal: Tensor, keys: Tensor) -> Tensor:
        """Draw uniformly random actions of the game."""
        return self.center + self.half_width * (2.0 * random_floats(keys, self.num_noise) - 1.0)

    def sample(self, outputs: Tensor, legal: Tensor, keys: Tensor) -> Tensor:
        """Draw actions of the game from the policy."""
        mean, log_std = self.mean_and_log_std(outputs)
        value = mean + log_std.exp() * random_normals(keys, self.num_noise)
        return self.center + self.half_width * self.unit.action(value)

    def mode(self, outputs: Tensor, legal: Tensor) -> Tensor:
        """Return the policy's actions of the game without chance: those of the means."""
        return self.center + self.half_width * self.unit.action(self.mean_and_log_std(outputs)[0])

    def probabilities(self, outputs: Tensor, legal: Tensor) -> None:
        """Return None: a Box has no choices, and so no probabilities of them."""

    def sample_actions(self, outputs: Tensor, legal: Tensor, noise: Tensor) -> SampledActions:
        """Make one action per row of standard normal noise (B, n); gradients flow through it."""
        mean, log_std = self.mean_and_log_std(outputs)
        value, log_prob = self.unit.draw(mean, log_std, noise)
        log_probs = log_prob.unsqueeze(1)
        return SampledActions({"action": self.unit.action(value)}, torch.ones_like(log_probs), log_probs)

    def critic_inputs(self, action: Tensor) -> dict[str, Tensor]:
        """Return what critics observe of an action of the game."""
        return {"action": self.half_widths(action)}

    def values_of(self, action: Tensor, values: Tensor) -> Tensor:
        """Return the values of the actions taken, (critics, B), from the outputs of critics, (critics, B, 1)."""
        return values.squeeze(2)

    def mean_and_log_std(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return means and log standard deviations of normal numbers before the tanh: (B, n) each."""
        mean, log_std = outputs.chunk(2, dim=1)
        return mean, log_std.clamp(*self.log_std)


class DiscreteHead:
    """Draws discrete actions.

    The policy net puts out logits. Critics observe the observation, and put out the value of every action.
    """

    num_noise = 0
    critic_spaces: ClassVar[dict[str, Space]] = {}

    def __init__(self, space: Discrete) -> None:
        self.num_outputs = self.num_values = space.num
        self.categorical = Categorical((space.num,), is_single=True)

    def uniform(self, legal: Tensor, keys: Tensor) -> Tensor:
        """Draw uniformly random legal actions."""
        return random_choice(keys, legal)

    def sample(self, outputs: Tensor, legal: Tensor, keys: Tensor) -> Tensor:
        """Draw legal actions from the policy."""
        return self.categorical.sample(outputs, legal, keys)[0]

    def mode(self, outputs: Tensor, legal: Tensor) -> Tensor:
        """Return the policy's likeliest legal actions."""
        return self.categorical.mode(outputs, legal)

    def sample_actions(self, outputs: Tensor, legal: Tensor, noise: Tensor) -> SampledActions:
        """Return all actions; illegal ones have weight 0."""
        log_probs = outputs.masked_fill(~legal, ILLEGAL).log_softmax(dim=1)
        return SampledActions({}, log_probs.exp(), log_probs)

    def probabilities(self, outputs: Tensor, legal: Tensor) -> Tensor:
        """Return the probabilities of all actions: (B, A)."""
        return self.categorical.distribution(outputs, legal).log_probs[0].exp()

    def critic_inputs(self, action: Tensor) -> dict[str, Tensor]:
        """Return nothing: critics do not observe an action, but value all of them."""
        return {}

    def values_of(self, action: Tensor, values: Tensor) -> Tensor:
        """Return the values of the actions taken, (critics, B), from the outputs of critics, (critics, B, A)."""
        return values.gather(2, action.view(1, -1, 1).expand(len(values), -1, 1)).squeeze(2)
