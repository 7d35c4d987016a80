"""A trial that this process works on: a run for each seed, started, watched, resumed after kills, and pruned."""

import math
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from palestra.config import ConfigError
from palestra.config.files import value_at
from palestra.config.rendering import inline_flow
from palestra.run.base import BaseRunConfig
from palestra.run.branching import branch_counters
from palestra.run.checkpoints import Checkpoints
from palestra.run.kinds import read_config
from palestra.runtime.statistics import interquartile_mean
from palestra.storage.disk import Folder, RunFolderError
from palestra.storage.lock import Lock, holder, is_held
from palestra.storage.manifest import Manifest, number_in
from palestra.storage.run_folder import RunFolder
from palestra.sweeps.config import ObjectiveConfig, SweepConfig
from palestra.sweeps.folder import SweepFolder
from palestra.sweeps.outcomes import COUNTS, SECONDS, VALUES, place_of
from palestra.sweeps.places import Place
from palestra.sweeps.seed_runs import SeedRun, SeedRuns, Watched
from palestra.sweeps.space import has_key
from palestra.sweeps.study import SweepStudy


@dataclass(frozen=True)
class Moment:
    """How far a run was.

    share: of its training, 0 to 1. count: in the unit of the sweep. train_s: its seconds of training, in all its
    processes.
    """

    at_s: float
    share: float
    count: float
    train_s: float


class Pace:
    """The pace of one run. Its process may be started several times, and only time in which one works counts."""

    def __init__(self) -> None:
        self._before_s = 0.0  # of processes that have ended
        self._began_s: float | None = None
        self._start = self._first = self._last = Moment(0.0, 0.0, 0.0, 0.0)

    def begin(self, now_s: float, share: float, count: float, train_s: float) -> None:
        """Note that a process starts. What an earlier process of this sweep trained counts as training alone."""
        self._before_s = max(self._before_s, train_s)
        self._began_s = now_s
        self._start = self._first = self._last = Moment(now_s, share, count, train_s)

    def note(self, now_s: float, share: float, count: float, train_s: float) -> None:
        """Note how far the run is; nothing happens where it has not gone on."""
        if share <= self._last.share and count <= self._last.count:
            return
        self._last = Moment(now_s, share, count, train_s)
        if self._first is self._start:  # what came before is importing, too
            self._first = self._last

    def end(self, now_s: float) -> None:
        """Note that the process has ended."""
        self._before_s = self.seconds(now_s)
        self._began_s = None

    def seconds(self, now_s: float) -> float:
        """Return how long the run's processes have worked."""
        return self._before_s + (0.0 if self._began_s is None else now_s - self._began_s)

    def seconds_left(self, now_s: float) -> float:
        """Return the seconds until the run's training ends; nan if that cannot be known."""
        first, last = self._first, self._last
        if last.share >= 1.0:
            return 0.0
        if last.share > first.share:
            left = (1.0 - last.share) * (last.at_s - first.at_s) / (last.share - first.share)
        elif last is not self._start and last.share > 0.0 and last.train_s > 0.0:
            left = (1.0 - last.share) * last.train_s / last.share
        else:
            return math.nan
        return max(left - (now_s - last.at_s), 0.0)

    def per_s(self) -> float:
        """Return how many units of the sweep the run counts per second; nan if that cannot be known."""
        seconds = self._last.at_s - self._first.at_s
        return (self._last.count - self._first.count) / seconds if seconds > 0.0 else math.nan


class TrialRun(SeedRun):
    """The run of one seed. unit: of the sweep. value: the objective at its end; None until then."""

    def __init__(self, path: Path, seed: int, watched: Watched, unit: str) -> None:
        super().__init__(path, seed, watched)
        self.watched, self.unit = watched, unit
        self.pace = Pace()
        self.restarts = 0
        self.value: float | None = None

    def facts(self) -> tuple[float, float, float, float]:
        """Return the time, the share of its training, its count in the unit of the sweep, its seconds of training."""
        return time.monotonic(), self.watched.share, self.count, 60 * self.watched.minutes

    @property
    def count(self) -> int:
        """What the run has counted, in the unit of the sweep."""
        return self.watched.counts_at().get(self.unit, 0)


class OwnedTrial(SeedRuns[TrialRun]):
    """A trial that this process owns. lock: that of its folder, which this process holds.

    data: of the config of its runs. parent: the folder of the trial from whose runs they branch off. unit: in which the
    sweep counts. failure: why it fails. Raises ConfigError if the config does not pass the check, or is not that with
    which the runs have begun; RunFolderError if its file is a link, say, or there is no checkpoint to branch off.
    """

    def __init__(
        self,
        study: SweepStudy,
        folder: SweepFolder,
        sweep: SweepConfig,
        number: int,
        data: Mapping[str, Any],
        parent: Folder | None,
        lock: Lock,
    ) -> None:
        self.study, self.sweep, self.number, self.lock = study, sweep, number, lock
        config, place = config_of_runs(data, sweep), folder.trial(place_of(study.trial(number)))
        self.unit = config.axis() if sweep.budget.total is None else sweep.budget.total.unit
        paths = {seed: place.path / f"seed-{seed}" for seed in sweep.seeds}
        names = [path.name for path in paths.values()]
        self.origins = {} if parent is None else {name: last_checkpoint(parent.path / name) for name in names}
        starts = {name: Manifest.read(origin).counters for name, origin in self.origins.items()}
        for name, start in starts.items():
            if (reached := start.get(config.stop.unit, 0)) >= config.stop.after:
                what = f"{name} of the trial from which it branches off has come to {reached:,} {config.stop.unit}"
                message = f"expected more, for {what}, beyond its own `stop`; let members train longer"
                raise ConfigError.at("stop.after", f"{message}, got {config.stop.after:,g}")
        runs = [
            TrialRun(path, seed, Watched(path, config, sweep.objective, starts.get(path.name, {})), self.unit)
            for seed, path in paths.items()
        ]
        super().__init__(place, "config.yml", config, runs)
        if (difference := self.difference()) is not None:
            message = f"expected the config of the trial's point, in which {difference}"
            raise ConfigError.at(str(self.base), f"{message}: the study is not that of this folder")
        self.failure: str | None = None
        self.pruned_at: int | None = None
        self._reported: set[int] = set()

    # ---- what it wants ------------------------------------------------------------------------------------

    @property
    def deciding(self) -> list[TrialRun]:
        """The runs by which the pruner decides; all if nothing is pruned."""
        pruning = self.study.pruning
        return self.runs if pruning is None or pruning.over_seeds else self.runs[: pruning.num_seeds]

    @property
    def is_pruned(self) -> bool:
        return self.pruned_at is not None

    def waiting(self) -> list[TrialRun]:
        """Return the runs that may be started now, in their order."""
        if self.failure is not None or self.is_pruned:
            return []
        if self.study.is_over_seeds:
            candidates = [run for run in self.runs if run.value is None][:1]
        else:
            candidates = self.runs if all(run.value is not None for run in self.deciding) else self.deciding
        return [run for run in candidates if run.value is None and run.job is None]

    def arguments(self, run: TrialRun) -> list[str]:
        """As in SeedRuns; a run that branches off another gets the keys of the space, and its own `stop`."""
        arguments = super().arguments(run)
        if arguments[0] == "resume" or (origin := self.origins.get(run.path.name)) is None:
            return arguments
        keys = [key for key in self.study.space.dimensions if has_key(self._data, key)]
        changes = [f"{key}={inline_flow(value_at(self._data, key))}" for key in (*keys, "stop")]
        return ["branch", str(origin.path), *changes, "--run", str(run.path), "--quiet"]

    def start(self, run: TrialRun, place: Place) -> None:
        """Begin a run, or go on with it if it has begun. The trial fails if something else is in the run's place."""
        try:
            super().start(run, place)
            run.watched.look()
            run.pace.begin(*run.facts())
        except (ConfigError, RunFolderError) as error:
            self._fail(run, one_line(error))

    def _fail(self, run: TrialRun, why: str) -> None:
        self.failure = self.failure or f"seed {run.seed}: {why}"

    def holder(self, run: TrialRun) -> str | None:
        """Return the id of a process that trains the run, if there is one.

        There is one, for instance, if its sweep was killed a moment ago.
        """
        folder = self.folder.below(run.path.name)
        with suppress(OSError):  # what is in the run's place `start` will say
            return holder(folder, "lock") if is_held(folder, "lock") else None
        return None

    # ---- how it goes --------------------------------------------------------------------------------------

    def look(self) -> None:
        """Read what the runs have recorded, report it, and see which have ended."""
        for run in self.runs:
            if run.job is not None:
                self._look_at(run)
        if self.study.pruning is not None and not self.is_pruned and self.failure is None:
            for step, value in self._reports():
                if step not in self._reported:
                    self._reported.add(step)
                    if self.study.report(self.number, step, value):
                        self.pruned_at = step
                        break
        if (self.is_pruned or self.failure is not None) and self.num_running:
            self.signal(signal.SIGTERM)

    def _look_at(self, run: TrialRun) -> None:
        code = run.look()
        if code == 0:
            run.watched.end()
        run.pace.note(*run.facts())
        if run.watched.fault is not None:
            self._fail(run, run.watched.fault)
        if code is None:
            return
        run.pace.end(now_s := time.monotonic())
        # by it the end of the sweep is estimated
        self.study.note(self.number, {SECONDS: sum(each.pace.seconds(now_s) for each in self.runs)})
        if code == 0:
            run.value = run.watched.final()
            if math.isnan(run.value):
                self._fail(run, f"the objective is not a number at the end of {run.path}")
        elif (code < 0 or code > 128) and run.restarts < self.sweep.max_restarts:
            run.restarts += 1
        elif not self.is_pruned:
            self._fail(run, run.why(code))

    def _reports(self) -> list[tuple[int, float]]:
        """Return the steps that are due, in their order, each with the trial's value there."""
        if self.study.is_over_seeds:  # they run one after the other
            return [(step, run.value) for step, run in enumerate(self.runs) if run.value is not None]
        runs = [run.watched for run in self.deciding]
        steps = set.intersection(*(set(run.first) for run in runs))
        return [(step, mean([run.value_at(step) for run in runs])) for step in sorted(steps) if step > 0]

    def _counts(self) -> dict[str, int]:
        """Return what the trial's runs have counted, all together, by unit.

        Of a pruned trial only what came up to the evaluation at which it was pruned counts, so that the numbers do not
        depend on how fast the runs were stopped.
        """
        runs, step = (self.deciding, self.pruned_at) if self._is_cut_short else (self.runs, None)
        counts = [run.watched.counts_at(step) for run in runs]
        return {unit: sum(each[unit] for each in counts) for unit in counts[0]}

    @property
    def _is_cut_short(self) -> bool:
        """Whether it was pruned at an evaluation of its runs: whether these then came to their ends does not count."""
        return self.is_pruned and not self.study.is_over_seeds

    @property
    def share(self) -> float:
        return sum(1.0 if run.value is not None else run.watched.share for run in self.runs) / len(self.runs)

    def end_if_over(self) -> bool:
        """Tell Optuna how the trial has ended, once; returns whether it has."""
        is_done = all(run.value is not None for run in self.runs)
        if self.num_running or not (is_done or self.is_pruned or self.failure is not None):
            return False
        ended = [] if self._is_cut_short else self.runs
        values = {str(run.seed): run.value for run in ended if run.value is not None}
        self.study.note(self.number, {COUNTS: self._counts(), VALUES: values})
        if self.failure is not None:
            self.study.fail(self.number, self.failure)
        elif self.is_pruned:
            self.study.prune(self.number)
        else:
            self.study.complete(self.number, mean([run.value for run in self.runs if run.value is not None]))
        self.lock.free()
        return True


def last_checkpoint(run: Path) -> Folder:
    """Return the folder of a run's last checkpoint. Raises RunFolderError if there is none."""
    checkpoints = RunFolder.open(run).checkpoints
    if (number := number_in(checkpoints, "latest")) is None:
        raise RunFolderError(f"expected a checkpoint in {run} to branch off, got none")
    return checkpoints.below(f"{number:08d}")


def has_spare(run: Path) -> bool:
    """Return whether a run has more than one checkpoint, or replay rows. Raises RunFolderError."""
    folder = RunFolder(run)
    is_run = folder.root.kind(folder.run.name) is not None  # else it has failed before it was one
    return is_run and not Checkpoints(folder, keep_last=1, keep_every=None).is_alone()


def spare_disk(run: Path, config: BaseRunConfig, objective: ObjectiveConfig) -> None:
    """Let a run that has ended, and that none branches off any more, keep the checkpoint of its value, without rows.

    If there is none of that evaluation, it keeps its last one. Raises RunFolderError, CheckpointError, OSError.
    """
    folder = RunFolder(run)
    with folder.lock():
        checkpoints = Checkpoints(folder, keep_last=1, keep_every=None)
        number, watched = checkpoints.latest(), Watched(run, config, objective, branch_counters(folder))
        watched.look()
        if objective.of == "best" and watched.evaluations:
            found = checkpoints.holding(watched.counters_of_value())
            number = number if found is None else found
        if number is not None:
            checkpoints.keep_alone(number)


def config_of_runs(config: Mapping[str, Any], sweep: SweepConfig) -> BaseRunConfig:
    """Return the config of a trial's runs; its seed is the first one's. Raises ConfigError."""
    return read_config(dict(config) | {"seed": sweep.seeds[0]})


def one_line(error: Exception) -> str:
    return "; ".join(str(error).splitlines())


def mean(values: list[float]) -> float:
    """Return the interquartile mean."""
    return float(interquartile_mean(torch.tensor(values, dtype=torch.float64)))
