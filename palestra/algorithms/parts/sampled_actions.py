"""Heads of SAC: they draw actions from the outputs of a policy net, and say what the critics observe of an action.

Critics and log-probabilities measure actions of a Box in half-widths from its centre.
Letters: B rows, K actions over which a mean is taken, n dimensions of a Box, A discrete actions.
"""

from typing import ClassVar, NamedTuple, cast

import torch
from torch import Tensor

from palestra.algorithms.parts import action_heads
from palestra.algorithms.parts.distributions import ILLEGAL
from palestra.games.spaces import Box, Discrete, Space
from palestra.players.player import Player
from palestra.randomness import random_choice, random_floats, random_normals


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
    space, errors = cast(Box, player.action_space), {}
    if not space.is_bounded:
        errors["name"] = f"expected a Box with finite bounds for the actions of {player.roles[0]!r}, got {space}"
    if "action" in player.spaces:
        errors["critic_net"] = "expected no entry 'action' in the observation (critics observe actions under that name)"
    return errors


class BoxHead(action_heads.StateDependentHead):
    """Draws actions of a Box. Critics observe the observation and an action in half-widths, and put out its value.

    num_free: numbers that are not fixed.
    """

    num_values = 1

    def __init__(self, space: Box, log_std: action_heads.LogStdConfig, device: torch.device) -> None:
        super().__init__(space, log_std, device)
        self.num_noise = self.num_numbers
        self.num_free = self.num_noise if self.family.free is None else len(self.family.free)
        self.critic_spaces = {"action": Space(space.shape, torch.float32, padded=False)}

    def uniform(self, legal: Tensor, keys: Tensor) -> Tensor:
        """Draw uniformly random actions of the game."""
        return self.half_widths.inverse(2.0 * random_floats(keys, self.num_noise) - 1.0)

    def sample(self, outputs: Tensor, legal: Tensor, keys: Tensor) -> Tensor:
        """Draw actions of the game from the policy, without their log-probabilities."""
        distribution = self.distribution(outputs, legal)
        return self.action(distribution.mean + distribution.log_std.exp() * random_normals(keys, self.num_noise))

    def sample_actions(self, outputs: Tensor, legal: Tensor, noise: Tensor) -> SampledActions:
        """Make one action per row of standard normal noise (B, n); gradients flow through it."""
        value, log_prob = self.distribution(outputs, legal).draw(noise)
        log_probs = log_prob.unsqueeze(1)
        return SampledActions({"action": self.family.action(value)}, torch.ones_like(log_probs), log_probs)

    def critic_inputs(self, action: Tensor) -> dict[str, Tensor]:
        """Return what critics observe of an action of the game."""
        return {"action": self.half_widths(action)}

    def values_of(self, action: Tensor, values: Tensor) -> Tensor:
        """Return the values of the actions taken, (critics, B), from the outputs of critics, (critics, B, 1)."""
        return values.squeeze(2)


class DiscreteHead(action_heads.DiscreteHead):
    """Draws discrete actions. Critics observe the observation, and put out the value of every action."""

    num_noise = 0
    critic_spaces: ClassVar[dict[str, Space]] = {}

    def __init__(self, space: Discrete) -> None:
        super().__init__(space)
        self.num_values = space.num

    def uniform(self, legal: Tensor, keys: Tensor) -> Tensor:
        """Draw uniformly random legal actions."""
        return random_choice(keys, legal)

    def sample(self, outputs: Tensor, legal: Tensor, keys: Tensor) -> Tensor:
        """Draw legal actions from the policy."""
        return self.family.sample(outputs, legal, keys)[0]

    def sample_actions(self, outputs: Tensor, legal: Tensor, noise: Tensor) -> SampledActions:
        """Return all actions; illegal ones have weight 0."""
        log_probs = outputs.masked_fill(~legal, ILLEGAL).log_softmax(dim=1)
        return SampledActions({}, log_probs.exp(), log_probs)

    def critic_inputs(self, action: Tensor) -> dict[str, Tensor]:
        """Return nothing: critics do not observe an action, but value all of them."""
        return {}

    def values_of(self, action: Tensor, values: Tensor) -> Tensor:
        """Return the values of the actions taken, (critics, B), from the outputs of critics, (critics, B, A)."""
        return values.gather(2, action.view(1, -1, 1).expand(len(values), -1, 1)).squeeze(2)
