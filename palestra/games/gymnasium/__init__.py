"""Any Gymnasium environment as a game: config, arguments, wrappers, spaces, seeds, running statistics, worlds."""

from palestra.games.gymnasium.config import GymnasiumConfig
from palestra.games.gymnasium.faults import EnvironmentFailed
from palestra.games.gymnasium.game import GymnasiumGame
from palestra.games.gymnasium.world import GymnasiumWorld

__all__ = ["EnvironmentFailed", "GymnasiumConfig", "GymnasiumGame", "GymnasiumWorld"]
