"""Any Gymnasium environment as a game: config, arguments, wrappers, spaces, seeds, running statistics, worlds."""

from palestra.games.gym.config import GymnasiumConfig
from palestra.games.gym.faults import EnvironmentFailed
from palestra.games.gym.game import GymnasiumGame
from palestra.games.gym.world import GymnasiumWorld

__all__ = ["EnvironmentFailed", "GymnasiumConfig", "GymnasiumGame", "GymnasiumWorld"]
