"""The space in which a sweep searches: a dimension for each key, its points, and constraints on these.

A point is a mapping from names to values as Optuna stores them: `base` where there are several bases, and the keys of
the space that its base has. Values that are lists or mappings stand there as text.

A constraint is an own function, or a comparison between keys such as `batch_size <= 4 * num_worlds`. An expression has
numbers, texts, true, false, null, dotted keys, + - * / // % **, comparisons, in, and, or, not, lists and parentheses.
It is read with Python's parser, and computed here: nothing else can be called.
"""

import ast
import itertools
import math
import operator
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from palestra.config import (
    IMPORT_PATH,
    ByName,
    Config,
    ConfigError,
    PositiveFloat,
    PositiveInt,
    admitted_function,
    walk,
)
from palestra.config.errors import shown
from palestra.config.files import find_key, full_key, replace_values, value_at
from palestra.config.rendering import inline_flow
from palestra.run.base import BaseRunConfig
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
        if stored not in (texts := self.stored()):
            raise ValueError(f"one of {inline_flow(self.values)}")
        return self.values[texts.index(stored)]

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
            if math.isinf(steps := (self.high - self.low) / self.step):
                raise ConfigError.at("step", f"expected a longer one between low and high, got {self.step:g}")
            if not math.isclose(steps, round(steps), abs_tol=1e-9):
                last = self.low + math.floor(steps) * self.step
                raise ConfigError.at("high", f"expected low + n * step, as {last:g}, got {self.high:g}")
        return self

    def suggest(self, trial: "Trial", key: str) -> Any:
        return trial.suggest_float(key, self.low, self.high, step=self.step)

    def stored(self) -> list[Any]:
        return [self.low + n * (self.step or 0.0) for n in range(self.num_values())]

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
            raise ConfigError.at(key, f"expected {expected} with log: true, got {getattr(self, key)}")
        if beyond := (self.high - self.low) % self.step:
            raise ConfigError.at("high", f"expected low + n * step, as {self.high - beyond}, got {self.high}")
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


def has_key(data: Mapping[str, Any], key: str) -> bool:
    """Return whether a config, as plain data, has a key in full."""
    with suppress(ConfigError):
        return full_key(data, key) == key
    return False


class Space:
    """The dimensions of a sweep over its bases. All keys are dotted and in full."""

    def __init__(self, bases: Sequence[Base], dimensions: Mapping[str, DimensionConfig]) -> None:
        self.bases = {base.name: base for base in bases}
        self.dimensions = dict(dimensions)
        self.keys = {name: [key for key in dimensions if has_key(base.data, key)] for name, base in self.bases.items()}

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
            raise ConfigError.at(key, f"expected {error} in the trial's point, got {point[key]!r}") from None

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
        if sum(math.prod(len(self.dimensions[key].ends()) for key in keys) for keys in self.keys.values()) <= most:
            return list(self._products(lambda dimension: dimension.ends()))
        found = []
        for name, keys in self.keys.items():
            draw, ends = random.Random(0), [(key, self.dimensions[key].ends()) for key in keys]
            for number in range(max(most // len(self.bases), *(len(values) for _, values in ends))):
                point = {key: values[number] if number < len(values) else draw.choice(values) for key, values in ends}
                found.append(self._with_base(name, point))
        return found

    def samples(self, number: int) -> Iterator[Point]:
        """Yield points drawn at random, always the same."""
        draw = random.Random(0)
        for _ in range(number):
            name = draw.choice(list(self.bases))
            yield self._with_base(name, {key: drawn(self.dimensions[key], draw) for key in self.keys[name]})

    def _products(self, values_of: Any) -> Iterator[Point]:
        for name, keys in self.keys.items():
            for values in itertools.product(*(values_of(self.dimensions[key]) for key in keys)):
                yield self._with_base(name, dict(zip(keys, values, strict=True)))

    def _with_base(self, name: str, point: dict[str, Any]) -> Point:
        return {BASE: name, **point} if len(self.bases) > 1 else point


def drawn(dimension: DimensionConfig, draw: random.Random) -> Any:
    """Draw a value of a dimension, as the study stores it."""
    match dimension:
        case ChoiceConfig():
            return draw.choice(dimension.stored())
        case LogConfig():
            value = math.exp(draw.uniform(math.log(dimension.low), math.log(dimension.high)))
            return min(max(value, dimension.low), dimension.high)  # which rounding may pass
        case IntegerConfig(log=True):
            number = round(math.exp(draw.uniform(math.log(dimension.low - 0.5), math.log(dimension.high + 0.5))))
            return min(max(number, dimension.low), dimension.high)
        case IntegerConfig():
            return draw.randrange(dimension.low, dimension.high + 1, dimension.step)
        case UniformConfig(step=float(step)):
            return min(dimension.low + step * draw.randrange(dimension.num_values()), dimension.high)
        case _:
            return draw.uniform(dimension.low, dimension.high)


# ---- of a first sweep ----------------------------------------------------------------------------------

GAMMAS = (0.9, 0.95, 0.98, 0.99, 0.995, 0.999)


def dimensions(base: BaseRunConfig, is_grid: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield dimensions around learning rates, entropy coefficients and discounts, by dotted keys."""
    below = [tuple(key.split(".")) for key in base.learning_keys()]
    schedules = {keys: value for keys, value in walk(base) if isinstance(value, Schedule)}
    for keys, value in walk(base.model_dump()):
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not any(keys[: len(key)] == key for key in below):
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


# ---- constraints ----------------------------------------------------------------------------------------------


WORD = re.compile(r"""'[^']*'|"[^"]*"|(?<![\w.])[A-Za-z_]\w*(?:\.\w+)*""")  # a text, or a key
WORDS = {"and", "or", "not", "in", "true", "false", "null"}
CONSTANTS = {"true": True, "false": False, "null": None}
BINARY: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}
UNARY: dict[type[ast.AST], Callable[[Any], Any]] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Not: operator.not_,
}
KNOWN = {
    *(ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.Constant, ast.Name, ast.List, ast.Tuple, ast.Load),
    *(ast.And, ast.Or, *BINARY, *UNARY),
}
LARGEST_POWER = 64  # so that no constraint computes for hours, as powers of powers would
MOST_BITS = 1024  # of a whole number; a float cannot be much larger


class Constraint:
    """A constraint as a sweep's file has it.

    Raises ConfigError, with an empty path, for one that cannot be read.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.keys: dict[str, str] = {}  # by the name that stands for each in the parsed expression
        self.function = self.expression = None
        if IMPORT_PATH.fullmatch(text):
            try:
                self.function = admitted_function(text)
            except ValueError as error:
                raise _error(str(error)) from error
            if self.function is None:
                raise _error(f"{text!r} may not be imported here")
        else:
            self.expression = self._parse()

    def _parse(self) -> ast.expr:
        try:
            expression = ast.parse(WORD.sub(self._name_of, self.text), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last two: of one that is nested deeply
            example = "expected a comparison such as 'batch_size <= 4 * num_worlds', or package.module:function"
            raise _error(f"{example}, got {self.text!r}") from None
        for node in ast.walk(expression):
            if type(node) not in KNOWN:
                what = ast.unparse(node) if isinstance(node, ast.expr) else type(node).__name__.lower()
                raise _error(f"expected keys, numbers, texts, lists and operators alone, got {what!r} in {self.text!r}")
        if not self.keys:
            raise _error(f"expected a comparison between keys, got {self.text!r}, which has none")
        return expression

    def _name_of(self, match: re.Match[str]) -> str:
        word = match[0]
        if word[0] in "'\"":
            return word
        if word in CONSTANTS:
            return repr(CONSTANTS[word])
        if word in WORDS:
            return word
        name = f"key_{len(self.keys)}_"
        self.keys[name] = word
        return name

    def full_keys(self, data: Mapping[str, Any]) -> dict[str, str] | None:
        """Return its keys in full, by their names; None if a config lacks one of them.

        Raises ConfigError for a key that means several.
        """
        found = {name: full for name, key in self.keys.items() if (full := find_key(data, key)) is not None}
        return found if len(found) == len(self.keys) else None

    def require_keys(self, configs: Mapping[str, Mapping[str, Any]]) -> None:
        """Raise ConfigError if none of some configs, by name, has all of its keys, or a key means several in one."""
        for name, data in configs.items():
            try:
                self.full_keys(data)
            except ConfigError as error:
                where = f" in {name}" if len(configs) > 1 else ""
                raise _error(f"{'; '.join(map(str, error.errors))}{where}") from error
        if all(self.full_keys(data) is None for data in configs.values()):
            for key in self.keys.values():  # raises for the first one that is missing
                full_key(next(iter(configs.values())), key)

    def holds(self, data: Mapping[str, Any]) -> bool:
        """Return whether a config, as plain data, fulfils the constraint; True if the config lacks one of its keys.

        Raises ConfigError if it cannot be computed there.
        """
        if self.function is not None:
            try:
                return bool(self.function(data))
            except Exception as error:
                raise _error(f"{self.text} raised {type(error).__name__}: {error}") from error
        assert self.expression is not None
        if (keys := self.full_keys(data)) is None:
            return True
        try:
            values = {name: value_at(data, key) for name, key in keys.items()}
            return _truth(_compute(self.expression, values))
        except (TypeError, ArithmeticError, ValueError, RecursionError) as error:
            raise _error(f"{self.text!r} cannot be computed: {error}") from error


def _compute(node: ast.expr, values: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            return values[name]
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_compute(item, values) for item in items]
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not _truth(_compute(operand, values))
        case ast.UnaryOp(op=op, operand=operand):
            return UNARY[type(op)](_compute(operand, values))
        case ast.BoolOp(op=ast.And(), values=terms):
            return all(_truth(_compute(term, values)) for term in terms)
        case ast.BoolOp(values=terms):
            return any(_truth(_compute(term, values)) for term in terms)
        case ast.BinOp(left=left, op=op, right=right):
            one, other = _number(_compute(left, values)), _number(_compute(right, values))
            if isinstance(op, ast.Pow) and abs(other) > LARGEST_POWER:
                raise ValueError(f"expected a power of at most {LARGEST_POWER}, got {other}")
            return BINARY[type(op)](one, other)
        case ast.Compare(left=left, ops=ops, comparators=others):
            terms = [_compute(term, values) for term in (left, *others)]
            for order, (one, other) in zip(ops, itertools.pairwise(terms), strict=True):
                if isinstance(order, ast.Lt | ast.LtE | ast.Gt | ast.GtE):
                    one, other = _number(one), _number(other)
                if not BINARY[type(order)](one, other):
                    return False
            return True
    raise TypeError(f"expected a comparison, got {ast.unparse(node)}")


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"expected a comparison, or a key that is true or false, got {shown(value)}")
    return value


def _number(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"expected a number, got {shown(value)}")
    if isinstance(value, int) and value.bit_length() > MOST_BITS:
        raise ValueError(f"expected a number below 2 to the power of {MOST_BITS}, got a larger one")
    return value


def _error(message: str) -> ConfigError:
    return ConfigError.at("", message)
