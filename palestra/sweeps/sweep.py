"""A sweep at work: claims trials, gives them cores, ends when the budget does. Several processes may work on one."""

import math
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path
from typing import Self

from optuna.trial import FrozenTrial

from palestra.config import ConfigError, ConfigErrorItem, Failed, check_overridden, render
from palestra.config.own_modules import as_now, reading_stored
from palestra.run.base import BaseRunConfig
from palestra.run.kinds import read_config
from palestra.runtime.signals import StopSignals
from palestra.storage.disk import RunFolderError, plain_path
from palestra.storage.lock import Lock, holder
from palestra.storage.stored_files import CheckpointError
from palestra.sweeps.config import SweepConfig
from palestra.sweeps.display import SweepDisplay
from palestra.sweeps.folder import SweepFolder
from palestra.sweeps.outcomes import SKIPPED, best_of, count_of, lineage_of, place_of, state_of, value_of, why_of
from palestra.sweeps.plan import Plan
from palestra.sweeps.progress import SweepProgress, progress_of
from palestra.sweeps.seed_runs import POLL_S, let_end
from palestra.sweeps.study import SweepStudy
from palestra.sweeps.trials import OwnedTrial, config_of_runs, has_spare, one_line, spare_disk

LOOK_S = 1.0  # how often the study is asked for work, besides when a trial of ours has ended
FIXED = sorted(SweepConfig.model_fields.keys() - {"budget", "place", "max_restarts"})  # of a stored sweep
NAME_S = 5.0  # after which a process that holds a run is named: one whose sweep was killed has ended long before
LEAVE_S = 60.0  # for runs to save after a signal


class Sweep:
    """A stored sweep, open for work by `work`.

    reading: makes a context for reading the configs of its trials, which another person may have written.
    """

    def __init__(
        self,
        folder: SweepFolder,
        plan: Plan,
        display: SweepDisplay,
        reading: Callable[[], AbstractContextManager[object]],
    ) -> None:
        self.folder, self.plan, self.config, self.display = folder, plan, plan.config, display
        self.reading = reading
        self.place = self.config.place.build()
        folder.require_plain()
        folder.trials.make()
        with folder.alone():  # else two processes may make the study at the same time
            self.study = SweepStudy(folder, self.config, plan.space, plan.search)
        self.owned: list[OwnedTrial] = []
        self.signals = StopSignals()
        self._num_points = len(plan.space.points()) if plan.is_grid else None
        self._began = time.monotonic()
        self._look_again, self._is_over, self._is_held_back = self._began, False, False
        self._held: dict[Path, float] = {}  # runs and trials that others hold: since when; -inf: that was told

    @classmethod
    def create(cls, path: Path, config: SweepConfig, bases: dict[str, BaseRunConfig], display: SweepDisplay) -> Self:
        """Make a new sweep in a folder that does not exist. Raises ConfigError, RunFolderError.

        Its trials are read by the rule for imports that holds now.
        """
        plan = Plan(config, bases)
        plan.config.place.build()
        stored = plan.config.model_copy(update={"base": [f"base/{name}.yml" for name in bases]})
        texts = {name: render(base, type(base)) for name, base in bases.items()}
        folder = SweepFolder.create(path, render(stored, SweepConfig), texts)
        try:
            return cls(folder, plan, display, as_now())
        except BaseException:  # for instance the storage holds another sweep, or does not answer
            folder.remove_unused()
            raise

    @classmethod
    def open(cls, path: Path, overrides: Sequence[str], display: SweepDisplay, trust: bool) -> Self:
        """Open a stored sweep, to go on with it; another person may have written it.

        overrides: of keys that change no trial, as place.cores=4. Raises UntrustedError if it names modules that are
        not trusted.
        """
        folder = SweepFolder.open(path)
        reading = partial(reading_stored, folder.config, trust)
        with reading():
            stored = folder.data()
            config = check_overridden(stored, overrides, SweepConfig)
            changed = [key for key in FIXED if config.model_dump()[key] != stored[key]]
            message = "expected the value with which the sweep began (budget, place and max_restarts may change)"
            ConfigError.require_none(ConfigErrorItem(key, f"{message}, got another") for key in changed)
            bases = {Path(name).stem: read_config(plain_path(folder.bases, Path(name).name)) for name in config.base}
        with reading():  # all that is named so far may be imported; the plan reads what the values of the space name
            plan = Plan(config, bases)
        sweep = cls(folder, plan, display, reading)
        if overrides:
            with folder.alone():
                folder.root.write(folder.config.name, render(config, SweepConfig).encode())
        return sweep

    def failed(self) -> list[FrozenTrial]:
        """Return the trials of this folder that have failed and may be run again."""
        trials = self.study.ranked()
        return [each for each in trials[self._newest(trials) :] if self._has_failed(each)]

    def _has_failed(self, trial: FrozenTrial) -> bool:
        return self.study.is_ours(trial) and state_of(trial) == "failed"

    def _newest(self, trials: Sequence[FrozenTrial]) -> int:
        """Return the rank with which the newest generation begins; 0 without generations."""
        size = self.study.search.size
        return 0 if size is None else max(len(trials) - 1, 0) // size * size

    def retry_failed(self) -> int:
        """Let the trials of this folder that have failed be run again by `work`; returns how many.

        Raises ConfigError if there are only such of earlier generations, of which members have become children.
        """
        with self.folder.alone():
            failed, trials = self.failed(), self.study.ranked()
            late = [str(each.number) for each in trials[: self._newest(trials)] if self._has_failed(each)]
            if late:
                message = (
                    f"expected trials of the newest generation, got {', '.join(late)}, after which others have begun"
                )
                if not failed:
                    raise ConfigError.at("--retry-failed", message)
                self.display.note(f"--retry-failed: {message}; these stay as they are")
            for trial in failed:
                self.study.retry(trial)
            return len(failed)

    # ---- the loop ---------------------------------------------------------------------------------------

    def work(self) -> int | None:
        """Work until the budget is used up and no trial of this folder runs, here or in another process.

        Gives the signal that has stopped it, or None. Raises Failed if it cannot go on; then its runs have been saved.
        """
        with self.signals.caught(LEAVE_S, lambda why: self._kill()), self.display:
            with self.folder.alone():
                self._spare_disk()  # which a process that was killed may have left undone
            try:
                while self.signals.received is None and self._step():
                    self.display.update(self.progress)
                    time.sleep(POLL_S)
            except Failed:
                self._leave()
                raise
            self._leave()
        return self.signals.received

    def progress(self) -> SweepProgress:
        """Return how the sweep stands."""
        worked_s = time.monotonic() - self._began
        return progress_of(
            self.folder, self.study, self.owned, self.place.num_runs, self._num_points, worked_s, self.signals.received
        )

    def _step(self) -> bool:
        for trial in list(self.owned):
            trial.look()
            if trial.end_if_over():
                self.owned.remove(trial)
                self._ended(trial.number)
                self._look_again = time.monotonic()
        while sum(trial.num_running for trial in self.owned) < self.place.num_runs:
            if not (self._start() or self._find_work()):
                break
        return bool(self.owned) or not self._is_over

    def _start(self) -> bool:
        """Start a run that waits, if there is one that nobody else trains."""
        for trial in self.owned:
            for run in trial.waiting():
                process = trial.holder(run)
                if process is None:
                    self._held.pop(run.path, None)
                    trial.start(run, self.place)
                    return True
                self._wait_for(process, run.path)
        return False

    def _wait_for(self, process: str, path: Path) -> None:
        """Name the process that holds a run or a trial for which this one waits, once."""
        if path not in self._held:
            self._held[path] = time.monotonic()
        elif not self._is_named(path) and time.monotonic() - self._held[path] > NAME_S:
            self._held[path], remedy = -math.inf, f"if it hangs, kill -9 {process} ends it"
            self.display.note(f"waiting for process {process}, which holds {path} ({remedy})")

    def _is_named(self, path: Path) -> bool:
        return self._held.get(path) == -math.inf

    def _find_work(self) -> bool:
        """Take over a trial, or begin one, and return whether there was any.

        Nothing is looked for while a run of ours waits for a place, or for a process that will end in a moment.
        """
        waiting = [run.path for trial in self.owned for run in trial.waiting()]
        if not all(map(self._is_named, waiting)) or time.monotonic() < self._look_again:
            return False
        mine = {trial.number for trial in self.owned}
        others = [trial.number for trial in self._running() if trial.number not in mine]
        if any(map(self._take, others)) or self._begin():  # the first ones: of a dead process
            return True
        self._look_again = time.monotonic() + LOOK_S
        running = self._running()
        self._is_over = not running
        if self._is_over and self._is_held_back:
            self.display.note("the sweep ends before its budget is used up: the search lets no further trial begin")
        for trial in running if not self.owned else ():
            folder = self.folder.trial(place_of(trial))
            with suppress(OSError):
                self._wait_for(holder(folder, "lock"), folder.path)
        return False

    def _running(self) -> list[FrozenTrial]:
        """Return the trials of this folder that nobody has ended."""
        return [trial for trial in self.study.running() if self.study.is_ours(trial)]

    def _may_begin(self) -> bool:
        """Return whether the budget allows another trial. A generation that has begun is finished."""
        budget, total, trials = self.config.budget, self.config.budget.total, self.study.trials()
        if self.study.search.size is not None and len(trials) % self.study.search.size:
            return True
        num_run = sum(state_of(trial) != "skipped" for trial in trials)
        return not (
            (self._num_points is not None and len(trials) >= self._num_points)
            or (budget.trials is not None and num_run >= budget.trials)
            or (total is not None and sum(count_of(trial, total.unit) for trial in trials) >= total.after)
            or (budget.minutes is not None and time.monotonic() - self._began >= 60 * budget.minutes)
        )

    def _begin(self) -> bool:
        """Begin a new trial, if the budget and the search allow one."""
        with self.folder.alone():
            may_begin = self._may_begin()
            self._is_held_back = may_begin and not self.study.may_begin()
            if not may_begin or self._is_held_back:
                return False
            number, trials = self.study.claim().number, self.study.ranked()
            if self.study.search.size is not None and self._newest(trials) == len(trials) - 1:
                self._spare_disk()
        self._take(number)  # else another process has taken it over
        return True

    def _spare_disk(self) -> None:
        """Let runs of which no later generation begins lose what only a later one would need."""
        trials, size = self.study.ranked(), self.study.search.size or 0
        for trial in trials[: max(self._newest(trials) - size, 0)]:  # all, for a process may have been killed here
            folder = self.folder.trial(place_of(trial)).path
            try:
                if runs := [run for seed in self.config.seeds if has_spare(run := folder / f"seed-{seed}")]:
                    with self.reading():
                        config = config_of_runs(self.study.config_of(trial), self.config)
                    for run in runs:
                        spare_disk(run, config, self.config.objective)
            except (ConfigError, RunFolderError, CheckpointError, OSError) as error:
                self.display.note(f"trial {trial.number} keeps all its checkpoints: {error}")

    def _take(self, number: int) -> bool:
        """Own a trial, or fail it if it has no folder that can be used; returns False if another process owns it."""
        try:
            lock = Lock.take(self.folder.trial(place_of(self.study.trial(number))).make(), "lock")
        except RunFolderError as error:
            self.study.fail(number, str(error))
            self._ended(number)
            return True
        is_owned = False
        try:
            is_owned = lock is not None and self._own(number, lock)
        finally:
            if lock is not None and not is_owned:
                lock.free()
        return lock is not None

    def _own(self, number: int, lock: Lock) -> bool:
        """Own a trial, if it runs and can be run. Returns whether nobody has to free its lock any more."""
        trial = next((each for each in self.study.running() if each.number == number), None)
        if trial is None:  # another process has ended it in between
            return False
        if self._num_points is not None and self.study.rank(trial) >= self._num_points:  # another folder was faster
            self.study.fail(number, "no point of the grid is left", SKIPPED)
            return False
        try:
            with self.reading():
                config = self.plan.space.config_at(self.study.point(trial))
                if (excluded := self.plan.excluded_by(config)) is None:
                    parent = self.study.parent(number)
                    origin = None if parent is None else self.folder.trial(place_of(parent))
                    config = self.study.config_of(self.study.trial(number))
                    self.owned.append(OwnedTrial(self.study, self.folder, self.config, number, config, origin, lock))
                    return True
                self.study.fail(number, excluded, SKIPPED)
        except (ConfigError, RunFolderError, CheckpointError) as error:
            self.study.fail(number, one_line(error))
            lock.free()  # first, because another process may retry it
            self._ended(number)
            return True
        return False

    def _ended(self, number: int) -> None:
        """Say how a trial has ended, and keep the best config."""
        trial, best = self.study.trial(number), self._best()
        known, why = value_of(trial), why_of(trial)
        value = "" if known is None else f", {self.config.objective.measure} {known:.6g}"
        mark = " (best so far)" if best is not None and best.number == number else ""
        self.display.ended(f"trial {number}: {state_of(trial)}{value}{mark}{f': {why}' if why else ''}")
        self._keep_best()

    def _best(self) -> FrozenTrial | None:
        return best_of(self.study.trials(), self.config.objective.goal)

    def _keep_best(self) -> None:
        """Write best.yml. The best trial may lie in the folder of another process that shares the study."""
        with self.folder.alone(), self.reading():
            if (best := self._best()) is not None:
                config = config_of_runs(self.study.config_of(best), self.config)
                *before, _ = [str(each.number) for each in lineage_of(best, self.study.trials())]
                comment = f"# The keys of trial {best.number}, which branches off {', '.join(reversed(before))}.\n"
                comment += "# They alone do not repeat its lineage, in which keys may have been others.\n"
                text = f"{comment if before else ''}{render(config, type(config))}"
                self.folder.root.write("best.yml", text.encode())

    def _leave(self) -> None:
        """Let the runs save and end."""
        if self.signals.received is not None:
            self.display.stopping(self.signals.received, self.progress)
        let_end(self.owned, lambda: self.display.update(self.progress))  # those of a sweep that fails, too
        self._keep_best()  # a process that was killed may have told a value and not come to this
        self.display.update(self.progress, is_last=True)
        for trial in self.owned:
            trial.lock.free()

    def _kill(self) -> None:
        for trial in self.owned:
            trial.signal(signal.SIGKILL)
