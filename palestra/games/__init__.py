"""Games by name. To register one, add its config here."""

from typing import Annotated, Any

import torch

from palestra.config import ByName, Config, ConfigError, ConfigErrorItem, UserConfig, check, failure, load_class
from palestra.games.boards import ConnectFourConfig, TicTacToeConfig
from palestra.games.classic_control import AcrobotConfig, CartPoleConfig, MountainCarConfig, PendulumConfig
from palestra.games.config import GameConfig
from palestra.games.dialogue.game import DialogueConfig
from palestra.games.game import Game, Kernel, TensorGame
from palestra.games.gymnasium import GymnasiumConfig
from palestra.games.harvest import HarvestConfig
from palestra.games.matrix import MatrixConfig
from palestra.games.nim import NimConfig
from palestra.games.normalization import ObservationConfig, make_transform
from palestra.games.polyhedra.game import PolyhedraConfig
from palestra.games.spaces_game import SpacesConfig
from palestra.games.tryout import faults_of_declared, faults_of_roles, try_game
from palestra.runtime.scores import DeclaredScore

NUM_TRIED_MOVES = 8  # when it is built; palestra.testing.check_game tries more


class UserGameConfig(UserConfig, GameConfig):
    """Base of the `Config` of a user's own TensorGame, which is called as (config, device).

    A field `observation: ObservationConfig` lets palestra normalise what the game observes.
    """

    def build(self, device: torch.device, kernel: Kernel) -> TensorGame:
        """Make the game and try it for a few moves. Raises ConfigError with everything that is wrong with it."""
        game = self._make(device)
        ConfigError.require_none(ConfigErrorItem("game", str(fault)) for fault in try_game(game, NUM_TRIED_MOVES))
        game.observation_transform = make_transform(self.observations(), game.spaces, device)
        return game

    def declared_roles(self) -> tuple[str, ...]:
        """Return the roles of the game, which may depend on the config; the game is made, but not tried."""
        return self._made_with_roles().roles

    def declared_scores(self) -> tuple[DeclaredScore, ...]:
        return self._made_with_roles().declared_scores

    def _made_with_roles(self) -> TensorGame:
        game = self._make(torch.device("cpu"))
        faults = faults_of_roles(game) or faults_of_declared(game)
        ConfigError.require_none(ConfigErrorItem("game", str(fault)) for fault in faults)
        return game

    def _make(self, device: torch.device) -> TensorGame:
        made: Any = load_class(self.name, TensorGame)
        try:
            return made(self, device)
        except Exception as error:
            raise ConfigError.at("game", f"{self.name!r} cannot be made: {failure(error)}") from error


AnyGameConfig = Annotated[
    PolyhedraConfig
    | NimConfig
    | ConnectFourConfig
    | TicTacToeConfig
    | MatrixConfig
    | HarvestConfig
    | DialogueConfig
    | CartPoleConfig
    | PendulumConfig
    | AcrobotConfig
    | MountainCarConfig
    | GymnasiumConfig
    | SpacesConfig
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
