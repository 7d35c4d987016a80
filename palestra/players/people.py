"""What games have in common in which a person sits in a role, at a terminal."""

from collections.abc import Callable, Iterable

from palestra.config import ConfigError
from palestra.games.game import Game

Say = Callable[[str], None]


class Left(Exception):
    """The person has left the game."""


def check_roles(game: Game, option: str, roles: Iterable[str]) -> None:
    """Raise ConfigError unless the game has these roles."""
    for role in (each for each in roles if each not in game.roles):
        raise ConfigError.at(option, f"expected a role of the game ({', '.join(game.roles)}), got {role!r}")
