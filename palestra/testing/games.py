"""Checks that a game of your own keeps the promises of TensorGame."""

from palestra.config import ConfigError
from palestra.games.game import TensorGame
from palestra.games.tryout import try_game

NUM_MOVES = 200


def check_game(game: TensorGame) -> None:
    """Play a game for 200 moves with random legal actions, and check what its methods return.

    It checks the shapes, dtypes and devices of states, observations, masks, rewards and ends; whether the same input
    gives the same output, for a single world as for many, and nothing is written to the input; whether some role
    decides in every world at least once in 100 moves; and whether `refill`, `transition_in_place` and `stepper`, if the
    game has its own, do what the other methods do. Raises TypeError for an object that is no TensorGame, and
    ConfigError with a line for every fault, which begins with the method's name.
    """
    if not isinstance(game, TensorGame):
        raise TypeError(f"expected a TensorGame, got {type(game).__name__}")
    faults = try_game(game, NUM_MOVES)
    ConfigError.require_none(faults)
