"""What games have in common in which a person sits in a role, at a terminal."""

from collections.abc import Callable

from palestra.config import ConfigError
from palestra.games.game import Game

Say = Callable[[str], None]


class Left(Exception):
    """The person has left the game."""


def check_role(game: Game, option: str, role: str) -> None:
    """Raise ConfigError unless the game has the role."""
    if role not in game.roles:
        raise ConfigError.at(option, f"expected a role of the game ({', '.join(game.roles)}), got {role!r}")
