"""The objective of a sweep's trials over the steps of their evaluations."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from palestra.config import ConfigError, UntrustedError, under
from palestra.config.own_modules import importing_no_others
from palestra.recording.results import thinned
from palestra.report.sweep_reading import SweepData, TrialData
from palestra.runs.base import BaseRunConfig
from palestra.runs.kinds import read_config
from palestra.sweeps.pruning import MedianConfig, SuccessiveHalvingConfig
from palestra.sweeps.trials import mean
from palestra.sweeps.watching import Watched

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
    checked = {name: _checked(base) for name, base in data.bases.items()}
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


def _checked(base: Mapping[str, Any]) -> BaseRunConfig | None:
    """Return the config of a base; None if it does not pass the check, or names modules that are not trusted."""
    try:
        with importing_no_others():
            config = read_config(dict(base))
    except (ConfigError, UntrustedError):
        return None
    return config


def _recorded(data: SweepData, trial: TrialData, config: BaseRunConfig | None) -> tuple[tuple[int, float], ...]:
    """Return the values of a trial's runs, at the steps that all of them have; none if they cannot be read."""
    runs = [] if config is None else list(_watched(data, trial, config))
    found = [run for run in runs if run.first]
    if not found:
        return ()
    steps = sorted(set.intersection(*(set(run.first) for run in found)))
    return tuple((step, mean([run.value_at(step) for run in found])) for step in steps)


def _watched(data: SweepData, trial: TrialData, config: BaseRunConfig) -> Iterator[Watched]:
    folder = data.path / "trials" / f"{trial.place:04d}"
    for seed in data.config.seeds:
        try:
            with importing_no_others():
                run = Watched(folder / f"seed-{seed}", config, data.config.objective)
                run.look()
        except (ConfigError, UntrustedError, ValueError, LookupError, TypeError, AttributeError):
            continue  # damaged, or a measure of the user's own that is not trusted
        yield run


def finite(points: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """Return the points whose value is a finite number."""
    return [(step, value) for step, value in points if math.isfinite(value)]
