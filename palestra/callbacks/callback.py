"""The base class of callbacks, and of the configs of those with a name."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from palestra.callbacks.training import AnyLearner, AnyTraining
from palestra.config import Config, ConfigErrorItem, PartError
from palestra.players.player import Metrics, Player
from palestra.rollouts.transitions import Transitions


class Callback:
    """The base of all callbacks: a subclass overrides any of the hooks.

    Each hook receives the training (the trainer), of which it may use what palestra.callbacks.training lists.

    A callback with state returns it from `state_dict`, and restores it in `load_state_dict`; checkpoints hold it.
    """

    def __init__(self, config: Any) -> None:
        self.config = config

    def check(self, training: AnyTraining) -> None:
        """Called at the beginning of `fit`, before anything is written.

        It raises PartError(self.config, ...) where the config does not fit the run.
        """

    def before_train(self, training: AnyTraining) -> None:
        """Called when everything is built, or restored from a checkpoint."""

    def before_epoch(self, training: AnyTraining) -> None:
        """Called before each pass of the training logic."""

    def after_roll_out(self, training: AnyTraining, player: Player, by_role: Mapping[str, Transitions]) -> None:
        """Called after each roll-out.

        by_role: what the player has just experienced in each of its roles; not to be changed.
        """

    def before_step(self, training: AnyTraining, player: Any) -> None:
        """Called before each opt step of a player, or group of opt steps that are made at once.

        player: a Player; where a model learns from data, the Learner of the model, whose name is `model`.
        """

    def after_step(self, training: AnyTraining, player: Any, metrics: Metrics) -> None:
        """Called after each opt step of a player, or group of opt steps. metrics: those of the step, by name."""

    def after_evaluation(self, training: AnyTraining, record: Mapping[str, Any]) -> None:
        """Called when the result of an evaluation counts. record: as it stands in records.jsonl."""

    def after_save(self, training: AnyTraining, checkpoint: Path) -> None:
        """Called when a checkpoint was written, for copies and messages.

        checkpoint: its folder. Only the next checkpoint holds state that this changes, and a run that is resumed from
        this one does not call it again.
        """

    def after_epoch(self, training: AnyTraining) -> None:
        """Called after each pass of the training logic."""

    def after_train(self, training: AnyTraining) -> None:
        """Called when the run is done, or when a signal has asked it to leave."""

    def begin_branch(self) -> None:
        """Called after `load_state_dict` if this run branches off another one, to reset state of that run alone."""

    def state_dict(self) -> dict[str, Any]:
        """The state that checkpoints hold: texts, numbers, tensors, lists and dicts of these."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse of `state_dict`."""


class CallbackConfig(Config):
    """The base of the configs of callbacks with a name. Each stands beside its callback, and builds it."""

    name: str

    def build(self) -> Callback:
        raise NotImplementedError


def learner_named(name: str, config: CallbackConfig, training: AnyTraining) -> AnyLearner:
    """The learning player that the key `player` of a callback names. Raises PartError if there is none."""
    if not training.config.is_open:
        message = f"expected a callback that changes no player, because this is {training.config.in_words}"
        raise PartError(config, [ConfigErrorItem("name", f"{message}, got {config.name!r}")])
    learners = {player.name: player for player in training.learners}
    if not learners:
        message = f"expected a run in which players or a model learn, got {training.config.in_words}"
        raise PartError(config, [ConfigErrorItem("name", message)])
    if name not in learners:
        message = f"expected the name of a player that learns: {', '.join(learners)}; got {name!r}"
        raise PartError(config, [ConfigErrorItem("player", message)])
    return learners[name]
