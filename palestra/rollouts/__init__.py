"""Playing games in batches, and what comes of it."""

from palestra.games.game import Game, TensorGame
from palestra.games.gymnasium import GymnasiumGame
from palestra.games.world import TensorWorld
from palestra.rollouts.fused import FusedGame
from palestra.rollouts.solo import SoloGame


def fuse(game: Game) -> FusedGame | SoloGame:
    """What plays a game: one role is played in a leaner loop. The policies are to be put in."""
    if isinstance(game, GymnasiumGame):
        gym = game
        return SoloGame(gym, {}, lambda num_worlds, key, keys: gym.make_world(num_worlds, key, training=True))
    assert isinstance(game, TensorGame)
    if len(game.roles) > 1:
        return FusedGame(game, {})
    return SoloGame(game, {}, lambda num_worlds, seed, keys: TensorWorld(game, keys))
