"""Any Gymnasium environment as a game: config, arguments, wrappers, spaces, seeds, running statistics, worlds."""

from palestra.games.gymnasium.game import GymnasiumConfig, GymnasiumGame
from palestra.games.gymnasium.world import GymnasiumWorld
