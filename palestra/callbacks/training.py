"""The protocols of trainings that list what callbacks and evaluations may use of them."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from palestra.games.game import Game
from palestra.models.learning import Learner
from palestra.players.player import Player
from palestra.recording.results import Task
from palestra.recording.values import Recordable
from palestra.runtime.intervals import Counters

AnyLearner = Player | Learner  # a player of a game; or the model that learns from data, as the player `model`


class AnyTraining(Protocol):
    """A training of any kind. docs/callbacks.md lists what stands here and in PlayingTraining."""

    @property
    def config(self) -> Any:
        """The run's config."""

    @property
    def learners(self) -> Sequence[AnyLearner]:
        """The players that learn, in the order of their turns; or the model."""

    @property
    def opt_steps(self) -> int:
        """Opt steps of the whole run."""

    @property
    def epochs(self) -> int:
        """Epochs of the whole run."""

    @property
    def epoch_counts(self) -> Mapping[str, int]:
        """The numbers of `updates` and, if players play, of `roll_outs` that the running epoch has made so far."""

    @property
    def counters(self) -> Counters:
        """All counters that intervals and limits may name, with `minutes` of training."""

    def end_run(self, reason: str) -> None:
        """End the run before its `stop`, as complete, at the next safe point; the first reason counts."""

    def log(self, line: str) -> None:
        """Show a line that stays."""

    def note(self, name: str, value: Recordable) -> None:
        """Put a value into the next record, as notes/NAME."""

    def during(self, message: str, tasks: Sequence[Task]) -> AbstractContextManager[None]:
        """A context in which the display shows a message and tasks instead of training."""

    def show(self) -> None:
        """Update the display, if it is time: to be called now and then while something takes long."""

    def is_asked_to_leave(self) -> bool:
        """Whether a signal asks the run to leave."""


class PlayingTraining(AnyTraining, Protocol):
    """A training of players in a game."""

    @property
    def game(self) -> Game:
        """The run's game."""

    @property
    def players(self) -> Mapping[str, Player]:
        """The players by name."""

    @property
    def env_steps(self) -> int:
        """Env steps of the whole run."""

    @property
    def episodes(self) -> int:
        """Episodes of training that have finished, up to the last record."""

    def recent_returns(self, role: str) -> list[float]:
        """Returns of the last 100 games of training that have finished, oldest first."""
