"""Games by name. To register one, add its config here."""

from typing import Annotated, Any

import torch

from palestra.config import ByName, Config, check
from palestra.games.classic_control import AcrobotConfig, CartPoleConfig, MountainCarConfig, PendulumConfig
from palestra.games.config import GameConfig
from palestra.games.game import Game, TensorGame
from palestra.games.gymnasium import GymnasiumConfig
from palestra.games.nim import NimConfig
from palestra.games.polyhedra.game import PolyhedraConfig
from palestra.games.user_games import UserGameConfig

AnyGameConfig = Annotated[
    PolyhedraConfig
    | NimConfig
    | CartPoleConfig
    | PendulumConfig
    | AcrobotConfig
    | MountainCarConfig
    | GymnasiumConfig
    | UserGameConfig,
    ByName(user_class=TensorGame),
]

__all__ = ["AnyGameConfig", "Game", "GameConfig", "TensorGame", "UserGameConfig", "read_game"]


class _OneGame(Config):
    game: AnyGameConfig
    """the rules"""


def read_game(config: GameConfig | dict[str, Any]) -> Game:
    """Build the game of a config or a mapping, on the CPU. Raises ConfigError with every fault, its path below
    `game`."""
    model: GameConfig = check({"game": config}, _OneGame).game if isinstance(config, dict) else config
    return model.build(torch.device("cpu"), "numba")
