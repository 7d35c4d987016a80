"""Reads the folder of a sweep for its report.

Nothing is written, so the sweep may go on meanwhile; nothing that it names is imported unless the user trusts it.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial

from palestra.config import ConfigError, UntrustedError, check, load_yaml, under
from palestra.config.own_modules import importing_no_others
from palestra.recording.results import as_float, score_text, thinned
from palestra.runs.base import BaseRunConfig
from palestra.runs.branching import Change, tree_differences
from palestra.runs.kinds import kind_of_stored, read_config
from palestra.storage.disk import Folder, RunFolderError
from palestra.sweeps.config import SweepConfig
from palestra.sweeps.folder import SweepFolder
from palestra.sweeps.naming import short_keys, short_value
from palestra.sweeps.outcomes import (
    VALUES,
    best_of,
    counts_of,
    counts_text,
    is_number,
    place_of,
    state_of,
    unit_of,
    why_of,
)
from palestra.sweeps.pruning import MedianConfig, SuccessiveHalvingConfig
from palestra.sweeps.seed_runs import Watched
from palestra.sweeps.space import BASE, Base, ChoiceConfig, DimensionConfig, IntegerConfig, LogConfig
from palestra.sweeps.stored import read_trials
from palestra.sweeps.trials import mean

EDGE = 0.05  # of a range, counted as the search draws from it


@dataclass(frozen=True)
class Axis:
    """A dimension of the space as figures show it.

    low, high: its ends, integers where its values are. choices: the values of a choice, as the study stores them; none
    for a number.
    """

    key: str
    label: str
    low: float
    high: float
    is_log: bool
    choices: tuple[Any, ...] = ()

    @classmethod
    def of(cls, key: str, label: str, dimension: DimensionConfig) -> Self:
        if isinstance(dimension, ChoiceConfig):
            return cls.of_choices(key, label, dimension.stored())
        is_log = isinstance(dimension, LogConfig) or (isinstance(dimension, IntegerConfig) and dimension.log)
        return cls(key, label, dimension.low, dimension.high, is_log)

    @classmethod
    def of_choices(cls, key: str, label: str, choices: Sequence[Any]) -> Self:
        return cls(key, label, 0, len(choices) - 1, False, tuple(choices))

    def at(self, value: Any) -> float:
        """Return a value's place on the axis: itself, or the number of a choice; NaN if it is none of the axis."""
        if self.choices:
            return float(self.choices.index(value)) if value in self.choices else math.nan
        number = as_float(value)
        return number if self.low <= number <= self.high else math.nan

    def share(self, value: Any) -> float:
        """Return a value's place between the axis's ends, 0 to 1."""
        place, low, high = self.at(value), self.low, self.high
        if low == high:
            return math.nan if math.isnan(place) else 0.5
        if self.is_log:
            place, low, high = math.log(place), math.log(low), math.log(high)
        return (place - low) / (high - low)


@dataclass(frozen=True)
class TrialData:
    """A trial of the study.

    place: the number under which its runs lie. point: the values by key, as the study stores them. value: NaN unless it
    succeeded. reported: what the pruner was told, by step. by_seed: the value of each seed. counts: of its runs
    together, by unit. why: why it failed, was skipped or was run again. is_here: whether its runs lie in the sweep's
    folder; another machine may have the others.
    """

    number: int
    place: int
    state: str
    point: Mapping[str, Any]
    distributions: Mapping[str, BaseDistribution]
    value: float
    reported: Mapping[int, float]
    by_seed: Mapping[str, float]
    counts: Mapping[str, float]
    why: str
    is_here: bool

    @property
    def varied(self) -> list[str]:
        """The keys of the point without those that have the same value in all trials."""
        return [key for key in self.point if not self.distributions[key].single()]

    def text(self, key: str) -> str:
        """Return a value of the point in short."""
        return short_value(self.point[key], self.distributions[key])

    @classmethod
    def of(cls, trial: FrozenTrial, folder_id: str) -> Self:
        state, by_seed = state_of(trial), trial.user_attrs.get(VALUES)
        return cls(
            number=trial.number,
            place=place_of(trial),
            state=state,
            point=trial.params,
            distributions=trial.distributions,
            value=as_float(trial.value) if state == "succeeded" else math.nan,
            reported=dict(sorted(trial.intermediate_values.items())),
            by_seed={seed: as_float(x) for seed, x in by_seed.items()} if isinstance(by_seed, dict) else {},
            counts=counts_of(trial),
            why=why_of(trial),
            is_here=trial.user_attrs.get("folder") == folder_id,
        )


@dataclass(frozen=True)
class SweepData:
    """Everything that a report needs of a sweep.

    config_text: the text of sweep.yml. bases: the configs from which trials differ, by name; empty ones cannot be read.
    best: the best trial; None if none has succeeded. best_config: the mapping in best.yml, if it can be read. faults: a
    line for each damaged or missing file.
    """

    path: Path
    config: SweepConfig
    config_text: str
    facts: Mapping[str, Any]
    bases: Mapping[str, Mapping[str, Any]]
    trials: tuple[TrialData, ...]
    best: TrialData | None
    best_config: Mapping[str, Any]
    faults: tuple[str, ...]

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the sweep in a folder. Raises RunFolderError, ConfigError."""
        folder = SweepFolder.open(path)
        facts, faults = folder.facts(), list[str]()
        text = folder.root.read("sweep.yml").decode(errors="replace")
        with importing_no_others():
            try:
                config = check(load_yaml(text), SweepConfig)
            except ConfigError as error:
                raise RunFolderError(f"{folder.config} differs from what was written:\n{error}") from error
        trials = read_trials(folder, config.storage, load_yaml(text))
        best = best_of(trials, config.objective.goal)
        read = [TrialData.of(trial, folder.id) for trial in trials]
        names = [Path(name).stem for name in config.base]
        return cls(
            path=path,
            config=config,
            config_text=text,
            facts=facts,
            bases={name: _mapping(folder.bases, f"{name}.yml", faults) for name in names},
            trials=tuple(read),
            best=next((trial for trial in read if best is not None and trial.number == best.number), None),
            best_config={} if best is None else _mapping(folder.root, "best.yml", faults),
            faults=tuple(faults),
        )

    # ---- what it searches ----------------------------------------------------------------------------------

    @cached_property
    def axes(self) -> tuple[Axis, ...]:
        """The dimensions, first that of the bases if there are several. Those with a single value are left out."""
        bases = [Axis.of_choices(BASE, BASE, list(self.bases))] if len(self.bases) > 1 else []
        found = [Axis.of(key, self.labels[key], dimension) for key, dimension in self.config.space.items()]
        return tuple(axis for axis in (*bases, *found) if axis.low < axis.high)

    @cached_property
    def labels(self) -> dict[str, str]:
        """The labels of the keys, in the order of the space; that of the base first, if there are several."""
        labels = short_keys(list(self.config.space))
        return {BASE: BASE, **labels} if len(self.bases) > 1 else labels

    def has_key(self, base: str, key: str) -> bool:
        """Return whether the config of a base has a key in full."""
        data = dict(self.bases[base])
        return Base(base, data, kind_of_stored(data)).has(key)

    def base_of(self, trial: TrialData) -> str:
        """Return the name of the base of a trial."""
        return str(trial.point.get(BASE)) if len(self.bases) > 1 else next(iter(self.bases))

    # ---- what it has found ---------------------------------------------------------------------------------

    @cached_property
    def ranked(self) -> tuple[TrialData, ...]:
        """The trials that succeeded, the best first."""
        sign = -1.0 if self.config.objective.goal == "max" else 1.0
        done = [trial for trial in self.trials if trial.state == "succeeded"]
        return tuple(sorted(done, key=lambda trial: (sign * trial.value, trial.number)))

    @property
    def unit(self) -> str:
        """The unit in which the sweep counts."""
        total = self.config.budget.total
        return unit_of(None if total is None else total.model_dump(), (trial.counts for trial in self.trials))

    @property
    def counts_text(self) -> str:
        """How many trials there are, and how many in each state, in words."""
        return counts_text([trial.state for trial in self.trials])

    @cached_property
    def best_edges(self) -> dict[str, str]:
        """The keys of which the best trial has a value at an edge of what was searched, each with lower or upper."""
        if self.best is None:
            return {}
        found = {key: _edge(dimension, self.best.point.get(key)) for key, dimension in self.config.space.items()}
        return {key: edge for key, edge in found.items() if edge is not None}

    @cached_property
    def best_differences(self) -> list[Change]:
        """The keys in which best.yml differs from its base, apart from the seed."""
        base = {} if self.best is None else self.bases.get(self.base_of(self.best), {})
        changes = tree_differences(base, self.best_config) if base and self.best_config else ()
        return [change for change in changes if change.key != "seed"]


def _edge(dimension: DimensionConfig, value: Any) -> str | None:
    """Return at which edge of a dimension a value lies: lower or upper; None if it lies inside.

    A number of a range lies at an edge where only EDGE of the range lies beyond. A dimension that has nothing but edges
    gives None.
    """
    if not is_number(value):
        return None
    if isinstance(dimension, ChoiceConfig):
        if len(dimension.values) < 3 or not all(map(is_number, dimension.values)):
            return None
        return {min(dimension.values): "lower", max(dimension.values): "upper"}.get(value)
    step = getattr(dimension, "step", None)
    if step is not None and dimension.high - dimension.low < 2 * step:
        return None
    share = Axis.of("", "", dimension).share(value)
    return "lower" if share <= EDGE else "upper" if share >= 1 - EDGE else None


def point_text(data: SweepData, trial: TrialData) -> str:
    """Return the point of a trial, as "learning_rate 0.0003, gamma 0.99"."""
    texts = [f"{data.labels.get(key, key)} {trial.text(key)}" for key in trial.varied]
    return ", ".join(texts) or "nothing searched"


def best_text(data: SweepData) -> str:
    """Name the best trial in a sentence."""
    if data.best is None:
        return "No trial has succeeded so far."
    value, point = objective_text(data.best.value), point_text(data, data.best)
    return f"The best trial so far is {data.best.number} with {value}: {point}."


def objective_text(value: float) -> str:
    """Return a value of the objective, as in a table; infinite ones in full."""
    return str(value) if math.isinf(value) else score_text(value)


# ---- files of the folder -------------------------------------------------------------------------------


def _mapping(folder: Folder, name: str, faults: list[str]) -> Mapping[str, Any]:
    try:
        return load_yaml(folder.read(name).decode(errors="replace"))
    except (OSError, RunFolderError, ConfigError) as error:
        faults.append(f"{folder.path / name} cannot be read: {error}")
        return {}


# ---- curves of trials -----------------------------------------------------------------------------------------


MOST_CURVES = 60
NUM_BEST = 10  # that are among these


@dataclass(frozen=True)
class TrialCurve:
    """The curve of a trial. points: pairs of a step and the objective there, which may be infinite or NaN."""

    trial: TrialData
    points: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class TrialCurves:
    """The curves of some of the trials, the best ones first.

    unit: of their steps. source: whence they are, as a sentence. num_trials: how many have a curve.
    """

    curves: tuple[TrialCurve, ...]
    unit: str
    source: str
    num_trials: int


def trial_curves(data: SweepData) -> TrialCurves:
    """Return the curves by which trials are pruned or, if the pruner has no evaluations, those in the records."""
    pruning = data.config.pruning
    if isinstance(pruning, MedianConfig | SuccessiveHalvingConfig) and any(trial.reported for trial in data.trials):
        reported = [trial for trial in data.trials if trial.reported]
        seeds = "the first seed" if pruning.num_seeds == 1 else f"the first {pruning.num_seeds} seeds"
        curves = [TrialCurve(trial, tuple(trial.reported.items())) for trial in _chosen(data, reported)]
        source = f"The values are those by which trials are pruned: of {seeds} of each."
        return TrialCurves(tuple(curves), _unit(data), source, len(reported))
    begun = [trial for trial in data.trials if trial.is_here and trial.state != "skipped"]
    checked: dict[str, BaseRunConfig | None] = dict.fromkeys(data.bases)  # None: of a config that cannot be read here
    for name, base in data.bases.items():
        with suppress(ConfigError, UntrustedError), importing_no_others():
            checked[name] = read_config(dict(base))
    curves = [
        TrialCurve(trial, _recorded(data, trial, checked.get(data.base_of(trial)))) for trial in _chosen(data, begun)
    ]
    source = "The values are the interquartile means over the seeds, at the steps that all of them have."
    if None in checked.values():
        source = "The records of some trials cannot be read here: their config names what is not trusted or known."
    return TrialCurves(tuple(curve for curve in curves if curve.points), _unit(data), source, len(begun))


def _chosen(data: SweepData, trials: Sequence[TrialData]) -> list[TrialData]:
    """Return at most MOST_CURVES of the trials: the best ones first, then others, evenly chosen."""
    numbers = {trial.number for trial in trials}
    best = [trial for trial in data.ranked if trial.number in numbers][:NUM_BEST]
    others = [trial for trial in trials if trial not in best]
    return [*best, *thinned(others, MOST_CURVES - len(best))]


def _unit(data: SweepData) -> str:
    """Return the unit of the steps: that of the evaluation's interval, as of the first base that has one."""
    for base in data.bases.values():
        evaluations = under(base, "evaluations")
        for each in evaluations if isinstance(evaluations, list) else ():
            unit = under(each, "interval", "unit")
            if under(each, "name") == data.config.objective.evaluation and unit not in (None, "minutes"):
                return str(unit)
    return "opt_steps"


def _recorded(data: SweepData, trial: TrialData, config: BaseRunConfig | None) -> tuple[tuple[int, float], ...]:
    """Return the values of a trial's runs, at the steps that all of them have; none if they cannot be read."""
    if config is None:
        return ()
    folder, runs = data.path / "trials" / f"{trial.place:04d}", []
    for seed in data.config.seeds:
        # what is damaged, or has a measure of the user's own that is not trusted, is left out
        odd = (ConfigError, UntrustedError, ValueError, LookupError, TypeError, AttributeError)
        with suppress(*odd), importing_no_others():
            run = Watched(folder / f"seed-{seed}", config, data.config.objective)
            run.look()
            runs += [run] if run.first else []
    if not runs:
        return ()
    steps = sorted(set.intersection(*(set(run.first) for run in runs)))
    return tuple((step, mean([run.value_at(step) for run in runs])) for step in steps)


def finite(points: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """Return the points whose value is a finite number."""
    return [(step, value) for step, value in points if math.isfinite(value)]
