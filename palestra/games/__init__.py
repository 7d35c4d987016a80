"""Games by name."""

from typing import Annotated, Any

import torch

from palestra.config import ByName, Config, ConfigError, ConfigErrorItem, UserConfig, check, failure, load_class
from palestra.games.classic_control import (
    Acrobot,
    AcrobotConfig,
    CartPole,
    CartPoleConfig,
    MountainCar,
    MountainCarConfig,
    Pendulum,
    PendulumConfig,
)
from palestra.games.game import Game, TensorGame
from palestra.games.gymnasium import GymnasiumConfig, GymnasiumGame
from palestra.games.nim import NimConfig, NimGame
from palestra.games.polyhedra.game import PolyhedraConfig, PolyhedraGame
from palestra.games.polyhedra.newton import Kernel
from palestra.games.trial import try_game

GameConfig = Annotated[
    PolyhedraConfig
    | NimConfig
    | CartPoleConfig
    | PendulumConfig
    | AcrobotConfig
    | MountainCarConfig
    | GymnasiumConfig
    | UserConfig,
    ByName(user_class=TensorGame),
]

GAMES: dict[str, type[Game]] = {
    "polyhedra": PolyhedraGame,
    "nim": NimGame,
    "cartpole": CartPole,
    "pendulum": Pendulum,
    "acrobot": Acrobot,
    "mountain_car": MountainCar,
    "gymnasium": GymnasiumGame,
}
NUM_TRIED_TURNS = 8  # of a user's own game, before it is played; palestra.testing.check_game tries more


def game_class(name: str) -> type[Game]:
    """The class behind a game's name: ours, or a user's own."""
    return GAMES.get(name) or load_class(name, TensorGame)


def make_game(config: Config, device: torch.device, kernel: Kernel) -> Game:
    """The rules that a config names. kernel: of the polyhedra game and of classic control; changes speed, never a
    result.

    A user's own class is called as (config, device), carries `Config`, and has its `roles` as a class attribute. It is
    tried (palestra.games.trial): raises ConfigError with all that is wrong with it.
    """
    match config:
        case PolyhedraConfig():
            return PolyhedraGame(config, device, kernel)
        case NimConfig():
            return NimGame(config, device)
        case GymnasiumConfig():
            return GymnasiumGame(config, device)
        case CartPoleConfig():
            return CartPole(config, device, kernel)
        case PendulumConfig():
            return Pendulum(config, device, kernel)
        case AcrobotConfig():
            return Acrobot(config, device, kernel)
        case MountainCarConfig():
            return MountainCar(config, device, kernel)
        case UserConfig():
            return _make_own_game(config, device)
    raise TypeError(f"{type(config).__name__} is no config of a game")


def _make_own_game(config: UserConfig, device: torch.device) -> Game:
    own: Any = game_class(config.name)
    try:
        game: TensorGame = own(config, device)
    except Exception as error:
        message = f"{config.name!r} cannot be made: {failure(error)}"
        raise ConfigError([ConfigErrorItem("game", message)]) from error
    faults = try_game(game, NUM_TRIED_TURNS)
    if faults:
        raise ConfigError([ConfigErrorItem("game", str(fault)) for fault in faults])
    return game


class _OneGame(Config):
    game: GameConfig
    """the rules"""


def read_game(config: Config | dict[str, Any]) -> Game:
    """The rules that a config or a mapping says, for the CPU. Raises ConfigError with every fault, below `game`."""
    model = check({"game": config}, _OneGame).game if isinstance(config, dict) else config
    return make_game(model, torch.device("cpu"), "numba")
