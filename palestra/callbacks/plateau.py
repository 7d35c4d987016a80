"""The callbacks `early_stopping` and `reduce_on_plateau`, which act when a measure no longer improves."""

import math
from collections.abc import Mapping
from statistics import fmean
from typing import Annotated, Any, Literal, cast

from palestra.callbacks.callback import Callback, CallbackConfig, learner_named
from palestra.callbacks.change_schedule import schedule_at
from palestra.callbacks.training import AnyTraining, PlayingTraining
from palestra.config import (
    ByName,
    Config,
    ConfigErrorItem,
    Fraction,
    NonEmptyStr,
    NonNegativeFloat,
    NonNegativeInt,
    PartError,
    PositiveInt,
)
from palestra.evaluation.measures import MeasureName
from palestra.runtime.intervals import Counters, Interval


class EvaluationMeasureConfig(Config):
    name: Literal["evaluation"]
    """a score of an evaluation, each time that it is played"""
    evaluation: NonEmptyStr
    """which of the evaluations, by name"""
    pairing: NonNegativeInt | None
    """which of its pairings, counted from 0; null: a function of your own gets the record of all pairings"""
    measure: MeasureName
    """as in `best`: rho, return/ROLE, length/iqm, info/FIELD, package.module:function, ..."""

    def user_names(self) -> list[str]:
        return [self.measure] if ":" in self.measure else []


class TrainingMeasureConfig(Config):
    name: Literal["training_returns"]
    """mean return of the last 100 games of training, which are played with exploration"""
    role: NonEmptyStr
    """the role whose returns count"""
    interval: Interval
    """between two measurements, each at the end of an epoch; the first one when a game has finished"""


class PlateauConfig(CallbackConfig):
    """The keys that both callbacks have."""

    of: Annotated[EvaluationMeasureConfig | TrainingMeasureConfig, ByName()]
    """what is measured"""
    goal: Literal["max", "min"]
    """whether more (max) or less (min) is better"""
    min_delta: NonNegativeFloat
    """a measurement improves only if it is better than the best one by more than this"""
    patience: PositiveInt
    """act after this many measurements in a row without improvement"""


class EarlyStoppingConfig(PlateauConfig):
    name: Literal["early_stopping"]
    """end the run when a measure no longer improves"""

    def build(self) -> "EarlyStopping":
        return EarlyStopping(self)


class ReduceOnPlateauConfig(PlateauConfig):
    name: Literal["reduce_on_plateau"]
    """lower a schedule, as the learning rate, when a measure no longer improves"""
    player: NonEmptyStr
    """whose schedule"""
    key: NonEmptyStr
    """where the schedule stands below the player's algorithm, as learning_rate; of a model, below `learning`, as
    groups.0.learning_rate"""
    factor: Fraction
    """each time, all later values of the schedule are multiplied by this"""

    def build(self) -> "ReduceOnPlateau":
        return ReduceOnPlateau(self)


class Plateau(Callback):
    """Calls `on_plateau` when `patience` measurements in a row have not improved, and then counts from 0 again.

    A measurement that is nan does not improve.
    """

    config: PlateauConfig

    def __init__(self, config: PlateauConfig) -> None:
        super().__init__(config)
        self.best: float | None = None
        self.num_waited = 0
        self.measured_at: Counters = {}  # counters at the last measurement; of others 0

    def on_plateau(self, training: AnyTraining) -> None:
        """Called when `patience` measurements in a row have not improved."""
        raise NotImplementedError

    def check(self, training: AnyTraining) -> None:
        of, faults = self.config.of, []
        if not isinstance(of, TrainingMeasureConfig):
            faults = training.config.measure_errors(of)
        elif not (roles := training.config.measured_roles()):
            message = f"expected 'evaluation', because this is {training.config.in_words}, got {of.name!r}"
            faults = [ConfigErrorItem("name", message)]
        elif of.role not in roles:
            faults = [ConfigErrorItem("role", f"expected one of {', '.join(roles)}, got {of.role!r}")]
        if faults:
            raise PartError(of, faults)

    def before_train(self, training: AnyTraining) -> None:
        minutes = training.counters["minutes"]  # which no checkpoint holds
        self.measured_at = {**dict.fromkeys(training.counters, 0), **self.measured_at, "minutes": minutes}

    def after_evaluation(self, training: AnyTraining, record: Mapping[str, Any]) -> None:
        of = self.config.of
        if isinstance(of, EvaluationMeasureConfig) and (score := training.config.measure(of).of(record)) is not None:
            self._measure(training, score)

    def after_epoch(self, training: AnyTraining) -> None:
        of = self.config.of
        if isinstance(of, TrainingMeasureConfig) and of.interval.due(self.measured_at, training.counters):
            self.measured_at = training.counters
            if returns := cast(PlayingTraining, training).recent_returns(of.role):
                self._measure(training, fmean(returns))

    def _measure(self, training: AnyTraining, value: float) -> None:
        sign = 1.0 if self.config.goal == "max" else -1.0
        best = -math.inf if self.best is None else sign * self.best
        if sign * value > best + self.config.min_delta:
            self.best, self.num_waited = value, 0
            return
        self.num_waited += 1
        if self.num_waited >= self.config.patience:
            self.num_waited = 0
            self.on_plateau(training)

    def reason(self) -> str:
        """Say what has not improved."""
        of, best = self.config.of, "no number" if self.best is None else f"{self.best:g}"
        if isinstance(of, TrainingMeasureConfig):
            what = f"the training returns of {of.role!r} have"
        else:
            what = f"{of.measure} of evaluation {of.evaluation!r} has"
        return f"{what} not improved on {best} in {self.config.patience} measurements"

    def begin_branch(self) -> None:
        self.best, self.num_waited = None, 0

    def state_dict(self) -> dict[str, Any]:
        measured_at = {unit: count for unit, count in self.measured_at.items() if unit != "minutes"}
        return {"best": self.best, "num_waited": self.num_waited, "looked": measured_at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best, self.num_waited, self.measured_at = state["best"], state["num_waited"], state["looked"]


class EarlyStopping(Plateau):
    """Ends the run at the next safe point, with its last evaluations, record and checkpoint."""

    def on_plateau(self, training: AnyTraining) -> None:
        training.end_run(f"early stopping: {self.reason()}")


class ReduceOnPlateau(Plateau):
    """Multiplies a schedule of a player by `factor`."""

    config: ReduceOnPlateauConfig

    def check(self, training: AnyTraining) -> None:
        super().check(training)
        schedule = schedule_at(self.config, training)
        try:
            schedule.scaled(self.config.factor)
        except ValueError as error:
            raise PartError(self.config, [ConfigErrorItem("key", str(error))]) from error

    def on_plateau(self, training: AnyTraining) -> None:
        config = self.config
        schedule = schedule_at(config, training).scaled(config.factor)
        learner_named(config.player, config, training).change_schedule(config.key, schedule)
        training.log(f"{config.key} of {config.player} times {config.factor:g}: {self.reason()}")
