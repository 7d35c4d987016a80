"""Checks for games, environments and algorithms of one's own, to be called in one's own tests.

Each raises ConfigError with everything that it finds, one line each, and the name of the method at fault.
"""

from palestra.testing.algorithms import check_algorithm
from palestra.testing.environments import check_environment
from palestra.testing.games import check_game

__all__ = ["check_algorithm", "check_environment", "check_game"]
