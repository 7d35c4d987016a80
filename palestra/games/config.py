"""The base of the configs of games, which answers questions about a game before it is built."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ClassVar

import torch

from palestra.config import Config, ConfigErrorItem
from palestra.games.game import Game, Kernel, TensorGame
from palestra.games.normalization import UNCHANGED, ObservationConfig, make_transform
from palestra.runtime.scores import DeclaredScore

MOST_ROUNDS = 1000  # of a game that may go on for ever

_is_without = ContextVar("is_without_environments", default=False)


class GameConfig(Config):
    """Base of the configs of games; each stands in the file of its game.

    Must be implemented: `build`. May be overridden: the other methods, if building the game makes environments, which
    `palestra check` and a report must not do, or if the config alone answers them faster.
    """

    name: str
    usual_run: ClassVar[Mapping[str, Any]] = {}
    """keys of a run that a first file has with this game: who trains, who sits where"""
    can_be_played: ClassVar[bool] = True
    """whether the game has rules, by which it is played"""

    def build(self, device: torch.device, kernel: Kernel) -> Game:
        """Build the game. kernel: changes speed, never a result. Raises ConfigError, with paths from `game` on."""
        raise NotImplementedError

    def declared_roles(self) -> tuple[str, ...]:
        """Return the roles of the game that the config builds, in the game's order."""
        return self.build(torch.device("cpu"), "torch").roles

    def declared_scores(self) -> tuple[DeclaredScore, ...]:
        """Return the scores that the game of this config declares."""
        return self.build(torch.device("cpu"), "torch").declared_scores

    def describe_turns(self) -> list[str]:
        """Describe who acts when, in lines that `palestra check` prints; [] if the roles alone tell."""
        return []

    def declares_actions(self) -> bool:
        """Tell whether the number of actions is known before an environment is made."""
        return True

    def environment_id(self) -> str | None:
        """Return the id of the environment that `build` makes, whose steps have an `info`; None if it makes none."""
        return None

    def can_end_steps(self) -> bool:
        """Tell whether an environment that hangs can be ended inside a step, because it is a process of its own."""
        return False

    def usual_rounds(self) -> int:
        """Return the number of rounds after which a first file cuts off the games of its evaluations."""
        return getattr(self, "max_rounds", None) or MOST_ROUNDS

    def unset_limit(self) -> str | None:
        """Return the key, below `game`, that could limit the rounds of a game and does not.

        None if there is a limit, or if the config does not tell.
        """
        return "max_rounds" if getattr(self, "max_rounds", 0) is None else None

    def misfit(self, other: "GameConfig") -> ConfigErrorItem | None:
        """Say why players of this game cannot be evaluated in another game with the same roles; None if they can.

        The path is relative to the other config. Spaces are compared later, when both games are built.
        """
        own, theirs = self.observations(), other.observations()
        if own != theirs:
            message = "expected the same as in the run's game, with which its players were trained, got another one"
            return ConfigErrorItem("observation", message)
        is_environment = (self.environment_id() is not None, other.environment_id() is not None)
        if own.normalize is not None and is_environment[0] != is_environment[1]:
            why = "because tensor games and environments have no running statistics in common"
            return ConfigErrorItem(
                "observation.normalize", f"expected null here and in the run's game, {why}, got a mapping"
            )
        return None

    def observations(self) -> ObservationConfig:
        """Return how observations are changed before players get them; UNCHANGED if the config has no `observation`."""
        found = getattr(self, "observation", None)
        if not isinstance(found, ObservationConfig):
            return UNCHANGED
        return ObservationConfig(normalize=found.normalize, clip=found.clip)


class TensorGameConfig(GameConfig):
    """Base of the configs of palestra's tensor games. Must be implemented: `make`."""

    observation: ObservationConfig
    """what is done with observations before players get them, for each role by statistics of its own; sets are only
    divided, by their root mean square, and images stay as they are"""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        fields = cls.__pydantic_fields__  # last, after the rules
        fields["observation"] = fields.pop("observation")

    def make(self, device: torch.device, kernel: Kernel) -> TensorGame:
        """Make the rules alone. Arguments and errors as of `build`."""
        raise NotImplementedError

    def build(self, device: torch.device, kernel: Kernel) -> TensorGame:
        game = self.make(device, kernel)
        game.observation_transform = make_transform(self.observation, game.spaces, device)
        return game


class NotDeclared(Exception):
    """The config does not determine the spaces of an environment; it must be made to know them."""


@contextmanager
def without_environments() -> Iterator[None]:
    """Make no environment inside the block: a request for one returns a stand-in, or raises NotDeclared."""
    token = _is_without.set(True)
    try:
        yield
    finally:
        _is_without.reset(token)


def is_without_environments() -> bool:
    return _is_without.get()
