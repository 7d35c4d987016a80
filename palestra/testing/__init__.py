"""Checks for games, environments, algorithms and data sets of your own, to be called in your own tests.

Each raises ConfigError with a line for every fault, which begins with the name of the method.
"""

from palestra.testing.algorithms import check_algorithm
from palestra.testing.data import check_data
from palestra.testing.environments import check_environment, check_game
from palestra.testing.models import check_model
