"""Plays games in batches, and makes transitions of what the players experience."""

from palestra.games.game import Game, TensorGame
from palestra.games.world import TensorWorld, WorldGame
from palestra.rollouts.fused import FusedGame
from palestra.rollouts.solo import SoloGame


def fuse(game: Game) -> FusedGame | SoloGame:
    """Make the object that plays a game: SoloGame for one role, because its loop is faster, else FusedGame.

    The caller sets its policies.
    """
    match game:
        case TensorGame(roles=(_,)):
            return SoloGame(game, {}, lambda num_worlds, key, first, keys: TensorWorld(game, keys))
        case TensorGame():
            return FusedGame(game, {})
        case WorldGame():
            return SoloGame(
                game, {}, lambda num, key, first, keys: game.make_world(num, key, training=True, first=first)
            )
    raise TypeError(f"expected a TensorGame or a WorldGame, got {type(game).__name__}")
