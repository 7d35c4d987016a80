"""Schedules by name: numbers that are functions of a step.

A step is an opt step of the player to which the schedule belongs. To register one, add it to ScheduleConfig.
"""

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, TypeAdapter, model_validator

from palestra.config import (
    ByName,
    Config,
    ConfigError,
    ConfigErrorItem,
    Fraction,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    UserConfig,
    check,
    load_class,
)


class Schedule(Config):
    """A nonnegative number for every step >= 0, a function of the step and of the fields alone."""

    in_proportion: ClassVar[tuple[str, ...]] = ()  # the fields that `scaled` multiplies

    name: str

    def __call__(self, step: int) -> float:
        raise NotImplementedError

    def scaled(self, factor: float) -> "Schedule":
        """Return a schedule of the same kind whose values are those of this one times a factor."""
        return self.model_copy(update={name: factor * getattr(self, name) for name in self.in_proportion})

    def state_dict(self) -> dict[str, Any]:
        return self.model_dump()


class ConstantSchedule(Schedule):
    """The same value at every step."""

    in_proportion = ("value",)
    name: Literal["constant"]
    """the same value at every step"""
    value: NonNegativeFloat
    """the value"""

    def __call__(self, step: int) -> float:
        return self.value


class Ramp(Schedule):
    """The base of schedules that lead from one value to another in a number of steps, and then stay there."""

    in_proportion = ("initial", "final")
    initial: NonNegativeFloat
    """value at step 0"""
    final: NonNegativeFloat
    """value from step num_steps on"""
    num_steps: PositiveInt
    """opt steps of the player until the final value"""


class LinearSchedule(Ramp):
    """A straight line from `initial` to `final` in `num_steps`, then `final`."""

    name: Literal["linear"]
    """a straight line from initial to final, then final"""

    def __call__(self, step: int) -> float:
        return self.initial + (self.final - self.initial) * min(step / self.num_steps, 1.0)


class ExponentialSchedule(Schedule):
    """An exponential decay from `initial` to `final`: initial * rate^t + final * (1 - rate^t)."""

    in_proportion = ("initial", "final")
    name: Literal["exponential"]
    """initial * rate^t + final * (1 - rate^t)"""
    initial: NonNegativeFloat
    """value at step 0"""
    final: NonNegativeFloat
    """value that it approaches"""
    rate: Fraction
    """share of the distance to the final value that is left after one opt step"""

    def __call__(self, step: int) -> float:
        share = self.rate**step
        return self.initial * share + self.final * (1.0 - share)


class InverseSchedule(Schedule):
    """A decay like 1/t once t is large against rate / initial: rate / (t + rate / initial)."""

    in_proportion = ("initial", "rate")
    name: Literal["inverse"]
    """rate / (t + rate / initial)"""
    initial: PositiveFloat
    """value at step 0"""
    rate: PositiveFloat
    """the value at a late step t is about rate / t"""

    def __call__(self, step: int) -> float:
        return self.rate / (step + self.rate / self.initial)


class CosineSchedule(Ramp):
    """Half a cosine wave from `initial` to `final` in `num_steps`, then `final` (Loshchilov & Hutter 2017, eq. 5)."""

    name: Literal["cosine"]
    """half a cosine wave from initial to final, then final"""

    def __call__(self, step: int) -> float:
        share = 0.5 * (1.0 + math.cos(math.pi * min(step / self.num_steps, 1.0)))
        return self.final + (self.initial - self.final) * share


class WarmUpCosineSchedule(Schedule):
    """A straight line from 0 to `peak` in `num_warm_up_steps`, then half a cosine wave to `final` until `num_steps`."""

    in_proportion = ("peak", "final")
    name: Literal["warm_up_cosine"]
    """a straight line from 0 to peak, then half a cosine wave to final, then final"""
    peak: NonNegativeFloat
    """value at step num_warm_up_steps"""
    final: NonNegativeFloat
    """value from step num_steps on"""
    num_warm_up_steps: PositiveInt
    """opt steps of the player until the peak; step 0 is the first of them, and not at 0"""
    num_steps: PositiveInt
    """opt steps of the player until the final value, with those of the warm-up"""

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.num_steps <= self.num_warm_up_steps:
            expected = f"expected more than num_warm_up_steps ({self.num_warm_up_steps})"
            raise ConfigError.at("num_steps", f"{expected}, got {self.num_steps}")
        return self

    def __call__(self, step: int) -> float:
        if step < self.num_warm_up_steps:
            return self.peak * (step + 1) / (self.num_warm_up_steps + 1)
        share = min((step - self.num_warm_up_steps) / (self.num_steps - self.num_warm_up_steps), 1.0)
        return self.final + (self.peak - self.final) * 0.5 * (1.0 + math.cos(math.pi * share))


class Knot(Config):
    step: NonNegativeInt
    """opt step of the player"""
    value: NonNegativeFloat
    """value at this step"""


class PiecewiseSchedule(Schedule):
    """Straight lines between knots; constant before the first and after the last."""

    name: Literal["piecewise"]
    """straight lines between knots; constant before the first and after the last"""
    knots: list[Knot]
    """at least one, steps ascending"""

    @model_validator(mode="after")
    def _check_ascending(self) -> Self:
        steps = [knot.step for knot in self.knots]
        if not steps or any(left >= right for left, right in pairwise(steps)):
            raise ConfigError.at("knots", f"expected at least one knot, with ascending steps, got {steps}")
        return self

    def scaled(self, factor: float) -> "PiecewiseSchedule":
        knots = [Knot(step=knot.step, value=factor * knot.value) for knot in self.knots]
        return self.model_copy(update={"knots": knots})

    def __call__(self, step: int) -> float:
        for left, right in pairwise(self.knots):
            if left.step <= step < right.step:
                share = (step - left.step) / (right.step - left.step)
                return left.value + (right.value - left.value) * share
        return self.knots[0].value if step < self.knots[0].step else self.knots[-1].value


class UserSchedule(UserConfig, Schedule):
    """The base of a user's own schedules. Such a class is its own config: its fields are the keys.

    It must implement `__call__`, and may set `in_proportion`, without which no callback can scale it.
    """

    def scaled(self, factor: float) -> Schedule:
        if not self.in_proportion:
            raise ValueError(
                f"expected `in_proportion` in {self.name!r}, the fields that a factor multiplies, got none"
            )
        return super().scaled(factor)


ScheduleConfig = Annotated[
    ConstantSchedule
    | LinearSchedule
    | ExponentialSchedule
    | InverseSchedule
    | CosineSchedule
    | WarmUpCosineSchedule
    | PiecewiseSchedule
    | UserSchedule,
    ByName(user_class=UserSchedule, of_number="constant"),
]


def _require_shares(schedule: Schedule) -> Schedule:
    """Refuse a schedule that exceeds 1; of a user's own class it is not known. Raises ConfigError."""
    match schedule:
        case UserSchedule():
            largest = {}
        case PiecewiseSchedule(knots=knots):
            largest = {f"knots.{number}.value": knot.value for number, knot in enumerate(knots)}
        case _:  # the others never leave the values with which they begin and end
            largest = {key: value for key, value in schedule if key in ("value", "initial", "peak", "final")}
    ConfigError.require_none(
        ConfigErrorItem(key, f"expected a fraction between 0 and 1, got {value:g}")
        for key, value in largest.items()
        if value > 1
    )
    return schedule


ShareScheduleConfig = Annotated[ScheduleConfig, AfterValidator(_require_shares)]
"""A schedule of a share, or of a probability: between 0 and 1."""


def read_schedule(data: Any) -> Schedule:
    """Make the schedule that returned a `state_dict`.

    It imports only those modules of a user's own that the run's config could name, and raises UntrustedError for any
    other.
    """
    if ":" in data["name"]:
        return load_class(data["name"], UserSchedule).model_validate(data)
    return TypeAdapter[Schedule](ScheduleConfig).validate_python(data)


class _Holder(Config):
    schedule: ScheduleConfig


def successor(schedules: Mapping[str, Schedule], key: str, given: Schedule | Mapping[str, Any]) -> Schedule:
    """Return the schedule that takes the place of the one at `key`.

    given: a schedule, or the mapping that a file would hold. Raises ConfigError, also if none of these schedules, which
    can change, stands at this key.
    """
    if key not in schedules:
        raise ConfigError.at(key, f"expected a schedule that can change ({', '.join(schedules)})")
    return given if isinstance(given, Schedule) else check({"schedule": given}, _Holder).schedule


def schedules_in(config: Config, path: str = "") -> dict[str, Schedule]:
    """Return all schedules in a config, by dotted path."""
    found: dict[str, Schedule] = {}
    for name, value in config:
        if isinstance(value, Schedule):
            found[path + name] = value
        elif isinstance(value, Config):
            found |= schedules_in(value, f"{path}{name}.")
    return found
