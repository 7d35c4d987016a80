"""Rewards of the polyhedra game, by name, and the base of a user's own.

A reward sees the boards before and after a round: points of shape (B, N, n), rows with a negative entry are absent.
"""

from abc import ABC, abstractmethod
from typing import Annotated, Literal

import torch
from torch import Tensor

from palestra.config import ByName, Config, Fraction, UserConfig, load_class


class Reward(ABC):
    """What host and agent earn in a round. A user's own class derives from it and carries its `Config`."""

    def __init__(self, config: Config) -> None:
        self.config = config

    @abstractmethod
    def __call__(self, before: Tensor, after: Tensor, won: Tensor) -> Tensor:
        """float32 (B, 2): host, agent. before, after: float64 (B, N, n). won: bool (B,), the round ended the game."""


class WinRewardConfig(Config):
    name: Literal["win"]
    """host +1 and agent -1 in the round that ends the game, else 0"""


class WinReward(Reward):
    """Host +1 and agent -1 in the round that ends the game, else 0: the reward of the original game."""

    def __call__(self, before: Tensor, after: Tensor, won: Tensor) -> Tensor:
        host = won.to(torch.float32)
        return torch.stack([host, -host], dim=1)


class LengthRewardConfig(Config):
    name: Literal["length"]
    """host -1 and agent +1 in every round"""


class LengthReward(Reward):
    """Host -1 and agent +1 in every round: the return is the length of the game."""

    def __call__(self, before: Tensor, after: Tensor, won: Tensor) -> Tensor:
        return torch.tensor([-1.0, 1.0], device=won.device).expand(len(won), 2)


class PointsRewardConfig(Config):
    name: Literal["points"]
    """host: what `win` gives, plus a share of the points that the round removed; agent: the negative"""
    weight: Fraction
    """reward per removed point, divided by the most points that a board can have"""


class PointsReward(Reward):
    """`win`, plus `weight` times the share of the board's places that the round emptied."""

    config: PointsRewardConfig

    def __call__(self, before: Tensor, after: Tensor, won: Tensor) -> Tensor:
        removed = (before[..., 0] >= 0).sum(1) - (after[..., 0] >= 0).sum(1)
        host = won + self.config.weight * removed / before.shape[1]
        return torch.stack([host, -host], dim=1).to(torch.float32)


RewardConfig = Annotated[
    WinRewardConfig | LengthRewardConfig | PointsRewardConfig | UserConfig, ByName(user_class=Reward)
]


def make_reward(config: Config) -> Reward:
    """The reward that a config names."""
    classes: dict[type[Config], type[Reward]] = {
        WinRewardConfig: WinReward,
        LengthRewardConfig: LengthReward,
        PointsRewardConfig: PointsReward,
    }
    if isinstance(config, UserConfig):
        return load_class(config.name, Reward)(config)  # type: ignore[type-abstract]
    return classes[type(config)](config)
