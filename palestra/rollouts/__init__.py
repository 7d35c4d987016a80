"""Playing games in batches, and what comes of it."""

from palestra.games.game import Game, TensorGame
from palestra.games.world import TensorWorld, WorldGame
from palestra.rollouts.fused import FusedGame
from palestra.rollouts.solo import SoloGame


def fuse(game: Game) -> FusedGame | SoloGame:
    """What plays a game: one role is played in a leaner loop. The policies are to be put in."""
    match game:
        case TensorGame(roles=(_,)):
            return SoloGame(game, {}, lambda num_worlds, seed, keys: TensorWorld(game, keys))
        case TensorGame():
            return FusedGame(game, {})
        case WorldGame():
            return SoloGame(game, {}, lambda num_worlds, seed, keys: game.make_world(num_worlds, seed, training=True))
    raise TypeError(f"expected a TensorGame or a WorldGame, got {type(game).__name__}")
