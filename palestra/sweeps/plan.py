"""The plan of a sweep: its config and its bases, with everything that can be checked before anything starts.

Of first sweeps, too: what `palestra config sweep` prints, and the sweep of a grid by hand.
"""

import math
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from palestra.config import ConfigError, ConfigErrorItem, UserConfig, load_yaml, walk
from palestra.config.errors import listed, nearest
from palestra.config.files import full_key, replace_values
from palestra.config.places import Place
from palestra.config.usual import completed, remedies
from palestra.data.sets import keeping_last_sets
from palestra.recording.results import count_text, label
from palestra.run.base import BaseRunConfig
from palestra.run.branching import is_fixed, tree_differences
from palestra.run.kinds import read_config
from palestra.run.shipped import is_path, shipped_configs
from palestra.runtime.intervals import Limit
from palestra.sweeps.config import SweepConfig, is_sweep, read_sweep
from palestra.sweeps.naming import short_keys
from palestra.sweeps.places import LocalConfig
from palestra.sweeps.pruning import MedianConfig, SuccessiveHalvingConfig
from palestra.sweeps.search import EvolutionConfig, GridConfig, Succession
from palestra.sweeps.space import BASE, Base, Constraint, Point, Space
from palestra.training.trainable import check_trainable

MOST_CORNERS = 64
SAMPLES = 2000  # points that are tried to find one that the constraints allow


class Plan:
    """A sweep's config with its bases, checked. All errors of both are raised at once, as ConfigError."""

    def __init__(self, config: SweepConfig, bases: dict[str, BaseRunConfig]) -> None:
        of_evolution: list[ConfigErrorItem] = []
        if isinstance(search := config.search, EvolutionConfig):
            of_evolution = list(_errors_of_evolution(config, search, bases))
            bases = {name: base.model_copy(update={"stop": search.generation}) for name, base in bases.items()}
        self.bases = bases
        data = {name: base.model_dump() for name, base in bases.items()}
        config, errors = _with_full_keys(config, data)
        errors += of_evolution
        errors += (of_own := _errors_of_own_classes(config))
        self.config, self.is_grid = config, isinstance(config.search, GridConfig)
        self.space = Space([Base(name, data[name], type(base)) for name, base in bases.items()], config.space)
        self.constraints = []
        for number, text in enumerate(config.constraints):
            try:
                self.constraints.append(constraint := Constraint(text))
                constraint.require_keys(data)
            except ConfigError as error:
                errors += [ConfigErrorItem(f"constraints.{number}", str(item)) for item in error.errors]
        for name, base in bases.items():
            found = base.measure_errors(config.objective)
            where = f" in {name}" if len(bases) > 1 else ""
            total = config.budget.total
            if total is not None and total.unit not in base.steps():
                message = f"expected one of {listed(base.steps())}{where}, got {total.unit!r}"
                errors.append(ConfigErrorItem("budget.total.unit", message))
            errors += [ConfigErrorItem(f"objective.{item.path}", f"{item.message}{where}") for item in found]
            of_parts = [] if found or of_own else _errors_of_parts(config, base)
            errors += [ConfigErrorItem(item.path, f"{item.message}{where}") for item in of_parts]
        errors = errors or _errors_of_units(config, bases)
        if not errors and isinstance(search, EvolutionConfig):
            errors += _errors_of_branches(self.space, *bases.values())
        ConfigError.require_none(errors)
        self._num_allowed = self._require_points()
        self._corners = self._checked_corners()

    @property
    def search(self) -> Succession:
        """What says which trials branch off others."""
        match self.config.search:
            case GridConfig():
                return Succession()
            case EvolutionConfig() as search:
                from palestra.sweeps.evolution import Evolution

                goal, seed = self.config.objective.goal, self.config.seed
                return Evolution(search, self.space, self._allows, goal, seed)
        return self.config.search.build()

    def _allows(self, point: Point) -> bool:
        return self.excluded_by(self.space.config_at(point)) is None

    def notes(self) -> list[str]:
        """Say what a user should know before the sweep starts.

        That is whether bases train for different times, whether no trial can be pruned, and whether the objective is
        the contrary of what the players that learn want.
        """
        corners = [corner for corners in self._corners.values() for corner in corners]
        contrary = [corner.contrary_note("objective", self.config.objective) for corner in corners]
        notes = list(dict.fromkeys(filter(None, contrary)))
        stops = {
            name: " or ".join(dict.fromkeys(f"{corner.stop.after:g} {corner.stop.unit}" for corner in corners))
            for name, corners in self._corners.items()
        }
        if len(set(stops.values())) > 1:
            each = ", ".join(f"{name} {stop}" for name, stop in stops.items())
            notes.append(f"the bases do not train for the same time (stop): {each}")
        match self.config.pruning:
            case SuccessiveHalvingConfig(min_resource=first) | MedianConfig(warmup_steps=first):
                for name, corners in self._corners.items():
                    last = max(_last_step(_evaluation(self.config, corner).interval, corner.stop) for corner in corners)
                    if last < max(first, 1):
                        when = f"at step {first}, after the last one of the evaluation, {last:g}"
                        notes.append(f"pruning ends no trial of {name}: it begins {when}")
        return notes

    def num_trials(self) -> int | None:
        """Return how many trials there will be at most, without those that a constraint excludes.

        None: only time and counters limit them.
        """
        limits = self.config.budget.trials, self._num_allowed if self.is_grid else None
        return min((limit for limit in limits if limit is not None), default=None)

    @property
    def has_all_points(self) -> bool:
        """Whether there is a trial at each point that the constraints allow."""
        return self.is_grid and self.num_trials() == self._num_allowed

    def stops(self) -> list[tuple[str, Limit]]:
        """Return base and `stop` of the points of a grid that the constraints allow, or of some random points."""
        points = list(self._points())
        if not self.constraints and not any(key.split(".")[0] == "stop" for key in self.space.dimensions):
            bases = [self.space.base_of(point) for point in points]
            return [(base.name, Limit(**base.data["stop"])) for base in bases]
        configs = [(self.space.base_of(point).name, self.space.config_at(point)) for point in points]
        return [(name, Limit(**config["stop"])) for name, config in configs if self.excluded_by(config) is None]

    def extent_text(self, num_at_once: int) -> str:
        """Say how much the sweep is: 8 trials, or until runs have 1M env steps, each with 2 seeds; 2 at a time."""
        budget, num_trials = self.config.budget, self.num_trials()
        limits = [] if num_trials is None else [_plural(num_trials, "trial")]
        if num_trials is not None and isinstance(search := self.config.search, EvolutionConfig):
            limits = [f"{limits[0]} in {_plural(num_trials // search.size, 'generation')} of {search.size}"]
        if (total := budget.total) is not None:
            limits.append(f"until all runs have {count_text(total.after)} {label(total.unit)}")
        limits += [] if budget.minutes is None else [f"for {budget.minutes:g} minutes"]
        limit = ", or ".join(limits) if num_trials is not None else f"trials {' or '.join(limits)}"
        seeds = _plural(len(self.config.seeds), "seed")
        return f"{limit}, each with {seeds}; {_plural(num_at_once, 'run')} at a time"

    def excluded_by(self, config: dict[str, Any]) -> str | None:
        """Return the first constraint that a trial's config does not fulfil."""
        for number, constraint in enumerate(self.constraints):
            try:
                if not constraint.holds(config):
                    return constraint.text
            except ConfigError as error:
                raise ConfigError.at(f"constraints.{number}", error.errors[0].message) from error
        return None

    def _require_points(self) -> int:
        """Return how many points of the grid the constraints allow, or of others at least 1.

        Raises ConfigError if there are none, or one of a grid's cannot be computed.
        """
        points = self._points()
        if not self.constraints:
            return len(list(points)) if self.is_grid else 1
        allowed, fault = 0, list[ConfigErrorItem]()
        for point in points:
            try:
                allowed += self._allows(point)
            except ConfigError as error:
                at = ", ".join(f"{key}={value}" for key, value in point.items())
                fault = [ConfigErrorItem(item.path, f"{item.message} (at {at})") for item in error.errors]
                if self.is_grid:
                    raise ConfigError(fault) from error
            if allowed and not self.is_grid:
                break
        if not allowed:
            what = "no point of the grid fulfils" if self.is_grid else f"none of {SAMPLES} random points fulfils"
            ConfigError.require_none(fault)
            raise ConfigError.at("constraints", f"expected some that can be fulfilled, but {what} them")
        return allowed

    def _points(self) -> Iterable[Point]:
        """Return all points of a grid, or draw some at random."""
        return self.space.points() if self.is_grid else self.space.samples(SAMPLES)

    def _checked_corners(self) -> dict[str, list[BaseRunConfig]]:
        """Return the configs at corners of the space that the constraints allow, by base.

        Raises ConfigError with what the check says of them, each error once, or if the budget is smaller than any
        trial.
        """
        corners: dict[str, list[BaseRunConfig]] = {}
        found: dict[tuple[str, str], list[Point]] = {}
        least, total = math.inf, self.config.budget.total
        varied = [key for key, dimension in self.space.dimensions.items() if len(dimension.ends()) > 1]
        names = short_keys([BASE, *varied] if len(self.space.bases) > 1 else varied)
        with keeping_last_sets():
            for point in self._corners_by_data():
                try:
                    config = self.space.config_at(point)
                    if self.excluded_by(config) is None:
                        checked = read_config(config)
                        check_trainable(checked)
                        corners.setdefault(self.space.base_of(point).name, []).append(checked)
                        stop = checked.stop
                        after = stop.after if total is not None and stop.unit == total.unit else 1
                        least = min(least, len(self.config.seeds) * after)
                except ConfigError as error:
                    for item in error.errors:
                        key = item.path if item.path.startswith("constraints.") else f"space: {item.path}"
                        found.setdefault((key, item.message), []).append(point)
        errors = []
        for (key, message), points in found.items():
            at = _in_common(points, names)
            errors.append(ConfigErrorItem(key, f"{message} (at {at})" if at else message))
        if total is not None and total.after < least < math.inf:
            message = f"expected at least {least:g}, the {label(total.unit)} of one trial, got {total.after:g}"
            errors.append(ConfigErrorItem("budget.total.after", message))
        ConfigError.require_none(errors)
        return corners

    def _corners_by_data(self) -> list[Point]:
        """Return corners of the space, those with equal data next to each other, so that these are made once."""
        by_data: dict[Any, list[Point]] = {}
        for point in self.space.corners(MOST_CORNERS):
            data = [(key, repr(value)) for key, value in point.items() if key == BASE or key.startswith("data.")]
            by_data.setdefault(tuple(data), []).append(point)
        return [point for points in by_data.values() for point in points]


def _in_common(points: Sequence[Point], names: Mapping[str, str]) -> str:
    """Say what is the same at all of some points, which is likely what is wrong with them.

    If nothing is, the first point is told. names: short ones by key, of the keys that are told.
    """
    first = points[0]
    shared = [key for key in first if key in names and all(point.get(key) == first[key] for point in points)]
    return ", ".join(f"{names[key]}={first[key]}" for key in shared or first if key in names)


def _plural(number: int, noun: str) -> str:
    return f"{count_text(number)} {noun}{'s' * (number != 1)}"


def _evaluation(config: SweepConfig, base: BaseRunConfig) -> Any:
    """Return the config of the evaluation by which trials are judged."""
    return next(each for each in base.measured() if each.name == config.objective.evaluation)


def _last_step(interval: Any, stop: Limit) -> float:
    """Return the last step of an evaluation in a run; inf if that is not known, because it counts in another unit."""
    if interval is None or interval.unit != stop.unit:
        return math.inf
    return stop.after // interval.every * interval.every


def _decides_by_steps(config: SweepConfig) -> bool:
    return config.pruning is not None and not config.pruning.build().over_seeds


def _errors_of_units(config: SweepConfig, bases: Mapping[str, BaseRunConfig]) -> list[ConfigErrorItem]:
    """Return what is wrong if trials of different bases are pruned by steps of different units."""
    if not _decides_by_steps(config):
        return []
    units = {name: _evaluation(config, base).interval.unit for name, base in bases.items()}
    each = ", ".join(f"{name} {unit}" for name, unit in units.items())
    message = "expected evaluations with intervals in one unit, for trials are compared at the same steps"
    return [ConfigErrorItem("pruning", f"{message}, got {each}")] * (len(set(units.values())) > 1)


def _errors_of_own_classes(config: SweepConfig) -> list[ConfigErrorItem]:
    """Return what a search or a pruning of the user's own raises, or makes instead of a sampler or a pruner."""
    errors = []
    for key, part, what in (("search", config.search, "sampler"), ("pruning", config.pruning, "pruner")):
        if isinstance(part, UserConfig):
            from optuna import exceptions, pruners, samplers

            expected = samplers.BaseSampler if what == "sampler" else pruners.BasePruner
            try:
                with warnings.catch_warnings():
                    warnings.filterwarnings("ignore", category=exceptions.ExperimentalWarning)  # the user chose it
                    found = part.build().sampler(0) if what == "sampler" else part.build().pruner()
                if not isinstance(found, expected):
                    errors.append(ConfigErrorItem(key, f"expected a {what} of Optuna from {part.name}, got {found!r}"))
            except Exception as error:
                errors.append(ConfigErrorItem(key, f"{part.name} raised {type(error).__name__}: {error}"))
    return errors


def _errors_of_parts(config: SweepConfig, base: BaseRunConfig) -> list[ConfigErrorItem]:
    """Return what of the pruning and of the place does not go with a base."""
    errors = []
    evaluation = _evaluation(config, base)
    if _decides_by_steps(config) and (evaluation.interval is None or evaluation.interval.unit == "minutes"):
        got = "none" if evaluation.interval is None else "minutes"
        message = f"expected evaluation {evaluation.name!r} with an interval in steps, by which it decides, got {got}"
        errors.append(ConfigErrorItem("pruning", message))
    if (mirror := base.output.mirror) is not None:
        message = f"expected output.mirror: null, for all trials would have one folder there, got {mirror.url}"
        errors.append(ConfigErrorItem("base", message))
    if isinstance(config.place, LocalConfig) and (cores := config.place.cores_per_run) < (threads := base.cores()):
        message = f"expected at least {threads} (execution.num_threads in each process), got {cores}"
        errors.append(ConfigErrorItem("place.cores_per_run", message))
    return errors


def _errors_of_evolution(
    config: SweepConfig, search: EvolutionConfig, bases: Mapping[str, BaseRunConfig]
) -> Iterator[ConfigErrorItem]:
    """Yield what of a sweep does not go with generations, whose members branch off each other."""
    if len(bases) > 1:
        message = "expected one config with search 'evolution', whose members branch off each other"
        yield ConfigErrorItem("base", f"{message}, got {', '.join(bases)}")
    if config.pruning is not None:
        message = "expected null with search 'evolution', in which a generation waits for all of its members"
        yield ConfigErrorItem("pruning", f"{message}, got {config.pruning.name!r}")
    if config.budget.trials is not None and config.budget.trials % search.size:
        message = f"expected a multiple of search.size = {search.size}, got {config.budget.trials}"
        yield ConfigErrorItem("budget.trials", message)
    for name, base in bases.items():
        if (unit := search.generation.unit) not in base.steps():
            yield ConfigErrorItem("search.generation.unit", f"expected one of {listed(base.steps())}, got {unit!r}")
        output = base.output
        if output.save is None:
            message = f"expected an interval in {name}, for members branch off checkpoints, got null"
            yield ConfigErrorItem("base.0: output.save", message)
        has_rows = any(keys[-1:] == ("replay_buffer",) and value is not None for keys, value in walk(base))
        if has_rows and (which := getattr(output, "replay_in_checkpoints", "all")) != "all":
            message = f"expected all in {name}, for members go on with the rows of a last checkpoint, got {which}"
            yield ConfigErrorItem("base.0: output.replay_in_checkpoints", message)


def _errors_of_branches(space: Space, base: BaseRunConfig) -> Iterator[ConfigErrorItem]:
    """Yield what is wrong with keys of the space that a branch may not change."""
    data = base.model_dump()
    for key, dimension in space.dimensions.items():
        first, *others = [replace_values(data, {key: dimension.meant(end)}, type(base)) for end in dimension.ends()]
        changed = [change.key for other in others for change in tree_differences(first, other)]
        if key.split(".")[0] == "stop":
            got = f"search.generation says how long a member trains, got {dimension.name}"
            yield ConfigErrorItem(f"space.{key}", f"expected no dimension, because {got}")
        elif fixed := [each for each in changed if is_fixed(each, base)]:
            message = "expected a key that a branch may change, for members branch off each other"
            below = "" if fixed[0] == key else f", which changes {fixed[0]}"
            yield ConfigErrorItem(f"space.{key}", f"{message}, got {dimension.name}{below}")


def _with_full_keys(config: SweepConfig, bases: dict[str, dict[str, Any]]) -> tuple[SweepConfig, list[ConfigErrorItem]]:
    """Return the config with the keys of its space in full, and what is wrong with them."""
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
            faults = [f"expected each key once, got {full} twice" for full in found if full in space]
            space[found.pop()] = dimension
        errors += [ConfigErrorItem(f"space.{key}", fault) for fault in faults[:1]]
    for key in space:
        if key == "seed" or key.startswith("output."):
            what = "no dimension, because seeds lists the seeds" if key == "seed" else "a key that changes a result"
            errors.append(ConfigErrorItem(f"space.{key}", f"expected {what}, got {space[key].name}"))
    return config.model_copy(update={"space": space}), errors


# ---- first sweeps ---------------------------------------------------------------------------------------------


USUAL_BASE = "ppo-cartpole"
NAMED = re.compile(r"(search|pruning|place|storage)(?:\.name)?\s*=\s*([\w.:]+)")


def starting_sweep(words: Sequence[str]) -> SweepConfig:
    """Make a sweep over learning rates, discounts and entropy coefficients of configs, as its parts find usual.

    words: the configs, by file or name, and overrides of the sweep; parts that these name bring their usual keys.
    Raises ConfigError.
    """
    files = [word for word in words if "=" not in word] or [USUAL_BASE]
    overrides = [word for word in words if "=" in word]
    bases = read_bases(files, Path())
    parts = {match[1]: match[2] for word in overrides if (match := NAMED.fullmatch(word))}
    data = completed({"base": files, **parts}, Place(SweepConfig), bases)
    with remedies(data, SweepConfig):
        config = read_sweep(data, overrides)
    Plan(config, bases)
    return config


def starting_grid(bases: Mapping[str, BaseRunConfig], at: int | None) -> dict[str, Any]:
    """Return a grid over configs, of a space that is still empty.

    at: how many runs at a time; None: as many as there are cores.
    """
    first, threads = next(iter(bases.values())), max(base.cores() for base in bases.values())
    place = {} if at is None else {"place": {"name": "local", "cores": at * threads}}
    said = {"space": {}, "seeds": [first.seed], "search": "grid", "pruning": None, **place}
    return dict(completed(said, Place(SweepConfig), bases))


def read_bases(files: Sequence[str], beside: Path) -> dict[str, BaseRunConfig]:
    """Read the bases of a sweep; returns them by name.

    beside: the folder in which their files are looked for before the shipped ones. Raises ConfigError with the errors
    of all.
    """
    shipped = shipped_configs()
    found, errors = {}, []
    for number, file in enumerate(files):
        path = beside / file
        if not path.is_file():
            path = shipped.get(file, path)
        try:
            if not path.is_file() and not is_path(file):
                near = nearest(file, shipped)
                hint = f"; did you mean {near}?" if near else ""
                raise ConfigError.at("", f"expected a file or one of the shipped configs, got {file!r}{hint}")
            if not path.exists() and path != Path(file):
                whence = f"paths in base count from the folder of the sweep's file, {beside}"
                raise ConfigError.at(str(path), f"there is no such file in {path.parent.absolute()}; {whence}")
            if path.is_file() and is_sweep(load_yaml(path)):
                raise ConfigError.at("", f"expected the config of a run, got a sweep, {file}")
            base = read_config(path)
            if not base.measured():
                raise ConfigError.at("", f"expected a run with evaluations, got {file}")
            if path.stem in found:
                raise ConfigError.at("", f"expected files of different names, got {path.stem} twice")
            found[path.stem] = base
        except ConfigError as error:
            errors += [
                ConfigErrorItem(f"base.{number}{': ' * bool(item.path)}{item.path}", item.message)
                for item in error.errors
            ]
    ConfigError.require_none(errors)
    return found
