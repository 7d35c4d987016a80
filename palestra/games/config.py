"""What the config of a game tells before the game is built."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import ClassVar

import torch

from palestra.config import Config, ConfigErrorItem
from palestra.games.game import Game, Kernel

_is_without = ContextVar("is_without_environments", default=False)


class GameConfig(Config):
    """Base of the configs of games, which stand beside their game and build it.

    Must be implemented: `build`. May be overridden: all else, where the game makes environments, which `palestra check`
    and a report do not, or where it is told from the config alone.
    """

    name: str
    has_info: ClassVar[bool] = False
    """whether a step gives fields that `output.info` may ask for"""

    def build(self, device: torch.device, kernel: Kernel) -> Game:
        """The game. kernel: changes speed, never a result. Raises ConfigError, with paths from `game` on."""
        raise NotImplementedError

    def declared_roles(self) -> tuple[str, ...]:
        """The roles of the game that is built, in its order."""
        return self.build(torch.device("cpu"), "torch").roles

    def declares_actions(self) -> bool:
        """Whether it is known before anything is made how many actions there are."""
        return True

    def made_environment(self) -> str | None:
        """The environment that building the game makes, by its id; None: building makes none."""
        return None

    def misfit(self, other: "GameConfig") -> ConfigErrorItem | None:
        """Why players of this game cannot be evaluated in another one with the same roles, with the path below that
        one's config. What they observe and do is compared when both are built."""
        return None


class NotDeclared(Exception):
    """Only the environment itself can tell what it shows and takes."""


@contextmanager
def without_environments() -> Iterator[None]:
    """Until the end of the block no environment is made: what asks for one gets a stand-in, or NotDeclared."""
    token = _is_without.set(True)
    try:
        yield
    finally:
        _is_without.reset(token)


def is_without_environments() -> bool:
    return _is_without.get()
