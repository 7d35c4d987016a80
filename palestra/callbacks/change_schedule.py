"""The callback `change_schedule`: replaces a schedule from a moment on."""

from collections.abc import Mapping
from typing import Any, Literal

from palestra.callbacks.callback import Callback, CallbackConfig, learner_named
from palestra.callbacks.training import AnyLearner, AnyTraining
from palestra.config import ConfigErrorItem, NonEmptyStr, PartError
from palestra.runtime.intervals import Limit
from palestra.schedules import Schedule, ScheduleConfig


class ChangeScheduleConfig(CallbackConfig):
    name: Literal["change_schedule"]
    """another schedule from a moment on"""
    player: NonEmptyStr
    """whose schedule changes"""
    key: NonEmptyStr
    """where the schedule stands below the player's algorithm, as learning_rate or exploration.epsilon; of a model,
    below `learning`, as groups.0.learning_rate"""
    at: Limit
    """when it changes: at the first opt step or epoch that begins at or after this count"""
    schedule: ScheduleConfig
    """the new schedule; still a function of all the player's opt steps"""

    def build(self) -> "ChangeSchedule":
        return ChangeSchedule(self)


class ChangeSchedule(Callback):
    """Replaces a schedule of a player once, when the time has come."""

    config: ChangeScheduleConfig

    def __init__(self, config: ChangeScheduleConfig) -> None:
        super().__init__(config)
        self.is_done = False

    def check(self, training: AnyTraining) -> None:
        schedule_at(self.config, training)

    def before_step(self, training: AnyTraining, player: AnyLearner) -> None:
        self.before_epoch(training)

    def before_epoch(self, training: AnyTraining) -> None:
        if not self.is_done and self.config.at.share(training.counters) >= 1.0:
            self.is_done = True
            player = learner_named(self.config.player, self.config, training)
            player.change_schedule(self.config.key, self.config.schedule)

    def begin_branch(self) -> None:
        self.is_done = False  # a branch begins with the schedules of its config

    def state_dict(self) -> dict[str, Any]:
        return {"is_done": self.is_done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.is_done = state["is_done"]


def schedule_at(config: Any, training: AnyTraining) -> Schedule:
    """The schedule that the keys `player` and `key` of a callback name. Raises PartError if there is none."""
    schedules: Mapping[str, Schedule] = learner_named(config.player, config, training).schedules()
    if config.key not in schedules:
        message = f"expected a schedule of {config.player!r} that can change ({', '.join(schedules)})"
        raise PartError(config, [ConfigErrorItem("key", f"{message}, got {config.key!r}")])
    return schedules[config.key]
