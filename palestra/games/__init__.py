"""Games by name. To register one, add its config here."""

from typing import Annotated, Any

import torch

from palestra.config import ByName, Config, check
from palestra.games.classic_control import AcrobotConfig, CartPoleConfig, MountainCarConfig, PendulumConfig
from palestra.games.config import GameConfig
from palestra.games.dialogue.game import DialogueConfig
from palestra.games.game import Game, TensorGame
from palestra.games.gymnasium import GymnasiumConfig
from palestra.games.harvest import HarvestConfig
from palestra.games.matrix import MatrixConfig
from palestra.games.nim import NimConfig
from palestra.games.normalization import ObservationConfig
from palestra.games.polyhedra.game import PolyhedraConfig
from palestra.games.user_games import UserGameConfig

AnyGameConfig = Annotated[
    PolyhedraConfig
    | NimConfig
    | MatrixConfig
    | HarvestConfig
    | DialogueConfig
    | CartPoleConfig
    | PendulumConfig
    | AcrobotConfig
    | MountainCarConfig
    | GymnasiumConfig
    | UserGameConfig,
    ByName(user_class=TensorGame),
]


class OneGame(Config):
    """A game as it stands below `game` in a config."""

    game: AnyGameConfig
    """the rules"""


def make_game(config: GameConfig | dict[str, Any], device: str | torch.device = "cpu") -> Game:
    """Build the game that a mapping describes, as it stands below `game` in a config.

    Raises ConfigError with every fault at once, its path below `game`.
    """
    model: GameConfig = config if isinstance(config, GameConfig) else check({"game": config}, OneGame).game
    where = torch.device(device)
    return model.build(where, "numba" if where.type == "cpu" else "torch")
