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

from optuna.trial import FrozenTrial

from palestra.config import ConfigError, UntrustedError, check, load_yaml, under
from palestra.config.own_modules import importing_no_others
from palestra.recording.results import as_float, score_text, thinned
from palestra.run.base import BaseRunConfig
from palestra.run.branching import Change, tree_differences
from palestra.run.kinds import read_config
from palestra.storage.disk import Folder, RunFolderError
from palestra.sweeps import outcomes
from palestra.sweeps.config import SweepConfig
from palestra.sweeps.folder import SweepFolder
from palestra.sweeps.naming import point_texts, short_keys, short_value
from palestra.sweeps.pruning import MedianConfig, SuccessiveHalvingConfig
from palestra.sweeps.seed_runs import Watched
from palestra.sweeps.space import BASE, ChoiceConfig, DimensionConfig, IntegerConfig, LogConfig
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
            return cls(key, label, 0, dimension.num_values() - 1, False, tuple(dimension.stored()))
        is_log = isinstance(dimension, LogConfig) or (isinstance(dimension, IntegerConfig) and dimension.log)
        return cls(key, label, dimension.low, dimension.high, is_log)

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


class TrialData:
    """A trial of the study.

    stored: as the study has it. place: the number under which its runs lie. parent: the number of the trial from whose
    runs they branch off; None: they begin anew. point: the values by key, as the study
    stores them. value: NaN unless it succeeded. reported: what the pruner was told, by step. by_seed: the value of each
    seed. counts: of its runs together, by unit. why: why it failed, was skipped or was run again. is_here: whether its
    runs lie in the sweep's folder; another machine may have the others.
    """

    def __init__(self, trial: FrozenTrial, folder_id: str) -> None:
        self.stored, self.number = trial, trial.number
        self.place, self.state = outcomes.place_of(trial), outcomes.state_of(trial)
        self.parent = outcomes.parent_of(trial)
        self.point: Mapping[str, Any] = trial.params
        self.value = as_float(trial.value) if self.state == "succeeded" else math.nan
        self.reported = dict(sorted(trial.intermediate_values.items()))
        self.by_seed = {seed: as_float(value) for seed, value in trial.user_attrs.get(outcomes.VALUES, {}).items()}
        self.counts, self.why = outcomes.counts_of(trial), outcomes.why_of(trial)
        self.is_here = trial.user_attrs.get("folder") == folder_id

    def text(self, key: str) -> str:
        """Return a value of the point in short."""
        return short_value(self.point[key], self.stored.distributions[key])


class SweepData:
    """Everything that a report needs of the sweep in a folder. Raises RunFolderError, ConfigError.

    config_text: the text of sweep.yml. bases: the configs from which trials differ, by name; empty ones cannot be read.
    best: the best trial; None if none has succeeded. best_config: the mapping in best.yml, if it can be read. faults: a
    line for each damaged or missing file.
    """

    def __init__(self, path: Path) -> None:
        folder, self.path = SweepFolder.open(path), path
        self.facts, self.faults = folder.facts(), list[str]()
        self.config_text = folder.root.read("sweep.yml").decode(errors="replace")
        with importing_no_others():
            try:
                self.config = check(load_yaml(self.config_text), SweepConfig)
            except ConfigError as error:
                raise RunFolderError(f"{folder.config} differs from what was written:\n{error}") from error
        trials = read_trials(folder, self.config.storage, load_yaml(self.config_text))
        best = outcomes.best_of(trials, self.config.objective.goal)
        self.trials = [TrialData(trial, folder.id) for trial in trials]
        names = [Path(name).stem for name in self.config.base]
        self.bases = {name: _mapping(folder.bases, f"{name}.yml", self.faults) for name in names}
        self.best = next((trial for trial in self.trials if trial.stored is best), None)
        self.best_config = {} if best is None else _mapping(folder.root, "best.yml", self.faults)

    # ---- what it searches ----------------------------------------------------------------------------------

    @cached_property
    def axes(self) -> tuple[Axis, ...]:
        """The dimensions, first that of the bases if there are several. Those with a single value are left out."""
        bases: dict[str, DimensionConfig] = {BASE: ChoiceConfig(name="choice", values=list(self.bases))}
        axes = [Axis.of(key, self.labels.get(key, key), each) for key, each in (bases | self.config.space).items()]
        return tuple(axis for axis in axes if axis.low < axis.high)

    @cached_property
    def labels(self) -> dict[str, str]:
        """The labels of the keys, in the order of the space; that of the base first, if there are several."""
        labels = short_keys(list(self.config.space))
        return {BASE: BASE, **labels} if len(self.bases) > 1 else labels

    def lineage_of(self, trial: TrialData) -> list[TrialData]:
        """Return the trial after all from which it comes, the first one first."""
        known = {each.number: each for each in self.trials}
        return [known[each.number] for each in outcomes.lineage_of(trial.stored, [each.stored for each in self.trials])]

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
        return outcomes.unit_of(
            getattr(self.config.budget.total, "unit", None), (trial.counts for trial in self.trials)
        )

    @property
    def counts_text(self) -> str:
        """How many trials there are, and how many in each state, in words."""
        return outcomes.counts_text([trial.state for trial in self.trials])

    def point_text(self, trial: TrialData) -> str:
        """Return the point of a trial, as "learning_rate 0.0003, gamma 0.99"."""
        texts = [f"{self.labels.get(key, key)} {text}" for key, text in point_texts(trial.stored).items()]
        return ", ".join(texts) or "nothing searched"

    @property
    def best_text(self) -> str:
        """The best trial, named in a sentence."""
        if self.best is None:
            return "No trial has succeeded so far."
        value, point = objective_text(self.best.value), self.point_text(self.best)
        return f"The best trial so far is {self.best.number} with {value}: {point}."

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
    if not outcomes.is_number(value):
        return None
    if isinstance(dimension, ChoiceConfig):
        is_range = len(dimension.values) > 2 and all(map(outcomes.is_number, dimension.values))
        return {min(dimension.values): "lower", max(dimension.values): "upper"}.get(value) if is_range else None
    if dimension.high - dimension.low < 2 * (getattr(dimension, "step", None) or 0):
        return None
    share = Axis.of("", "", dimension).share(value)
    return "lower" if share <= EDGE else "upper" if share >= 1 - EDGE else None


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
    of_bases = (under(base, "evaluations") for base in data.bases.values())
    units = (
        under(each, "interval", "unit")
        for evaluations in of_bases
        for each in (evaluations if isinstance(evaluations, list) else ())
        if under(each, "name") == data.config.objective.evaluation
    )
    return next((str(unit) for unit in units if unit not in (None, "minutes")), "opt_steps")


def _recorded(data: SweepData, trial: TrialData, config: BaseRunConfig | None) -> tuple[tuple[int, float], ...]:
    """Return the values of a trial's runs, at the steps that all of them have; none if they cannot be read."""
    if config is None:
        return ()
    folder, runs = data.path / "trials" / f"{trial.place:04d}", []
    for seed in data.config.seeds:
        # what is damaged, or has a measure of the user's own that is not trusted, is left out
        odd = (ConfigError, UntrustedError, ValueError, LookupError, TypeError, AttributeError)
        with suppress(*odd), importing_no_others():
            run = Watched(folder / f"seed-{seed}", config, data.config.objective, {})
            run.look()
            runs += [run] if run.first else []
    if not runs:
        return ()
    steps = sorted(set.intersection(*(set(run.first) for run in runs)))
    return tuple((step, mean([run.value_at(step) for run in runs])) for step in steps)


def finite(points: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """Return the points whose value is a finite number."""
    return [(step, value) for step, value in points if math.isfinite(value)]
