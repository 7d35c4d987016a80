"""Games of a user's own class."""

from typing import Any

import torch

from palestra.config import ConfigError, ConfigErrorItem, UserConfig, failure, load_class
from palestra.games.config import GameConfig
from palestra.games.game import Kernel, TensorGame
from palestra.games.normalization import make_transform
from palestra.games.tryout import faults_of_roles, try_game
from palestra.games.tryout_scores import faults_of_declared
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
            game: TensorGame = made(self, device)
        except Exception as error:
            message = f"{self.name!r} cannot be made: {failure(error)}"
            raise ConfigError.at("game", message) from error
        return game
