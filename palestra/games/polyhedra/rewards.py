"""Rewards of the polyhedra game, by name, and the base of a user's own.

A reward is a function of the boards before and after a round: points of shape (B, N, n), rows with a negative entry are
absent.
"""

from abc import ABC, abstractmethod
from typing import Annotated, Literal

import numpy as np
import torch
from torch import Tensor

from palestra.config import ByName, Config, Fraction, UserConfig, load_class


class Reward(ABC):
    """The rewards of host and agent in a round. A user's own class derives from it and carries its `Config`."""

    def __init__(self, config: Config) -> None:
        self.config = config

    @abstractmethod
    def __call__(self, before: Tensor, after: Tensor, won: Tensor) -> Tensor:
        """Return float32 (B, 2): host, agent. before, after: float64 (B, N, n). won: bool (B,), the game has ended."""


class SumReward(Reward):
    """A sum of rewards for winning, for every round and for every point that it removes.

    The host gets `per_win` in the round that ends the game, `per_round` in every round and `per_point` for every point
    that the round removed; the agent gets the negative.
    """

    def __init__(self, config: Config, per_win: float, per_round: float, per_point: float) -> None:
        super().__init__(config)
        self.terms = (np.float32(per_win), np.float32(per_round), np.float32(per_point))

    def __call__(self, before: Tensor, after: Tensor, won: Tensor) -> Tensor:
        per_win, per_round, per_point = map(float, self.terms)
        host = per_win * won + per_round  # the order of the operations is that of game_kernel.end_round
        if per_point:
            host = host + per_point * ((before[..., 0] >= 0).sum(1) - (after[..., 0] >= 0).sum(1))
        return torch.stack([host, -host], dim=1).to(torch.float32)


class WinRewardConfig(Config):
    name: Literal["win"]
    """host +1 and agent -1 in the round that ends the game, else 0, as in the original game"""


class LengthRewardConfig(Config):
    name: Literal["length"]
    """host -1 and agent +1 in every round: the return is the length of the game"""


class PointsRewardConfig(Config):
    name: Literal["points"]
    """host: what `win` gives, plus a share of the points that the round removed; agent: the negative"""
    weight: Fraction
    """reward per removed point, divided by the most points that a board can have"""


RewardConfig = Annotated[
    WinRewardConfig | LengthRewardConfig | PointsRewardConfig | UserConfig, ByName(user_class=Reward)
]


def make_reward(config: Config, max_num_points: int) -> Reward:
    """Build the reward that a config names. Raises TypeError for another config."""
    match config:
        case WinRewardConfig():
            return SumReward(config, per_win=1.0, per_round=0.0, per_point=0.0)
        case LengthRewardConfig():
            return SumReward(config, per_win=0.0, per_round=-1.0, per_point=0.0)
        case PointsRewardConfig(weight=weight):
            return SumReward(config, per_win=1.0, per_round=0.0, per_point=weight / max_num_points)
        case UserConfig():
            return load_class(config.name, Reward)(config)  # type: ignore[type-abstract]
    raise TypeError(f"expected the config of a reward, got {config!r}")
