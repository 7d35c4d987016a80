"""Heads draw actions from the outputs of a policy's network: categories, or clipped or squashed normal numbers."""

from abc import abstractmethod
from typing import Annotated, ClassVar, Literal, Self

import torch
from pydantic import model_validator
from torch import Tensor, nn

from palestra.algorithms.parts.distributions import (
    Categorical,
    CategoricalDistribution,
    ClippedGaussian,
    GaussianDistribution,
    HalfWidths,
    SquashedGaussian,
)
from palestra.config import ByName, Config, ConfigError, InBranch
from palestra.games.spaces import Box, Discrete, MultiDiscrete
from palestra.players.player import Player
from palestra.randomness import random_normals

# Letters: B rows of any batch; A numbers that a policy puts out.

# ---- what a run must say -----------------------------------------------------------------------------


class ClippedGaussianConfig(Config):
    usual: ClassVar = {"initial_log_std": 0.0}

    name: Literal["clipped_gaussian"]
    """normal numbers, clipped to their bounds on their way into the game; log-probabilities are those before"""
    initial_log_std: Annotated[float, InBranch.FIXED]
    """logarithm of the standard deviation at the start; it is learned, the same in every state"""


class SquashedGaussianConfig(Config):
    usual: ClassVar = {"initial_log_std": -0.5}

    name: Literal["squashed_gaussian"]
    """the tanh of normal numbers, scaled to their bounds"""
    initial_log_std: Annotated[float, InBranch.FIXED]
    """logarithm of the standard deviation before the tanh at the start; it is learned, the same in every state"""


class LogStdConfig(Config):
    usual: ClassVar = {"min": -20.0, "max": 2.0}

    min: float
    """smaller outputs of the policy net count as this"""
    max: float
    """larger outputs of the policy net count as this"""

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.min >= self.max:
            raise ConfigError.at("min", f"expected a number below max, {self.max}, got {self.min}")
        return self


class StateDependentGaussianConfig(Config):
    name: Literal["state_dependent_gaussian"]
    """the tanh of normal numbers, scaled to their bounds; the policy puts out their means and, after these, the
    logarithms of their standard deviations, as in SAC; log-probabilities are those of actions in half-widths"""
    log_std: LogStdConfig
    """bounds of the logarithms of standard deviations"""


BoxActionsConfig = ClippedGaussianConfig | SquashedGaussianConfig
AnyBoxActionsConfig = Annotated[BoxActionsConfig | StateDependentGaussianConfig, ByName(), InBranch.SAME_PART]

SAMPLED = "sampled_action"  # among the extras of a decision: what the policy drew, where the action is not just that

# ---- heads ---------------------------------------------------------------------------------------------


class ActionHead(nn.Module):
    """The base of heads. num_outputs: how many outputs of the policy's network a head reads."""

    num_outputs: int

    def output_weights(self) -> list[str]:
        """Name the weights that heads have of their own, whether or not this one has them."""
        return ["log_std"]

    def probabilities(self, outputs: Tensor, legal: Tensor) -> Tensor | None:
        """Return the probabilities of all actions, (B, A), of several choices one after the other; None for a Box."""
        return None


class DiscreteHead(ActionHead):
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

    def distribution(self, outputs: Tensor, legal: Tensor) -> CategoricalDistribution:
        """Make the distribution of actions of the policy's outputs at some observations."""
        return self.family.distribution(outputs, legal)

    def probabilities(self, outputs: Tensor, legal: Tensor) -> Tensor:
        return torch.cat(self.family.distribution(outputs, legal).log_probs, dim=1).exp()


class GaussianHead(ActionHead):
    """The base of heads that draw vectors of n numbers; the first n outputs of the policy's network are their means."""

    def __init__(self, space: Box, device: torch.device) -> None:
        super().__init__()
        self.num_numbers, self.half_widths = len(space.low), HalfWidths(space, device)

    @abstractmethod
    def distribution(self, outputs: Tensor, legal: Tensor) -> GaussianDistribution:
        """Make the distribution of the values before they are clipped or squashed, of the policy's outputs."""

    @abstractmethod
    def action(self, sampled: Tensor) -> Tensor:
        """Return the action that is played for a value that was drawn."""

    @abstractmethod
    def sampled(self, action: Tensor) -> Tensor:
        """Return a finite value for which an action is played, whoever chose the action: the inverse of `action`."""

    def draw(self, outputs: Tensor, legal: Tensor, keys: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Draw actions; return them and the extras that learning from them needs."""
        sampled, log_prob = self.distribution(outputs, legal).draw(random_normals(keys, self.num_numbers))
        return self.action(sampled), {"log_prob": log_prob, SAMPLED: sampled}

    def mode(self, outputs: Tensor, legal: Tensor) -> Tensor:
        """Return the actions of the means: the likeliest ones, except that a tanh moves the mode."""
        return self.action(outputs[:, : self.num_numbers])


class BoxHead(GaussianHead):
    """Draws clipped or squashed normal numbers, whose standard deviations are the same in every state."""

    def __init__(self, space: Box, config: BoxActionsConfig, device: torch.device) -> None:
        super().__init__(space, device)
        self.num_outputs = self.num_numbers
        self.log_std = nn.Parameter(torch.full((self.num_outputs,), float(config.initial_log_std)))
        family = ClippedGaussian if isinstance(config, ClippedGaussianConfig) else SquashedGaussian
        self.family = family(torch.tensor(space.low, device=device), torch.tensor(space.high, device=device))

    def distribution(self, outputs: Tensor, legal: Tensor) -> GaussianDistribution:
        return self.family.distribution(outputs, self.log_std)

    def action(self, sampled: Tensor) -> Tensor:
        return self.family.action(sampled)

    def sampled(self, action: Tensor) -> Tensor:
        return self.family.value(action)


class StateDependentHead(GaussianHead):
    """Draws the tanh of normal numbers, whose log standard deviations are the last n outputs of the policy's network.

    Log-probabilities are densities of actions in half-widths of the Box from its centre, so that no entropy depends on
    the bounds. log_std: the bounds to which log standard deviations are clamped.
    """

    def __init__(self, space: Box, log_std: LogStdConfig, device: torch.device) -> None:
        super().__init__(space, device)
        self.num_outputs = 2 * self.num_numbers
        self.log_std_bounds = log_std.min, log_std.max
        self.family = self.half_widths.squashed()

    def distribution(self, outputs: Tensor, legal: Tensor) -> GaussianDistribution:
        mean, log_std = outputs.chunk(2, dim=1)
        return self.family.distribution(mean, log_std.clamp(*self.log_std_bounds))

    def action(self, sampled: Tensor) -> Tensor:
        return self.half_widths.inverse(self.family.action(sampled))

    def sampled(self, action: Tensor) -> Tensor:
        return self.family.value(self.half_widths(action))


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
        return StateDependentHead(space, config.log_std, player.device)
    return BoxHead(space, config, player.device)
