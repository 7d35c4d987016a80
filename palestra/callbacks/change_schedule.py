"""`change_schedule`: another schedule from a moment on."""

from typing import TYPE_CHECKING, Any, Literal

from palestra.callbacks.callback import Callback, CallbackConfig, learner_named
from palestra.config import ConfigErrorItem, NonEmptyStr, PartError
from palestra.players.player import Player
from palestra.runtime.intervals import Limit
from palestra.schedules import Schedule, ScheduleConfig

if TYPE_CHECKING:
    from palestra.training.trainer import Trainer


class ChangeScheduleConfig(CallbackConfig):
    name: Literal["change_schedule"]
    """another schedule from a moment on"""
    player: NonEmptyStr
    """whose"""
    key: NonEmptyStr
    """where it stands below the player's algorithm, as learning_rate or exploration.epsilon"""
    at: Limit
    """when: the first opt step or epoch that begins there or after"""
    schedule: ScheduleConfig
    """the new one; still a function of all the player's opt steps"""

    def build(self) -> "ChangeSchedule":
        return ChangeSchedule(self)


class ChangeSchedule(Callback):
    config: ChangeScheduleConfig

    def __init__(self, config: ChangeScheduleConfig) -> None:
        super().__init__(config)
        self.is_done = False

    def check(self, trainer: "Trainer") -> None:
        schedule_at(self.config.key, self.config.player, self.config, trainer)

    def before_epoch(self, trainer: "Trainer") -> None:
        self._change_when_due(trainer)

    def before_step(self, trainer: "Trainer", player: Player) -> None:
        self._change_when_due(trainer)

    def _change_when_due(self, trainer: "Trainer") -> None:
        if not self.is_done and self.config.at.share(trainer.counters) >= 1.0:
            self.is_done = True
            trainer.players[self.config.player].change_schedule(self.config.key, self.config.schedule)

    def begin_branch(self) -> None:
        self.is_done = False  # a branch begins with the schedules of its config

    def state_dict(self) -> dict[str, Any]:
        return {"is_done": self.is_done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.is_done = state["is_done"]


def schedule_at(key: str, player: str, config: CallbackConfig, trainer: "Trainer") -> Schedule:
    """The schedule that the key `key` of a callback names. Raises PartError if there is none."""
    schedules = learner_named(player, config, trainer).schedules()
    if key not in schedules:
        message = f"{key!r} is no schedule of {player!r} that can change; expected one of: {', '.join(schedules)}"
        raise PartError(config, [ConfigErrorItem("key", message)])
    return schedules[key]
