"""Heads draw actions from the outputs of a policy's network: categories, or clipped or squashed normal numbers."""

from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor, nn

from palestra.algorithms.parts.distributions import (
    Categorical,
    ClippedGaussian,
    Distribution,
    GaussianDistribution,
    HalfWidths,
    SquashedGaussian,
)
from palestra.algorithms.parts.sampled_actions import LogStdConfig
from palestra.config import ByName, Config, ConfigError
from palestra.games.spaces import Box, Discrete, MultiDiscrete
from palestra.players.player import Player
from palestra.randomness import random_normals

# Letters: B rows of any batch; A numbers that a policy puts out.

# ---- what a run must say -----------------------------------------------------------------------------


class ClippedGaussianConfig(Config):
    usual: ClassVar = {"initial_log_std": 0.0}

    name: Literal["clipped_gaussian"]
    """normal numbers, clipped to their bounds on their way into the game; log-probabilities are those before"""
    initial_log_std: float
    """logarithm of the standard deviation at the start; it is learned, the same in every state"""


class SquashedGaussianConfig(Config):
    usual: ClassVar = {"initial_log_std": -0.5}

    name: Literal["squashed_gaussian"]
    """the tanh of normal numbers, scaled to their bounds"""
    initial_log_std: float
    """logarithm of the standard deviation before the tanh at the start; it is learned, the same in every state"""


class StateDependentGaussianConfig(Config):
    name: Literal["state_dependent_gaussian"]
    """the tanh of normal numbers, scaled to their bounds; the policy puts out their means and, after these, the
    logarithms of their standard deviations, as in SAC; log-probabilities are those of actions in half-widths"""
    log_std: LogStdConfig
    """bounds of the logarithms of standard deviations"""


BoxActionsConfig = ClippedGaussianConfig | SquashedGaussianConfig
AnyBoxActionsConfig = Annotated[ClippedGaussianConfig | SquashedGaussianConfig | StateDependentGaussianConfig, ByName()]

OWN_WEIGHTS = ["log_std"]  # of heads, one or the other
SAMPLED = "sampled_action"  # among the extras of a decision: what the policy drew, where the action is not just that

# ---- heads ---------------------------------------------------------------------------------------------


class DiscreteHead(nn.Module):
    """Draws discrete and multi-discrete actions; the policy's network puts out logits."""

    def __init__(self, space: Discrete | MultiDiscrete) -> None:
        super().__init__()
        self.num_outputs = space.num_flags
        is_single = isinstance(space, Discrete)
        self.family = Categorical((space.num,) if isinstance(space, Discrete) else space.nums, is_single)

    def draw(self, outputs: Tensor, legal: Tensor, keys: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Draw actions; return them and the extras that learning from them needs."""
        action, log_prob = self.family.sample(outputs, legal, keys)
        return action, {"log_prob": log_prob}

    def mode(self, outputs: Tensor, legal: Tensor) -> Tensor:
        """Return the most likely actions."""
        return self.family.mode(outputs, legal)

    def distribution(self, outputs: Tensor, legal: Tensor) -> Distribution:
        """Make the distribution of actions of the policy's outputs at some observations."""
        return self.family.distribution(outputs, legal)

    def output_weights(self) -> list[str]:
        """Name the weights that heads have of their own."""
        return OWN_WEIGHTS

    def probabilities(self, outputs: Tensor, legal: Tensor) -> Tensor:
        """Return the probabilities of all actions, of several choices one after the other: (B, A)."""
        return torch.cat(self.family.distribution(outputs, legal).log_probs, dim=1).exp()


class BoxHead(nn.Module):
    """Draws vectors of numbers; the policy's network puts out means."""

    def __init__(self, space: Box, config: BoxActionsConfig, device: torch.device) -> None:
        super().__init__()
        self.num_outputs = len(space.low)
        self.log_std = nn.Parameter(torch.full((self.num_outputs,), float(config.initial_log_std)))
        bounds = torch.tensor(space.low, device=device), torch.tensor(space.high, device=device)
        is_clipped = isinstance(config, ClippedGaussianConfig)
        self.family = ClippedGaussian(*bounds) if is_clipped else SquashedGaussian.within(*bounds)

    def draw(self, outputs: Tensor, legal: Tensor, keys: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Draw actions; return them and the extras that learning from them needs."""
        noise = random_normals(keys, self.num_outputs)
        sampled, log_prob = self.family.draw(outputs, self.log_std.detach(), noise)
        return self.family.action(sampled), {"log_prob": log_prob, SAMPLED: sampled}

    def mode(self, outputs: Tensor, legal: Tensor) -> Tensor:
        """Return the actions of the means: the likeliest ones, except that a tanh moves the mode."""
        return self.family.action(outputs)

    def distribution(self, outputs: Tensor, legal: Tensor) -> GaussianDistribution:
        """Make the distribution of the values before they are clipped or squashed, of the policy's outputs."""
        return self.family.distribution(outputs, self.log_std)

    def action(self, sampled: Tensor) -> Tensor:
        """Return the action that is played for a value that was drawn."""
        return self.family.action(sampled)

    def output_weights(self) -> list[str]:
        """Name the weights that heads have of their own."""
        return OWN_WEIGHTS

    def probabilities(self, outputs: Tensor, legal: Tensor) -> None:
        """Return None: a Box has no choices, and so no probabilities of them."""


class StateDependentHead(nn.Module):
    """Draws vectors of numbers; the policy's network puts out means and log standard deviations before a tanh.

    Log-probabilities are densities of actions in half-widths of the Box from its centre, so that no entropy depends on
    the bounds.
    """

    def __init__(self, space: Box, config: StateDependentGaussianConfig, device: torch.device) -> None:
        super().__init__()
        self.num_numbers = len(space.low)
        self.num_outputs = 2 * self.num_numbers
        self.log_std_bounds = config.log_std.min, config.log_std.max
        self.half_widths = HalfWidths(space, device)
        self.family = self.half_widths.squashed()

    def draw(self, outputs: Tensor, legal: Tensor, keys: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Draw actions; return them and the extras that learning from them needs."""
        sampled, log_prob = self.distribution(outputs, legal).draw(random_normals(keys, self.num_numbers))
        return self.action(sampled), {"log_prob": log_prob, SAMPLED: sampled}

    def mode(self, outputs: Tensor, legal: Tensor) -> Tensor:
        """Return the actions of the means: the likeliest ones, except that a tanh moves the mode."""
        return self.action(outputs[:, : self.num_numbers])

    def distribution(self, outputs: Tensor, legal: Tensor) -> GaussianDistribution:
        """Make the distribution of the values before they are squashed, of the policy's outputs."""
        mean, log_std = outputs.chunk(2, dim=1)
        return self.family.distribution(mean, log_std.clamp(*self.log_std_bounds))

    def action(self, sampled: Tensor) -> Tensor:
        """Return the action that is played for a value that was drawn."""
        return self.half_widths.inverse(self.family.action(sampled))

    def output_weights(self) -> list[str]:
        """Name the weights that heads have of their own."""
        return OWN_WEIGHTS

    def probabilities(self, outputs: Tensor, legal: Tensor) -> None:
        """Return None: a Box has no choices, and so no probabilities of them."""


AnyHead = DiscreteHead | BoxHead | StateDependentHead


def make_head(config: BoxActionsConfig | StateDependentGaussianConfig | None, player: Player) -> AnyHead:
    """Make the head that draws the player's actions. Raises ConfigError where `box_actions` does not fit them."""
    space, path = player.action_space, f"players.{player.name}.algorithm.box_actions"
    if not isinstance(space, Box):
        if config is not None:
            message = f"expected null (the actions are {space}, not a Box), got {config.name}"
            raise ConfigError.at(path, message)
        return DiscreteHead(space)
    if config is None:
        message = f"expected clipped_gaussian or squashed_gaussian (the actions are {space}), got null"
        raise ConfigError.at(path, message)
    if not isinstance(config, ClippedGaussianConfig) and not space.is_bounded:
        message = f"expected clipped_gaussian ({space} has no bounds), got {config.name}"
        raise ConfigError.at(f"{path}.name", message)
    if isinstance(config, StateDependentGaussianConfig):
        return StateDependentHead(space, config, player.device)
    return BoxHead(space, config, player.device)
