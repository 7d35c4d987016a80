"""The base of callbacks."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from palestra.config import Config, ConfigErrorItem, PartError
from palestra.players.player import Metrics, Player

if TYPE_CHECKING:
    from palestra.training.trainer import Trainer


class Callback:
    """Override any hook. Each receives the trainer; `trainer.epoch_counts` says what the running epoch has done so far.

    A callback that keeps state gives it by `state_dict` and takes it back by `load_state_dict`.
    """

    def __init__(self, config: Any) -> None:
        self.config = config

    def check(self, trainer: "Trainer") -> None:
        """Called at the beginning of `fit`, before anything is written: raise PartError(self.config, ...) where the
        config does not fit the run."""

    def before_train(self, trainer: "Trainer") -> None: ...

    def before_epoch(self, trainer: "Trainer") -> None: ...

    def before_step(self, trainer: "Trainer", player: Player) -> None: ...

    def after_step(self, trainer: "Trainer", player: Player, metrics: Metrics) -> None: ...

    def after_evaluation(self, trainer: "Trainer", record: Mapping[str, Any]) -> None: ...

    def after_epoch(self, trainer: "Trainer") -> None: ...

    def after_train(self, trainer: "Trainer") -> None: ...

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


def learner_named(name: str, config: CallbackConfig, trainer: "Trainer") -> Player:
    """The learning player that the key `player` of a callback names. Raises PartError if there is none."""
    for player in trainer.learners:
        if player.name == name:
            return player
    learners = ", ".join(player.name for player in trainer.learners)
    message = f"{name!r} is no player that learns here; expected one of: {learners}"
    raise PartError(config, [ConfigErrorItem("player", message)])
