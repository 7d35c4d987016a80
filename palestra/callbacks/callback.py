"""The base of callbacks."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from palestra.callbacks.training import PlayingTraining, Training
from palestra.config import Config, ConfigErrorItem, PartError
from palestra.players.player import Metrics, Player
from palestra.rollouts.transitions import RollOut


class Callback:
    """Override any hook. Each receives the training: the trainer, of which a callback uses what
    palestra.callbacks.training lists.

    A callback that keeps state gives it by `state_dict` and takes it back by `load_state_dict`.
    """

    def __init__(self, config: Any) -> None:
        self.config = config

    def check(self, training: Training) -> None:
        """Called at the beginning of `fit`, before anything is written: raise PartError(self.config, ...) where the
        config does not fit the run."""

    def before_train(self, training: Training) -> None: ...

    def before_epoch(self, training: Training) -> None: ...

    def after_roll_out(self, training: Training, player: Player, roll_out: RollOut) -> None:
        """roll_out: what the player has just experienced, a list with one entry, by role; to be looked at, not
        changed."""

    def before_step(self, training: Training, player: Player) -> None: ...

    def after_step(self, training: Training, player: Player, metrics: Metrics) -> None: ...

    def after_evaluation(self, training: Training, record: Mapping[str, Any]) -> None: ...

    def after_save(self, training: Training, checkpoint: Path) -> None:
        """checkpoint: its folder. What this changes in the callback lies in the next checkpoint only, and a run that
        goes on from this one does not call it again: for copies and messages."""

    def after_epoch(self, training: Training) -> None: ...

    def after_train(self, training: Training) -> None: ...

    def begin_branch(self) -> None:
        """Called after `load_state_dict` where a run branches off another: forget what belongs to that one alone."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class CallbackConfig(Config):
    """Base of the configs of callbacks that have a name; each stands beside its callback and builds it."""

    name: str

    def build(self) -> Callback:
        raise NotImplementedError


def playing(training: Training, config: CallbackConfig) -> PlayingTraining:
    """The training, as one of players. Raises PartError for one in which nobody plays."""
    if not isinstance(training, PlayingTraining):
        message = f"expected a run in which players play, got one of {type(training).__name__}"
        raise PartError(config, [ConfigErrorItem("name", message)])
    return training


def learner_named(name: str, config: CallbackConfig, training: Training) -> Player:
    """The learning player that the key `player` of a callback names. Raises PartError if there is none."""
    learners = {player.name: player for player in playing(training, config).learners}
    if name not in learners:
        message = f"expected the name of a player that learns: {', '.join(learners)}; got {name!r}"
        raise PartError(config, [ConfigErrorItem("player", message)])
    return learners[name]
