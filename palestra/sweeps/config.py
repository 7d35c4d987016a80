"""What a sweep must say: the runs it is made of, the space in which it searches, and who decides."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from palestra.config import (
    ByName,
    Config,
    ConfigError,
    ConfigErrorItem,
    NonEmptyStr,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    UserConfig,
    check,
    check_overridden,
)
from palestra.evaluation.measures import MeasureName
from palestra.run.base import BaseRunConfig
from palestra.run.branching import is_fixed
from palestra.runtime.intervals import Limit
from palestra.sweeps.places import LocalConfig, Place
from palestra.sweeps.pruning import AnyPruningConfig, WilcoxonConfig, first_step
from palestra.sweeps.search import NUM_GENERATIONS, AnySearchConfig, EvolutionConfig, GridConfig
from palestra.sweeps.space import AnyDimensionConfig, DimensionConfig, LogConfig, UniformConfig, dimensions
from palestra.sweeps.storages import AnyStorageConfig

KEYS_OF_RUNS = {"trainer", "game", "players"}  # of tournaments, too
MOST_SEEDS = 10_000
KEYS_OF_SWEEPS = {"base", "space", "search", "budget", "objective", "storage"}


def each_once(values: list[Any]) -> list[Any]:
    """Return the values. Raises ConfigError for one that is there twice."""
    for number, value in enumerate(values):
        if value in values[:number]:
            raise ConfigError.at(str(number), f"expected each value once, got {value!r} again")
    return values


Seeds = Annotated[list[NonNegativeInt], Field(min_length=1, max_length=MOST_SEEDS), AfterValidator(each_once)]
AnyPlaceConfig = Annotated[LocalConfig | UserConfig, ByName(user_class=Place)]


class ObjectiveConfig(Config):
    evaluation: NonEmptyStr
    """which of the base's evaluations, by name"""
    pairing: NonNegativeInt | None
    """which of its pairings, counted from 0; null: as in `best` of a run"""
    measure: MeasureName
    """as in `best` of a run: rho, return/ROLE, length, ..., or a function of your own, package.module:function"""
    goal: Literal["max", "min"]
    """whether a higher (max) or a lower (min) value is better"""
    of: Literal["last", "best"]
    """the value of a run: at its last evaluation, or the best of all; the value of a trial is the interquartile mean
    over its seeds"""

    def user_names(self) -> list[str]:
        return [self.measure] if ":" in self.measure else []


class BudgetConfig(Config):
    trials: PositiveInt | None
    """how many trials, besides those that a constraint excludes; null: as many as the rest allows, for a grid all"""
    total: Limit | None
    """no trial begins once all runs together have counted so much, in a unit that each base has; null: no limit"""
    minutes: PositiveFloat | None
    """no trial begins once `palestra sweep` or `resume` has worked so long; null: no limit"""


class SweepConfig(Config):
    """A sweep: many runs of one config, or of several, that differ in some keys.

    Each point of the space is a trial, and a trial is a run for each seed.
    """

    @classmethod
    def usual(cls, said: Mapping[str, Any], bases: Mapping[str, BaseRunConfig]) -> dict[str, Any]:
        name, first = next(iter(bases.items()))
        best = first.decisive()
        if best is None:
            raise ConfigError.at("best", f"expected a mapping in {name}, which says what a sweep compares, got null")
        searched = search["name"] if isinstance(search := said.get("search"), dict) else search
        is_grid, is_evolution = searched == "grid", searched == "evolution"
        num_trials = EvolutionConfig.usual({}, bases)["size"] * NUM_GENERATIONS if is_evolution else 30
        return {
            "seed": 0,
            "base": list(bases),
            "space": {
                key: item
                for base in bases.values()
                for key, item in dimensions(base, is_grid)
                if not (is_evolution and is_fixed(key, base))  # members branch off each other
            },
            "constraints": [],
            "seeds": [0] if is_evolution else [0, 1, 2],
            "objective": {**best.model_dump(), "of": "last"},
            "search": "tpe",
            "pruning": "successive_halving" if len(first_step(bases)) == 1 and not is_evolution else None,
            "budget": {"trials": None if is_grid else num_trials},
            "max_restarts": 3,
            "place": "local",
            "storage": "sqlite",
        }

    seed: NonNegativeInt
    """determines what is drawn for each trial; the runs have seeds of their own"""
    base: Annotated[list[NonEmptyStr], Field(min_length=1), AfterValidator(each_once)]
    """config files, by path from this file or by the name of a shipped config; of several, each trial takes one"""
    space: dict[str, AnyDimensionConfig]
    """what is searched, by the dotted keys of the base; a key that only some bases have is drawn with these alone"""
    constraints: list[NonEmptyStr]
    """what a point must fulfil, as "batch_size <= 4 * num_worlds" over any keys of the base, or a function of your own,
    package.module:function, which gets a trial's config as a mapping; []: none"""
    seeds: Seeds
    """the seeds of each trial's runs"""
    objective: ObjectiveConfig
    """what is optimised"""
    search: AnySearchConfig
    """how points are chosen: by name, or a class of your own"""
    pruning: AnyPruningConfig | None
    """how trials without prospects are ended early; null: none is"""
    budget: BudgetConfig
    """when the sweep is done"""
    max_restarts: NonNegativeInt
    """how often a run that a signal has killed goes on from its checkpoint before its trial counts as failed"""
    place: AnyPlaceConfig
    """where runs are computed: by name, or a class of your own; it changes no bit of a run"""
    storage: AnyStorageConfig
    """where Optuna keeps the study"""

    @model_validator(mode="after")
    def _check_sweep(self) -> Self:
        is_grid = isinstance(self.search, GridConfig)
        errors = [
            ConfigErrorItem(f"space.{key}", f"expected values that can be listed with search 'grid', got {what}")
            for key, dimension in self.space.items()
            if is_grid and (what := _endless(dimension))
        ]
        is_endless = all(limit is None for limit in dict(self.budget).values())
        if is_endless and not is_grid:
            message = f"expected a limit with search {self.search.name!r}, which never ends, got null everywhere"
            errors.append(ConfigErrorItem("budget", message))
        key = "startup_seeds" if isinstance(self.pruning, WilcoxonConfig) else "num_seeds"
        if (wanted := getattr(self.pruning, key, 1)) > len(self.seeds):
            message = f"expected at most {len(self.seeds)}, the number of seeds, got {wanted}"
            errors.append(ConfigErrorItem(f"pruning.{key}", message))
        if not self.space and len(self.base) == 1:
            expected = "expected a key, as {gamma: {name: uniform, low: 0.9, high: 1, step: null}}"
            errors.append(ConfigErrorItem("space", f"{expected}, or several files in base, got neither"))
        ConfigError.require_none(errors)
        return self


def _endless(dimension: DimensionConfig) -> str:
    """Return in words what keeps a dimension from being listed; "" if nothing does."""
    if isinstance(dimension, LogConfig):
        return "'log'; write a choice of values"
    if isinstance(dimension, UniformConfig) and dimension.step is None:
        return "'uniform' without a step"
    return ""


def is_sweep(data: Any) -> bool:
    """Return whether plain data describe a sweep, if perhaps one of which a key is missing."""
    return isinstance(data, dict) and not data.keys() & KEYS_OF_RUNS and bool(data.keys() & KEYS_OF_SWEEPS)


def read_sweep(data: dict[str, Any], overrides: Sequence[str]) -> SweepConfig:
    """Check a sweep's config, given as plain data. Raises ConfigError."""
    return check_overridden(data, overrides, SweepConfig) if overrides else check(data, SweepConfig)
