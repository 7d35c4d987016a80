"""How a sweep stands, as plain data that its display and its summary show."""

import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from statistics import fmean

from optuna.trial import FrozenTrial

from palestra.sweeps import outcomes
from palestra.sweeps.folder import SweepFolder
from palestra.sweeps.naming import point_texts
from palestra.sweeps.study import SweepStudy
from palestra.sweeps.trials import OwnedTrial, TrialRun

NUM_ENDED = 20  # so many trials that ended last are kept, and so many of those that failed

NUM_FIRST = 3  # failures that the summary names


@dataclass(frozen=True)
class RunProgress:
    """A run that this process works on.

    share: of its training. value: the objective at its last evaluation; None before. seconds: how long it has worked.
    count, per_s: in the unit of the sweep; nan if it is not known yet.
    """

    trial: int
    seed: int
    share: float
    value: float | None
    seconds: float
    count: float
    per_s: float
    restarts: int


@dataclass(frozen=True)
class EndedTrial:
    """A trial that has ended. values: of its seeds.

    point: short texts by the dotted keys. reason: why it failed or was skipped, else "". log: that of the run that
    failed.
    """

    number: int
    state: str
    value: float | None
    values: Sequence[float]
    point: Mapping[str, str]
    reason: str
    log: Path | None
    runs: Sequence[Path]


@dataclass(frozen=True)
class SweepProgress:
    """How a sweep stands. counts: how many trials have each state, of those that occur.

    generation, num_generations: the newest, counted from 1, and how many there will be; None: there are none, or the
    budget does not say it. total: how many trials there will be, without those that are skipped; None: the budget does
    not say it. done: of those, in whole trials and shares of the running ones. count, max_count: of all runs, in
    `unit`. max_s: after which no trial begins; inf: never. seconds_left: until the end; nan if it cannot be known.
    num_elsewhere: trials that have begun and that this process does not work on. ended, failures: the last ones, the
    newest first. first_failures: by number. stopped_by: the signal on which the runs save and end; None: none.
    """

    path: Path
    measure: str
    counts: Mapping[str, int]
    generation: int | None
    num_generations: int | None
    total: int | None
    done: float
    unit: str
    count: float
    max_count: float
    worked_s: float
    max_s: float
    seconds_left: float
    best: EndedTrial | None
    runs: Sequence[RunProgress]
    num_elsewhere: int
    ended: Sequence[EndedTrial]
    failures: Sequence[EndedTrial]
    first_failures: Sequence[EndedTrial]
    stopped_by: int | None

    @property
    def num_ended(self) -> int:
        return sum(count for state, count in self.counts.items() if state not in ("running", "skipped"))

    @property
    def share(self) -> float:
        """The used share of the budget's nearest limit, 0 to 1."""
        shares = [self.count / self.max_count, self.worked_s / self.max_s]
        shares += [] if self.total is None else [self.done / max(self.total, 1)]
        return min(max(shares), 1.0)


def progress_of(
    folder: SweepFolder,
    study: SweepStudy,
    owned: Sequence[OwnedTrial],
    num_places: int,
    num_points: int | None,
    worked_s: float,
    stopped_by: int | None = None,
) -> SweepProgress:
    """Return how a sweep stands. owned: the trials that this process works on. num_points: of a grid."""
    config, trials = study.config, study.trials()
    states = [outcomes.state_of(trial) for trial in trials]
    counts = {state: states.count(state) for state in outcomes.STATES if state in states}
    mine = {trial.number for trial in owned}
    elsewhere = [trial for trial in trials if outcomes.state_of(trial) == "running" and trial.number not in mine]
    ended = [trial for trial in trials if outcomes.state_of(trial) != "running"]
    ended.sort(key=lambda trial: (_timestamp(trial.datetime_complete), trial.number), reverse=True)
    failed = [trial for trial in ended if outcomes.state_of(trial) == "failed"]
    best = outcomes.best_of(trials, config.objective.goal)
    budget, num_skipped = config.budget, counts.get("skipped", 0)
    limits = budget.trials, None if num_points is None else num_points - num_skipped
    total = min((limit for limit in limits if limit is not None), default=None)
    size = study.search.size
    now_s, total_count = time.monotonic(), budget.total
    counted: list[Mapping[str, float]] = [*map(outcomes.counts_of, ended), *({trial.unit: 0} for trial in owned)]
    unit = outcomes.unit_of(getattr(total_count, "unit", None), counted)
    progress = SweepProgress(
        path=folder.path,
        measure=config.objective.measure,
        counts=counts,
        generation=None if size is None else max(len(trials) - 1, 0) // size + 1,
        num_generations=None if size is None or total is None else total // size,
        total=total,
        done=len(ended) - num_skipped + sum(trial.share for trial in owned),
        unit=unit,
        count=sum(outcomes.count_of(trial, unit) for trial in ended)
        + sum(run.count for trial in owned for run in trial.runs),
        max_count=math.inf if total_count is None else total_count.after,
        worked_s=worked_s,
        max_s=math.inf if budget.minutes is None else 60 * budget.minutes,
        seconds_left=math.nan,
        best=None if best is None else _ended_trial(folder, best),
        runs=[_run_progress(trial, run, now_s) for trial in owned for run in trial.runs if run.is_running],
        num_elsewhere=len(elsewhere),
        ended=[_ended_trial(folder, trial) for trial in ended[:NUM_ENDED]],
        failures=[_ended_trial(folder, trial) for trial in failed[:NUM_ENDED]],
        first_failures=[_ended_trial(folder, trial) for trial in sorted(failed, key=lambda t: t.number)[:NUM_FIRST]],
        stopped_by=stopped_by,
    )
    if stopped_by is None:
        left = _seconds_left(progress, study, ended, owned, elsewhere, num_places, now_s)
        progress = replace(progress, seconds_left=left)
    return progress


def _timestamp(moment: datetime | None) -> float:
    return 0.0 if moment is None else moment.timestamp()


def _run_progress(trial: OwnedTrial, run: TrialRun, now_s: float) -> RunProgress:
    return RunProgress(
        trial=trial.number,
        seed=run.seed,
        share=run.watched.share,
        value=run.watched.latest,
        seconds=run.pace.seconds(now_s),
        count=run.count,
        per_s=run.pace.per_s(),
        restarts=run.restarts,
    )


def _ended_trial(folder: SweepFolder, trial: FrozenTrial) -> EndedTrial:
    state, reason = outcomes.state_of(trial), outcomes.why_of(trial)
    seed = re.match(r"seed (\d+): ", reason) if state == "failed" else None
    place, values = folder.trial(outcomes.place_of(trial)).path, trial.user_attrs.get(outcomes.VALUES) or {}
    log, runs = None if seed is None else place / f"seed-{seed[1]}.log", [place / f"seed-{each}" for each in values]
    return EndedTrial(
        trial.number, state, outcomes.value_of(trial), list(values.values()), point_texts(trial), reason, log, runs
    )


# ---- when it will end ------------------------------------------------------------------------------------


def _seconds_left(
    progress: SweepProgress,
    study: SweepStudy,
    ended: Sequence[FrozenTrial],
    owned: Sequence[OwnedTrial],
    elsewhere: Sequence[FrozenTrial],
    num_places: int,
    now_s: float,
) -> float:
    """Estimate when the sweep will end.

    A further trial takes the mean of those that ended, in whatever way, and of those that run, as they would end at
    their pace: the first that end are the short ones. Other processes are taken to work as fast as this one.
    """
    num_seeds = len(study.config.seeds)
    counted = [trial for trial in ended if outcomes.state_of(trial) != "skipped"]
    whole = [whole for trial in owned if (whole := _projected(trial, now_s)) is not None]
    whole += [
        (seconds, outcomes.count_of(trial, progress.unit))
        for trial in counted
        if (seconds := outcomes.seconds_of(trial)) is not None
    ]
    trial_s, trial_count = map(fmean, zip(*whole, strict=True)) if whole else (math.nan, math.nan)
    unfinished = [run for trial in owned for run in trial.runs if run.value is None]
    lefts = [run.pace.seconds_left(now_s) for run in unfinished]
    if not math.isnan(trial_s):
        usual = [max(trial_s / num_seeds - run.pace.seconds(now_s), 0.0) for run in unfinished]
        lefts = [other if math.isnan(left) else left for left, other in zip(lefts, usual, strict=True)]
    num_at_once = max(1, round(num_places / len(owned))) if owned else min(num_places, num_seeds)
    for trial in elsewhere:
        gone_s = max(time.time() - _timestamp(trial.datetime_start), 0.0)
        lefts += [max(trial_s / num_at_once - gone_s, 0.0)] * num_at_once
    num_begun = len(owned) + len(elsewhere)
    nums: list[float] = [] if progress.total is None else [progress.total - len(counted) - num_begun]
    if progress.max_count < math.inf:
        left = progress.max_count - sum(outcomes.count_of(trial, progress.unit) for trial in ended)
        nums.append(math.ceil(left / trial_count) - num_begun if trial_count > 0.0 else math.nan)
    return work_left(
        lefts,
        num_places + num_at_once * len(elsewhere),
        trial_s,
        trial_s if study.is_over_seeds else trial_s / min(num_seeds, num_places),
        math.nan if any(map(math.isnan, nums)) else max(min(nums, default=math.inf), 0),
        progress.max_s - progress.worked_s,
    )


def work_left(
    lefts: Sequence[float], num_places: int, trial_s: float, longest_s: float, num_new: float, begin_s: float
) -> float:
    """Return the seconds that the work of a sweep takes in its places, side by side; nan if that is not known.

    lefts: the seconds that each run still takes whose trial has begun. trial_s: what one more trial works, in all its
    runs. longest_s: from its begin to its end. num_new: so many will begin, but none after begin_s; inf: no limit.
    """
    work_s, last_s = sum(lefts), max(lefts, default=0.0)
    if num_new != 0 and begin_s > 0.0:
        work_s = min(work_s + num_new * trial_s, num_places * (begin_s + longest_s))  # nan stays
        last_s = max(last_s, longest_s)
    left = max(work_s / num_places, last_s)
    return math.nan if math.isnan(work_s) or math.isinf(left) else left


def _projected(trial: OwnedTrial, now_s: float) -> tuple[float, float] | None:
    """Return the seconds and the count of all of a trial's runs at their ends; None before any has gone on."""
    seconds, counts = [], []
    for run in trial.runs:
        left, share = (run.pace.seconds_left(now_s), run.watched.share) if run.value is None else (0.0, 1.0)
        if not math.isnan(left):
            seconds.append(run.pace.seconds(now_s) + left)
            counts.append(run.count / share)
    return (len(trial.runs) * fmean(seconds), len(trial.runs) * fmean(counts)) if seconds else None
