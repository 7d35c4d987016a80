"""A sweep at work: claims trials, gives them cores, ends when the budget does. Several processes may work on one."""

import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from palestra.config import ConfigError, ConfigErrorItem, check, check_overridden, load_yaml, render, trusting
from palestra.config.files import full_key
from palestra.config.own_modules import reading_stored
from palestra.evaluation.measures import measure_errors
from palestra.runs.config import RunConfig, read_config
from palestra.runtime.signals import StopSignals
from palestra.sweeps.config import SweepConfig
from palestra.sweeps.constraints import Constraint
from palestra.sweeps.display import SweepDisplay
from palestra.sweeps.folder import Lock, SweepFolder
from palestra.sweeps.progress import SweepProgress, progress_of
from palestra.sweeps.search import GridConfig
from palestra.sweeps.space import Base, Space
from palestra.sweeps.study import SKIPPED, SweepStudy, best_of, env_steps_of, state_of
from palestra.sweeps.trials import OwnedTrial

POLL_S = 0.1
MOST_CORNERS = 256
SAMPLES = 2000  # points that are tried to find one that the constraints allow
LEAVE_S = 60.0  # for runs to save after a signal


class Plan:
    """A sweep's config with its bases, checked. All errors of both are raised at once, as ConfigError."""

    def __init__(self, config: SweepConfig, bases: dict[str, RunConfig]) -> None:
        data = {name: base.model_dump() for name, base in bases.items()}
        config, errors = _with_full_keys(config, data)
        self.config = config
        self.space = Space([Base(name, data[name], RunConfig) for name in bases], config.space)
        self.constraints = []
        for number, text in enumerate(config.constraints):
            try:
                constraint = Constraint(text)
                self.constraints.append(constraint)
                missing = next((line for each in data.values() for line in constraint.missing(each)), None)
                errors += [ConfigErrorItem(f"constraints.{number}", missing)] if missing else []
            except ConfigError as error:
                errors += [ConfigErrorItem(f"constraints.{number}", item.message) for item in error.errors]
        for name, base in bases.items():
            found = measure_errors(
                config.objective,
                base.evaluations,
                base.game.declared_roles(),
                base.measures_of_games(),
                base.learners(),
            )
            where = f" in {name}" if len(bases) > 1 else ""
            errors += [ConfigErrorItem(f"objective.{item.path}", f"{item.message}{where}") for item in found]
        if errors:
            raise ConfigError(errors)
        self._require_points()
        self._check_corners()

    def excluded_by(self, config: dict[str, Any]) -> str | None:
        """The first constraint that a trial's config does not fulfil."""
        return next((each.text for each in self.constraints if not each.holds(config)), None)

    def _require_points(self) -> None:
        is_grid = isinstance(self.config.search, GridConfig)
        points = self.space.points() if is_grid else self.space.samples(SAMPLES)
        if self.constraints and all(self.excluded_by(self.space.config_at(point)) for point in points):
            what = "no point of the grid fulfils" if is_grid else f"none of {SAMPLES} random points fulfils"
            raise ConfigError([ConfigErrorItem("constraints", f"expected some that can be fulfilled, but {what} them")])

    def _check_corners(self) -> None:
        """Raise ConfigError with what the check says of the corners of the space, each error once."""
        found: dict[tuple[str, str], ConfigErrorItem] = {}
        for point in self.space.corners(MOST_CORNERS):
            try:
                config = self.space.config_at(point)
                if self.excluded_by(config) is None:
                    read_config(config)
            except ConfigError as error:
                at = ", ".join(f"{name.rpartition('.')[2]}={value}" for name, value in point.items())
                for item in error.errors:
                    key = f"space: {item.path}"
                    found.setdefault((key, item.message), ConfigErrorItem(key, f"{item.message} (at {at})"))
        if found:
            raise ConfigError(list(found.values()))


def _with_full_keys(config: SweepConfig, bases: dict[str, dict[str, Any]]) -> tuple[SweepConfig, list[ConfigErrorItem]]:
    """The config with the keys of its space in full, and what is wrong with them."""
    errors, space = [], {}
    for key, dimension in config.space.items():
        found, faults = set(), []
        for data in bases.values():
            try:
                found.add(full_key(data, key))
            except ConfigError as error:
                faults += [item.message for item in error.errors]
        if len(found) > 1:
            faults = [f"expected a key in full, for it means {' and '.join(sorted(found))}"]
        if len(found) == 1:
            space[found.pop()] = dimension
        elif faults:
            errors.append(ConfigErrorItem(f"space.{key}", faults[0]))
    for key in ("seed", *(key for key in space if key.startswith("output."))):
        if key in space:
            errors.append(
                ConfigErrorItem(f"space.{key}", "expected a key that changes what is learned; seeds lists seeds")
            )
    return config.model_copy(update={"space": space}), errors


class Sweep:
    """A stored sweep, open for work. First `work`."""

    def __init__(self, folder: SweepFolder, plan: Plan, display: SweepDisplay) -> None:
        self.folder, self.plan, self.config, self.display = folder, plan, plan.config, display
        self.place = self.config.place.build()
        self.study = SweepStudy(folder, self.config, plan.space)
        self.owned: list[OwnedTrial] = []
        self.signals = StopSignals()
        self._num_points = len(plan.space.points()) if isinstance(self.config.search, GridConfig) else None
        self._began = time.monotonic()

    @classmethod
    def create(cls, path: Path, config: SweepConfig, bases: dict[str, RunConfig], display: SweepDisplay) -> Self:
        """A new sweep in a folder that does not exist. Raises ConfigError, RunFolderError."""
        plan = Plan(config, bases)
        plan.config.place.build()
        stored = plan.config.model_copy(update={"base": [f"base/{name}.yml" for name in bases]})
        texts = {name: render(base, type(base)) for name, base in bases.items()}
        folder = SweepFolder.create(path, render(stored, SweepConfig), texts)
        return cls(folder, plan, display)

    @classmethod
    def open(cls, path: Path, overrides: Sequence[str], display: SweepDisplay, trust: bool) -> Self:
        """A stored sweep, to go on with it; another person may have written it. overrides: of keys that change no
        trial, as place.cores=4. Raises UntrustedError if it names modules that are not trusted."""
        folder = SweepFolder.open(path)
        with trusting(trust), reading_stored(folder.config):
            config = check_overridden(load_yaml(folder.config), overrides, SweepConfig)
            bases = {Path(name).stem: read_config(folder.bases.path / Path(name).name) for name in config.base}
            plan = Plan(config, bases)  # reads the config at each value of the space, too
        return cls(folder, plan, display)

    # ---- the loop ---------------------------------------------------------------------------------------

    def work(self) -> int | None:
        """Work until the budget is used up and no trial runs, here or in another process. Gives the signal that has
        stopped it, or None."""
        with self.signals.caught(LEAVE_S, lambda why: self._kill()), self.display:
            while self.signals.received is None and self._step():
                self.display.update(self.progress)
                time.sleep(POLL_S)
            self._leave()
        return self.signals.received

    def progress(self) -> SweepProgress:
        """How it stands."""
        return progress_of(
            self.folder,
            self.study,
            self.owned,
            self.place.num_runs,
            self._num_points,
            time.monotonic() - self._began,
            self.signals.received,
        )

    def _step(self) -> bool:
        for trial in list(self.owned):
            trial.look()
            if trial.end_if_over():
                self.owned.remove(trial)
                self._ended(trial.number)
        self._fill()
        return bool(self.owned or self.study.running() or self._may_begin())

    def _fill(self) -> None:
        """Start runs while there is room."""
        while self._has_room():
            for trial in self.owned:
                run = trial.waiting()
                if run is not None and trial.is_free(run):
                    trial.start(run, self.place)
                    break
            else:
                if not any(trial.waiting() for trial in self.owned) and (self._adopt() or self._begin()):
                    continue
                return

    def _has_room(self) -> bool:
        return sum(trial.num_running for trial in self.owned) < self.place.num_runs

    def _may_begin(self) -> bool:
        """Whether the budget allows another trial."""
        budget, trials = self.config.budget, self.study.trials()
        num_points = len(self.plan.space.points()) if isinstance(self.config.search, GridConfig) else None
        if num_points is not None and len(trials) >= num_points:
            return False
        if budget.trials is not None and sum(state_of(trial) != "skipped" for trial in trials) >= budget.trials:
            return False
        if budget.env_steps is not None and sum(map(env_steps_of, trials)) >= budget.env_steps:
            return False
        return budget.minutes is None or time.monotonic() - self._began < 60 * budget.minutes

    def _adopt(self) -> bool:
        """Take over a trial of a dead process."""
        mine = {trial.number for trial in self.owned}
        for trial in self.study.running():
            if trial.number not in mine and self.study.is_ours(trial):
                lock = Lock.take(self.folder.trial(trial.number).make(), "lock")
                if lock is not None:
                    return self._own(trial.number, lock)
        return False

    def _begin(self) -> bool:
        """Begin a new trial, if the budget allows one."""
        with self.folder.alone():
            if not self._may_begin():
                return False
            trial = self.study.claim()
            lock = Lock.take(self.folder.trial(trial.number).make(), "lock", wait=True)
            assert lock is not None
        return self._own(trial.number, lock)

    def _own(self, number: int, lock: Lock) -> bool:
        trial = next(each for each in self.study.running() if each.number == number)
        try:
            config = self.plan.space.config_at(self.study.point(trial))
            if excluded := self.plan.excluded_by(config):
                self.study.fail(number, excluded, SKIPPED)
                lock.free()
                return True
            self.owned.append(OwnedTrial(self.study, self.folder, self.config, number, config, lock))
        except ConfigError as error:
            self.study.fail(number, "; ".join(map(str, error.errors)))
            lock.free()
            self._ended(number)
        return True

    def _ended(self, number: int) -> None:
        """Say how a trial has ended, and keep the best config."""
        trials = self.study.trials()
        [trial] = [each for each in trials if each.number == number]
        best = best_of(trials, self.config.objective.goal)
        state = state_of(trial)
        value = "" if trial.value is None else f", {self.config.objective.measure} {trial.value:.6g}"
        why = trial.user_attrs.get("failure")
        is_best = best is not None and best.number == number
        line = f"trial {number}: {state}{value}{' (best so far)' if is_best else ''}{f': {why}' if why else ''}"
        self.display.ended(line)
        if best is not None:
            with self.folder.alone():
                newest = best_of(self.study.trials(), self.config.objective.goal)
                assert newest is not None
                self.folder.root.write("best.yml", self.folder.trial(newest.number).read("config.yml"))

    def _leave(self) -> None:
        """Let the runs save and end."""
        if self.signals.received is not None:
            self.display.stopping(self.signals.received, self.progress)
            for trial in self.owned:
                trial.signal(signal.SIGTERM)
            while any(run.job is not None and run.job.poll() is None for trial in self.owned for run in trial.runs):
                self.display.update(self.progress)
                time.sleep(POLL_S)
        self.display.update(self.progress, is_last=True)
        for trial in self.owned:
            trial.lock.free()

    def _kill(self) -> None:
        for trial in self.owned:
            trial.signal(signal.SIGKILL)


def read_sweep(data: dict[str, Any], overrides: Sequence[str]) -> SweepConfig:
    """A sweep's config from plain data. Raises ConfigError."""
    return check_overridden(data, overrides, SweepConfig) if overrides else check(data, SweepConfig)
