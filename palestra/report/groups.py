"""Groups of runs whose configs differ only in the seed, and means over the runs of a group, with their intervals."""

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from palestra.config import ConfigError, UntrustedError, under
from palestra.recording.results import UNKNOWN, PairResult, Seat
from palestra.report.reading import Evaluated, RunData, count_in
from palestra.run.branching import tree_differences
from palestra.runtime.scores import Estimate
from palestra.runtime.statistics import estimate_mean_of_few
from palestra.storage.disk import RunFolderError
from palestra.sweeps.folder import sweep_of
from palestra.sweeps.naming import point_texts, short_keys
from palestra.sweeps.space import BASE

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

# Sections that change no result, or only within rounding, and the seed.
ASIDE = ("seed", "output", "execution")
MOST_KEYS = 3  # that the name of a group or a trial shows
FEWEST_OF_A_BAND = 4  # runs: the t interval of two or three reaches far beyond all that they have scored
NUM_RESAMPLES = 2000  # of the runs of a group, for the bootstrap of interquartile means
# By the last word of a measure's name, or the last but one where the last is a statistic.
SHARES = ("clip_fraction",)
NOT_NEGATIVE = ("number", "length", "td_error", "learning_rate", "exploration", "std")


@dataclass(frozen=True)
class Group:
    """Runs of one config apart from the seed, at the same moment."""

    label: str
    runs: tuple[RunData, ...]


class Point(NamedTuple):
    """A score at a number of steps; the interval is infinite or NaN if there is none."""

    step: int
    score: Estimate


@dataclass(frozen=True)
class Curve:
    """A score or metric of a group over training.

    points: for one run its own values; for several the mean over the runs, at the steps at which every run has a value,
    from FEWEST_OF_A_BAND runs on with its 95% t interval. each: the values of every run, if there are several.
    """

    group: Group
    points: tuple[Point, ...]
    each: tuple[tuple[Point, ...], ...]


def group_runs(runs: Sequence[RunData]) -> list[Group]:
    """Return the groups in the order of their first runs.

    The runs of a sweep's trial are a group of their own, with the name of the trial. Another group has the name of its
    first run without the number or seed at the end; if two groups would have the same name, the keys in which they
    differ are added.
    """
    found: dict[str, list[RunData]] = {}
    for run in runs:
        trial = run.path.absolute().parent if sweep_of(run.path) else ""
        same = json.dumps(experiment(run), sort_keys=True, default=str) if run.config else str(run.path.resolve())
        found.setdefault(f"{same}{run.at}{trial}", []).append(run)
    of_trials = trial_names(members[0].path for members in found.values())
    groups = [Group(_common_name(members, of_trials), tuple(members)) for members in found.values()]
    if len({group.label for group in groups}) == len(groups):
        return groups
    return [Group(_distinct_name(group, groups), group.runs) for group in groups]


def repeated_seeds(groups: Iterable[Group]) -> Iterator[str]:
    """Yield a warning for each group in which several runs have one seed, as a run and its copy."""
    for group in groups:
        seeds = Counter(str(run.seed) for run in group.runs)
        if twice := ", ".join(sorted(seed for seed, num in seeds.items() if num > 1)):
            dependent = "They are not independent, so intervals over runs are too narrow."
            yield f"{group.label}: several runs have the seed {twice}. {dependent}"


def experiment(run: RunData) -> dict[str, Any]:
    """Return the config of a run without what may differ within a group."""
    return {key: value for key, value in run.config.items() if key not in ASIDE}


def _common_name(runs: Sequence[RunData], of_trials: Mapping[Path, str]) -> str:
    name = of_trials.get(runs[0].path, runs[0].name)
    if len(runs) > 1 and runs[0].path not in of_trials:
        name = re.sub(r"([/_-]?seed)?[-_/ .]?\d*$", "", name) or name
    return f"{name}, {runs[0].at}" if runs[0].at else name


def _distinct_name(group: Group, groups: Sequence[Group]) -> str:
    """Return the group's name with the keys in which it differs from the first group, or for that from the second."""
    other = groups[0] if group is not groups[0] else groups[1]
    changes = tree_differences(experiment(other.runs[0]), experiment(group.runs[0]))
    texts = [f"{change.key.rpartition('.')[2]}={change.after}" for change in changes][:MOST_KEYS]
    return f"{group.label} ({', '.join(texts)})" if texts else group.runs[0].name


def step_unit(groups: Sequence[Group]) -> str:
    """Return the unit of the curves' axes: that of the runs' `stop`, if it is the same in all and counts steps.

    Else it is the usual one of their kind.
    """
    runs = [run for group in groups for run in group.runs]
    units = {str(under(run.config, "stop", "unit")) for run in runs if run.config}
    return units.pop() if len(units) == 1 and units <= {*common_counters(runs)} else axis_of(runs)


def common_counters(runs: Sequence[RunData]) -> list[str]:
    """Return the counters that may be the axis of curves of all these runs."""
    return [name for name in runs[0].kind.steps() if all(name in run.kind.steps() for run in runs)]


def axis_of(runs: Sequence[RunData]) -> str:
    """Return the usual axis of curves of these runs: that of their kind or, if they are of several, opt steps."""
    axes = {run.kind.axes[0] for run in runs}
    return axes.pop() if len(axes) == 1 else "opt_steps"


# ---- over the runs of a group --------------------------------------------------------------------------


def over_runs(group: Group, each: Sequence[Sequence[Point]], measure: str, is_share: bool = False) -> Curve:
    """Make the curve of a group from those of its runs; runs without points are left out.

    Of two points at the same step, the last counts. measure, is_share: of what, which decides the range to which bands
    are cut.
    """
    tracks = [{point.step: point for point in points} for points in each if points]
    if len(tracks) <= 1:
        return Curve(group, tuple(tracks[0].values()) if tracks else (), ())
    common = sorted(set.intersection(*(set(track) for track in tracks)))
    means = tuple(
        Point(step, reported_score([track[step].score for track in tracks], measure, is_share)) for step in common
    )
    return Curve(group, means, tuple(tuple(track.values()) for track in tracks))


def reported_score(scores: Sequence[Estimate], measure: str, is_share: bool = False) -> Estimate:
    """Return `mean_score` as curves show it: for two or three runs without an interval, and cut to what is possible."""
    score = mean_score(scores)
    if 1 < len(scores) < FEWEST_OF_A_BAND:
        return Estimate.of(score.value)
    return cut(score, measure, is_share)


def cut(score: Estimate, measure: str, is_share: bool = False) -> Estimate:
    """Return a score with its interval cut to the possible range. is_share: whether the score lies between 0 and 1."""
    words = measure.split("/")[-2:]
    least = 0.0 if is_share or any(word in (*SHARES, *NOT_NEGATIVE) for word in words) else -math.inf
    most = 1.0 if is_share or (any(word in SHARES for word in words) and words[-1] != "std") else math.inf
    low, high = (min(max(end, least), most) for end in (score.low, score.high))
    return Estimate(score.value, low, high)


def without_intervals(curve: Curve) -> Curve:
    return replace(curve, points=tuple(Point(point.step, Estimate.of(point.score.value)) for point in curve.points))


def mean_score(scores: Sequence[Estimate]) -> Estimate:
    """Return the score of a single run, or the mean over several runs with its 95% t interval."""
    return scores[0] if len(scores) == 1 else estimate_mean_of_few([score.value for score in scores])


def metric_curve(group: Group, name: str, unit: str) -> Curve:
    """Make the curve of a number of the training records.

    In a run with stages a rate of 0 is left out: it is of a stage in which nothing of the kind is done.
    """
    tracks = [
        [
            Point(count_in(record, unit), Estimate.of(value))
            for record, value in run.metrics.get(name, [])
            if value or not (name.endswith("_per_s") and "stages" in run.kind.counters)
        ]
        for run in group.runs
    ]
    return over_runs(group, tracks, name)


def score_curve(group: Group, evaluation: str, seats: tuple[Seat, ...], measure: str, unit: str) -> Curve:
    """Make the curve of a score of a pairing, at the steps at which it is known."""
    found = [
        [
            (Point(count_in(each.record, unit), pair.every_score[measure]), pair.is_share(measure))
            for each in run.results(evaluation)
            for pair in each.evaluation.pairs
            if pair.seats == seats and math.isfinite(pair.every_score.get(measure, UNKNOWN).value)
        ]
        for run in group.runs
    ]
    is_share = any(share for track in found for _, share in track)
    return over_runs(group, [[point for point, _ in track] for track in found], measure, is_share)


class Standing(NamedTuple):
    """The first and the last result of a pairing in one run. raw: its entry in the last record."""

    seats: tuple[Seat, ...]
    first: PairResult
    last: PairResult
    raw: Mapping[str, Any]
    opt_steps: int


def standings_of(evaluated: Sequence[Evaluated], name: str) -> dict[tuple[Seat, ...], Standing]:
    """Return the standings of the pairings of one evaluation, in the order of the last one."""
    found: dict[tuple[Seat, ...], Standing] = {}
    mine = [each for each in evaluated if each.evaluation.name == name]
    for each in mine:
        for pair, raw in each.pairs:
            first = found[pair.seats].first if pair.seats in found else pair
            found[pair.seats] = Standing(pair.seats, first, pair, raw, each.evaluation.opt_steps)
    last = [pair.seats for pair in mine[-1].evaluation.pairs] if mine else []
    order = {seats: number for number, seats in enumerate(last)}
    return dict(sorted(found.items(), key=lambda item: order.get(item[0], len(order))))


# ---- names of trials ------------------------------------------------------------------------------------


def trial_names(runs: Iterable[Path]) -> dict[Path, str]:
    """Return the names of the trials to which runs belong, by the folder of the run.

    A name is that of the trial's base, if the sweep has several, and its values of the keys that are searched, or of
    more than MOST_KEYS keys its number. Runs of no sweep are left out, and those of a sweep whose study cannot be read
    here.
    """
    sweeps = {run: sweep for run in runs if (sweep := sweep_of(run)) is not None}
    names = {sweep: _trials_in(sweep) for sweep in dict.fromkeys(sweeps.values())}
    own = {run: names[sweep].get(run.absolute().parent.name) for run, sweep in sweeps.items()}
    return {run: name for run, name in own.items() if name is not None}


def _trials_in(sweep: Path) -> dict[str, str]:
    """Return the names of a sweep's trials, by their folders."""
    try:
        from palestra.sweeps.outcomes import place_of
        from palestra.sweeps.stored import StoredSweep

        return {f"{place_of(trial):04d}": _trial_name(trial) for trial in StoredSweep.open(sweep).trials}
    except (ImportError, RunFolderError, ConfigError, UntrustedError):  # of ImportError: there is no Optuna here
        return {}


def _trial_name(trial: "FrozenTrial") -> str:
    """Return the name of a trial, as "ppo-cartpole, gamma 0.99"."""
    point = point_texts(trial)
    keys = short_keys(key for key in point if key != BASE)
    told = [f"{short} {point[key]}" for key, short in keys.items()]
    base = [point[BASE]] if BASE in point else []
    return ", ".join([*base, *(told if len(told) <= MOST_KEYS else [f"trial {trial.number}"])])
