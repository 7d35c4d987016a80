"""The space in which a sweep searches: a dimension for each key, and its points.

A point is a mapping from names to values as Optuna stores them: `base` where there are several bases, and the keys of
the space that its base has. Values that are lists or mappings stand there as text.
"""

import itertools
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from palestra.config import ByName, Config, ConfigError, PositiveFloat, PositiveInt, walk
from palestra.config.files import full_key, replace_values
from palestra.config.rendering import inline_flow
from palestra.runs.base import BaseRunConfig
from palestra.schedules import Schedule, UserSchedule

if TYPE_CHECKING:
    from optuna.trial import Trial

BASE = "base"  # the name of the choice among several bases, in the study
MOST_POINTS = 100_000  # that a grid may have
MOST_VALUES = 10_000  # that a choice may have, as each is compared with all others
Point = Mapping[str, Any]

# ---- dimensions ----------------------------------------------------------------------------------------


class ChoiceConfig(Config):
    """One of some values."""

    name: Literal["choice"]
    values: Annotated[list[Any], Field(min_length=1, max_length=MOST_VALUES)]
    """numbers, texts, lists or mappings; a single one is the same in every trial"""

    @model_validator(mode="after")
    def _check_distinct(self) -> Self:
        for number, value in enumerate(self.values):
            if isinstance(value, float) and math.isnan(value):
                raise ConfigError.at(f"values.{number}", "expected a number, got .nan")
            if value in self.values[:number]:  # for Optuna, 1 and 1.0 are one value
                raise ConfigError.at(f"values.{number}", f"expected each value once, got {value!r}")
        return self

    def suggest(self, trial: "Trial", key: str) -> Any:
        return trial.suggest_categorical(key, self.stored())

    def stored(self) -> list[Any]:
        """Return the values as Optuna stores them."""
        scalars = bool | int | float | str | None
        return [value if isinstance(value, scalars) else inline_flow(value) for value in self.values]

    def num_values(self) -> int:
        return len(self.values)

    def meant(self, stored: Any) -> Any:
        """Return the value that a stored one stands for. Raises ValueError if there is none."""
        for value, text in zip(self.values, self.stored(), strict=True):
            if text == stored:
                return value
        raise ValueError(f"one of {inline_flow(self.values)}")

    def ends(self) -> list[Any]:
        return self.stored()


class _Numbers(Config):
    @model_validator(mode="after")
    def _check_order(self) -> Self:
        low, high = self.low, self.high  # type: ignore[attr-defined]
        if low > high:
            raise ConfigError.at("high", f"expected a number >= low = {low}, got {high}")
        return self

    def meant(self, stored: Any) -> Any:
        """Return the number itself. Raises ValueError for anything else."""
        low, high = self.low, self.high  # type: ignore[attr-defined]
        if isinstance(stored, bool) or not isinstance(stored, int | float) or not low <= stored <= high:
            raise ValueError(f"a number from {low:g} to {high:g}")
        return stored

    def ends(self) -> list[Any]:
        """Return its smallest and its largest value; a choice returns all."""
        low, high = self.low, self.high  # type: ignore[attr-defined]
        return [low] if low == high else [low, high]

    def stored(self) -> list[Any]:
        """Return all values, in their order. Raises ValueError if there are too many to be listed."""
        raise ValueError

    def num_values(self) -> int:
        """Return how many values there are. Raises ValueError as `stored` does."""
        raise ValueError


class UniformConfig(_Numbers):
    """A number between two others, all of them equally likely."""

    name: Literal["uniform"]
    low: float
    """the smallest value"""
    high: float
    """the largest value"""
    step: PositiveFloat | None
    """the distance between two possible values, counted from `low`; null: every number is possible"""

    @model_validator(mode="after")
    def _check_bounds(self) -> Self:
        if self.step is not None:
            steps = (self.high - self.low) / self.step
            if math.isinf(steps):
                raise ConfigError.at("step", f"expected a longer one between low and high, got {self.step:g}")
            if not math.isclose(steps, round(steps), abs_tol=1e-9):
                message = f"expected low + n * step, as {self.low + math.floor(steps) * self.step:g}, got {self.high:g}"
                raise ConfigError.at("high", message)
        return self

    def suggest(self, trial: "Trial", key: str) -> Any:
        return trial.suggest_float(key, self.low, self.high, step=self.step)

    def stored(self) -> list[Any]:
        if self.step is None:
            return super().stored()
        return [self.low + n * self.step for n in range(self.num_values())]

    def num_values(self) -> int:
        return super().num_values() if self.step is None else round((self.high - self.low) / self.step) + 1


class LogConfig(_Numbers):
    """A number between two others, whose logarithm is uniform."""

    name: Literal["log"]
    low: PositiveFloat
    """the smallest value"""
    high: PositiveFloat
    """the largest value"""

    def suggest(self, trial: "Trial", key: str) -> Any:
        return trial.suggest_float(key, self.low, self.high, log=True)


class IntegerConfig(_Numbers):
    """An integer between two others."""

    name: Literal["integer"]
    low: int
    """the smallest value"""
    high: int
    """the largest value"""
    step: PositiveInt
    """the distance between two possible values, counted from `low`; 1 with log"""
    log: bool
    """whether the logarithm is uniform, and not the value"""

    @model_validator(mode="after")
    def _check_bounds(self) -> Self:
        if self.log and (self.low < 1 or self.step != 1):
            key, expected = ("low", "an integer >= 1") if self.low < 1 else ("step", "1")
            message = f"expected {expected} with log: true, got {getattr(self, key)}"
            raise ConfigError.at(key, message)
        if (self.high - self.low) % self.step:
            nearest = self.high - (self.high - self.low) % self.step
            raise ConfigError.at("high", f"expected low + n * step, as {nearest}, got {self.high}")
        return self

    def suggest(self, trial: "Trial", key: str) -> Any:
        return trial.suggest_int(key, self.low, self.high, step=self.step, log=self.log)

    def stored(self) -> list[Any]:
        return list(range(self.low, self.high + 1, self.step))

    def num_values(self) -> int:
        return (self.high - self.low) // self.step + 1


DimensionConfig = ChoiceConfig | UniformConfig | LogConfig | IntegerConfig
AnyDimensionConfig = Annotated[DimensionConfig, ByName()]


# ---- the space -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Base:
    """A config from which trials differ in the keys of the space.

    name: of its file, without its ending. data: the config as plain data. model: its kind.
    """

    name: str
    data: dict[str, Any]
    model: type[Config]

    def has(self, key: str) -> bool:
        try:
            return full_key(self.data, key) == key
        except ConfigError:
            return False


class Space:
    """The dimensions of a sweep over its bases. All keys are dotted and in full."""

    def __init__(self, bases: Sequence[Base], dimensions: Mapping[str, DimensionConfig]) -> None:
        self.bases = {base.name: base for base in bases}
        self.dimensions = dict(dimensions)
        self.keys = {name: [key for key in dimensions if base.has(key)] for name, base in self.bases.items()}

    def base_of(self, point: Point) -> Base:
        """Return the base of a point. Raises ConfigError if the point names none."""
        if len(self.bases) == 1:
            return next(iter(self.bases.values()))
        if (name := point.get(BASE)) in self.bases:
            return self.bases[name]
        raise ConfigError.at(BASE, f"expected one of {', '.join(self.bases)}, got {name!r}")

    def _meant(self, key: str, point: Point) -> Any:
        if key not in point:
            raise ConfigError.at(key, "expected a value of the space in the trial's point, got none")
        try:
            return self.dimensions[key].meant(point[key])
        except ValueError as error:
            message = f"expected {error} in the trial's point, got {point[key]!r}"
            raise ConfigError.at(key, message) from None

    def config_at(self, point: Point) -> dict[str, Any]:
        """Return the config of a trial at a point, as plain data.

        Raises ConfigError if a value is not in the space, or does not fit its place.
        """
        base = self.base_of(point)
        values = {key: self._meant(key, point) for key in self.keys[base.name]}
        return replace_values(base.data, values, base.model)

    def suggest(self, trial: "Trial") -> dict[str, Any]:
        """Let Optuna choose a trial's point."""
        point: dict[str, Any] = {}
        if len(self.bases) > 1:
            point[BASE] = trial.suggest_categorical(BASE, list(self.bases))
        for key in self.keys[self.base_of(point).name]:
            point[key] = self.dimensions[key].suggest(trial, key)
        return point

    def points(self) -> list[Point]:
        """Return all points, in the order of the bases and the space, the last key fastest.

        Raises ConfigError for more than MOST_POINTS.
        """
        num = sum(math.prod(self.dimensions[key].num_values() for key in keys) for keys in self.keys.values())
        if num > MOST_POINTS:
            raise ConfigError.at("space", f"expected at most {MOST_POINTS:,} points with search 'grid', got more")
        return list(self._products(lambda dimension: dimension.stored()))

    def corners(self, most: int) -> list[Point]:
        """Return the points at which every number is at one of its ends, and every choice takes each of its values.

        Of more than `most` it is a selection in which each end occurs.
        """
        sizes = {name: math.prod(len(self.dimensions[key].ends()) for key in keys) for name, keys in self.keys.items()}
        if sum(sizes.values()) <= most:
            return list(self._products(lambda dimension: dimension.ends()))
        return [point for name in self.bases for point in self._some_corners(name, most // len(self.bases))]

    def _some_corners(self, name: str, most: int) -> Iterator[Point]:
        draw = random.Random(0)
        ends = {key: self.dimensions[key].ends() for key in self.keys[name]}
        for number in range(max(most, *(len(values) for values in ends.values()))):
            point = {
                key: values[number] if number < len(values) else draw.choice(values) for key, values in ends.items()
            }
            yield self._with_base(name, point)

    def samples(self, number: int) -> Iterator[Point]:
        """Yield points drawn at random, always the same."""
        draw = random.Random(0)
        for _ in range(number):
            name = draw.choice(list(self.bases))
            yield self._with_base(name, {key: _drawn(self.dimensions[key], draw) for key in self.keys[name]})

    def _products(self, values_of: Any) -> Iterator[Point]:
        for name, keys in self.keys.items():
            for values in itertools.product(*(values_of(self.dimensions[key]) for key in keys)):
                yield self._with_base(name, dict(zip(keys, values, strict=True)))

    def _with_base(self, name: str, point: dict[str, Any]) -> Point:
        return {BASE: name, **point} if len(self.bases) > 1 else point


def _drawn(dimension: DimensionConfig, draw: random.Random) -> Any:
    match dimension:
        case ChoiceConfig():
            return draw.choice(dimension.stored())
        case LogConfig():
            return math.exp(draw.uniform(math.log(dimension.low), math.log(dimension.high)))
        case IntegerConfig():
            return draw.randrange(dimension.low, dimension.high + 1, dimension.step)
        case UniformConfig(step=float(step)):
            return dimension.low + step * draw.randrange(dimension.num_values())
        case _:
            return draw.uniform(dimension.low, dimension.high)


# ---- of a first sweep ----------------------------------------------------------------------------------

GAMMAS = (0.9, 0.95, 0.98, 0.99, 0.995, 0.999)


def dimensions(base: BaseRunConfig, is_grid: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield dimensions around learning rates, entropy coefficients and discounts, by dotted keys."""
    below = [tuple(key.split(".")) for key in base.learning_keys()]
    schedules = {keys: value for keys, value in walk(base) if isinstance(value, Schedule)}
    for keys, value in walk(base.model_dump()):
        if not any(keys[: len(key)] == key for key in below):
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        place = next((above for above in schedules if keys[: len(above)] == above), keys)
        if place != keys and not _is_level(schedules[place], keys[-1], value):
            continue
        what = place[-1]
        if what.endswith(("learning_rate", "entropy_coefficient")) and value > 0:
            low, high = (float(f"{each:.3g}") for each in (value / 10, value * 10))
            choice = {"name": "choice", "values": [low, value, high]}
            yield ".".join(keys), choice if is_grid else {"name": "log", "low": low, "high": high}
        elif what == "gamma" and 0 < value < 1:
            yield ".".join(keys), {"name": "choice", "values": sorted({value, *GAMMAS})}


def _is_level(schedule: Schedule, key: str, value: float) -> bool:
    """Whether a number of a schedule is one at which its values lie. Of one of the user's own any float may be."""
    if isinstance(schedule, UserSchedule):
        return key in schedule.in_proportion if schedule.in_proportion else isinstance(value, float)
    return key in ("value", "initial", "peak")
