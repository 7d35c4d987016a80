"""Runs of one config that differ in their seed, and their records, read as far as they have come.

Each is a process: those of a trial, or of runs side by side.
"""

import math
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Generic, TypeVar

from palestra.config import cut, load_yaml, render
from palestra.recording.results import printable
from palestra.run.base import BaseRunConfig
from palestra.run.branching import tree_differences
from palestra.run.checkpoints import Checkpoints
from palestra.run.copies import files_of_copies
from palestra.runtime.signals import exit_text
from palestra.storage.disk import WORDS, Folder, RunFolderError, open_plain, plain_path
from palestra.storage.manifest import Manifest
from palestra.storage.records_file import lines_of, parse_record
from palestra.storage.run_folder import RunFolder
from palestra.storage.stored_files import CheckpointError
from palestra.sweeps.config import ObjectiveConfig
from palestra.sweeps.places import Job, Place, last_line


class Growing:
    """The records of a run, read as far as they have come.

    start: the counters of the checkpoint that it branches off; none for another run. counters: the largest so far.
    share: of its way from there to its `stop`. num_damaged: lines that hold no record. has_ended: whether a record says
    that the run ended before its `stop`.

    After a kill the records are cut back to a checkpoint and come again, equal to the bit, so what was read stays true.
    """

    def __init__(self, run: Path, config: BaseRunConfig, start: Mapping[str, int]) -> None:
        self.path, self.stop, self.start = run / "records.jsonl", config.stop, start
        self.counters: dict[str, float] = {name: start.get(name, 0) for name in config.steps()}
        self.axes = config.axes
        self.minutes = 0.0
        self.num_damaged = 0
        self.has_ended = False
        self._offset = 0

    @property
    def share(self) -> float:
        begun = self.start.get(self.stop.unit, 0)
        num, way = {**self.counters, "minutes": self.minutes}[self.stop.unit] - begun, self.stop.after - begun
        return min(num / way, 1.0) if way > 0 else 1.0

    def look(self) -> None:
        """Read what is new.

        Lines that are damaged are passed over, as the run itself does; `num_damaged` counts them.
        """
        if not self._read_on(passes_damaged=False):
            self._offset = self.num_damaged = 0  # a line is damaged, or the file was cut back and has grown since
            self._read_on(passes_damaged=True)

    def _read_on(self, passes_damaged: bool) -> bool:
        """Read from where the last look ended; returns False if it came to a damaged line that it may not pass."""
        try:
            file = open_plain(self.path)
        except OSError:
            return True
        with closing(file):
            if file.size < self._offset:
                self._offset = self.num_damaged = 0
            for line in lines_of(file, file.size, self._offset):
                if not line.is_whole:
                    break
                try:
                    self._take(parse_record(line.content))
                except ValueError:
                    if not passes_damaged:
                        return False
                    self.num_damaged += 1
                self._offset = line.stop
        return True

    def _take(self, record: Mapping[str, Any]) -> None:
        counts = {name: record.get(name, 0) for name in self.counters}
        if not all(type(count) is int for count in counts.values()):
            raise ValueError(f"expected whole numbers, got {counts}")
        self.counters = {name: max(before, counts[name]) for name, before in self.counters.items()}
        self.minutes = max(self.minutes, record.get("clock", {}).get("train_seconds", 0.0) / 60)
        self.has_ended = self.has_ended or "ended" in record


Moment = tuple[int, ...]  # of a run: its counters


def _in_words(names: Iterable[str], moment: Moment | None) -> str:
    """Return the moment as " at env step 1,024"; "" for None. names: of the counters."""
    if moment is None:
        return ""
    name, count = next((each for each in zip(names, moment, strict=True) if each[1]), ("opt_steps", 0))
    return f" at {name.removesuffix('s').replace('_', ' ')} {count:,}"


class Watched(Growing):
    """A run of a trial that is watched.

    evaluations: the objective at each of them, but one at the start of a branch. first: by step that evaluation whose
    value counts there, the first one in this interval. Steps are in the unit of the evaluation's interval, rounded down
    to a multiple of it, so that runs that count differently have the same steps. fault: why the objective cannot be
    said.
    """

    def __init__(self, run: Path, config: BaseRunConfig, objective: ObjectiveConfig, start: Mapping[str, int]) -> None:
        super().__init__(run, config, start)
        self.objective = objective
        self.measure = config.measure(objective)
        [evaluation] = [each for each in config.measured() if each.name == objective.evaluation]
        self.interval = evaluation.interval
        self.evaluations: dict[Moment, float] = {}
        self.first: dict[int, Moment] = {}
        self.fault: str | None = None

    def _moment(self, counters: Mapping[str, Any]) -> Moment:
        return tuple(int(counters.get(name, 0)) for name in self.counters)

    def end(self) -> None:
        """Read the rest of a run that has ended, and find whether its objective is known.

        A damaged line may have held the evaluation at its end, or the best one.
        """
        self.look()
        self.fault = self.fault or self._fault_at_end()

    def _fault_at_end(self) -> str | None:
        last = max(self.evaluations, default=None)
        try:
            end = self._last_moment()
        except (CheckpointError, RunFolderError, OSError) as error:
            return f"where {self.path.parent} ends is not known: {error}"
        damaged = f"; {self.num_damaged} of its lines are damaged" if self.num_damaged else ""
        if last is None or last != end:
            expected = f"evaluation {self.objective.evaluation!r} at the run's end{_in_words(self.counters, end)}"
            got = "none" if last is None else f"the last{_in_words(self.counters, last)}"
            return f"{self.path}: expected {expected}, got {got}{damaged}"
        if self.objective.of == "best" and self.num_damaged:
            return f"{self.path}: the best evaluation is not known{damaged}"
        return None

    def _last_moment(self) -> Moment | None:
        """Return the moment at which a finished run has ended; None: its records do not come to its end.

        It is that of its last checkpoint or, if it saves none, of its last record. Raises CheckpointError,
        RunFolderError, OSError.
        """
        checkpoints = Checkpoints(RunFolder(self.path.parent), keep_last=1, keep_every=None)
        if (number := checkpoints.latest()) is not None:
            return self._moment(Manifest.read(checkpoints.folder.below(f"{number:08d}")).counters)
        return self._moment(self.counters) if self.has_ended or self.share >= 1.0 else None

    def _take(self, record: Mapping[str, Any]) -> None:
        super()._take(record)
        if record.get("kind") == "evaluation" and (value := self._value(record)) is not None:
            moment = self._moment(record)
            if self.start and moment == self._moment(self.start):
                return
            self.evaluations[moment] = value
            if self.interval is None or self.interval.unit == "minutes":
                step = record.get("opt_steps", 0)
            else:
                step = record.get(self.interval.unit, 0) // self.interval.every * self.interval.every
            self.first.setdefault(int(step), moment)

    def _value(self, record: Mapping[str, Any]) -> float | None:
        """Return the objective in a record. Raises ValueError for a record that lacks the measure."""
        try:
            return self.measure.of(record)
        except Exception as error:
            if self.measure.function is None:
                raise ValueError(f"expected {self.objective.measure} in the record, got {error!r}") from error
            self.fault = f"{self.objective.measure} raised {type(error).__name__}: {error}"
            return None

    @property
    def latest(self) -> float | None:
        """The objective at the last evaluation so far."""
        return self.evaluations[max(self.evaluations)] if self.evaluations else None

    def counts_at(self, step: int | None = None) -> dict[str, int]:
        """Return what was counted up to a step that the run has, or so far, by name; the usual one first.

        What the run that it branches off has counted does not count again.
        """
        so_far = self._moment(self.counters) if step is None else self.first[step]
        counts = {name: n - self.start.get(name, 0) for name, n in zip(self.counters, so_far, strict=True)}
        return {name: counts[name] for name in dict.fromkeys((*self.axes, *counts))}

    def value_at(self, step: int) -> float:
        """Return the objective as it stood at a step that the run has.

        It does not depend on how much has come since.
        """
        return self._objective([moment for moment in self.evaluations if moment <= self.first[step]])

    def final(self) -> float:
        """Return the objective at the run's end, after `end`; nan if it is not known."""
        return math.nan if self.fault is not None else self._objective(list(self.evaluations))

    def counters_of_value(self) -> dict[str, int]:
        """Return the counters at the evaluation whose value is that of the run, by name."""
        return dict(zip(self.counters, self._decisive(list(self.evaluations)), strict=True))

    def _objective(self, moments: Sequence[Moment]) -> float:
        return self.evaluations[self._decisive(moments)]

    def _decisive(self, moments: Sequence[Moment]) -> Moment:
        """Return the last of some evaluations, or the best of them, of equal ones the first."""
        finite = [moment for moment in moments if not math.isnan(self.evaluations[moment])]
        if self.objective.of == "last" or not finite:
            return max(moments)
        best = max if self.objective.goal == "max" else min
        return best(finite, key=lambda moment: self.evaluations[moment])


POLL_S = 0.05


class SeedRun:
    """The run of one seed. records: what it has recorded so far. job: its process, from its start to its end."""

    def __init__(self, path: Path, seed: int, records: Growing) -> None:
        self.path, self.seed, self.records = path, seed, records
        self.job: Job | None = None

    @property
    def log(self) -> Path:
        return self.path.with_name(f"{self.path.name}.log")

    @property
    def is_running(self) -> bool:
        return self.job is not None and self.job.poll() is None

    def look(self) -> int | None:
        """Read what the run has recorded; returns the exit code of its process once it has ended, and forgets it."""
        code = None if self.job is None else self.job.poll()
        self.records.look()
        if code is not None:
            self.job = None
        return code

    def why(self, code: int) -> str:
        """Say why its process has ended with an exit code."""
        return last_line(self.log) or f"its process {exit_text(code)}"


AnyRun = TypeVar("AnyRun", bound=SeedRun)


class SeedRuns(Generic[AnyRun]):
    """The runs of some seeds. folder: in which they lie, each as seed-N, and the file `base` of the config of all."""

    def __init__(self, folder: Folder, base: str, config: BaseRunConfig, runs: list[AnyRun]) -> None:
        self.folder, self.base, self.config, self.runs = folder, folder.path / base, config, runs
        self._text = render(config, type(config))
        self._data = load_yaml(self._text)

    def difference(self) -> str | None:
        """Write the file of the config if there is none; returns how that which is there differs from this config."""
        if self.folder.kind(self.base.name) is None:
            self.folder.write(self.base.name, self._text.encode())
        return _difference(self._data, load_yaml(plain_path(self.folder, self.base.name)))

    def arguments(self, run: AnyRun) -> list[str]:
        """Return the arguments with which palestra begins a run, or goes on with it. Raises as `has_begun`."""
        if has_begun(self.folder, run.path.name, self.config, {**self._data, "seed": run.seed}):
            return ["resume", str(run.path), "--quiet"]
        return ["train", str(self.base), f"seed={run.seed}", "--run", str(run.path), "--quiet"]

    def start(self, run: AnyRun, place: Place) -> None:
        """Begin a run, or go on with it. Raises ConfigError, RunFolderError if something else is in its place."""
        run.job = place.start(self.arguments(run), run.log)

    @property
    def num_running(self) -> int:
        return sum(run.job is not None for run in self.runs)

    def signal(self, number: int) -> None:
        for run in self.runs:
            if run.job is not None:
                run.job.signal(number)


def let_end(several: Sequence[SeedRuns[Any]], show: Callable[[], None]) -> None:
    """Let the runs save and end."""
    for runs in several:
        runs.signal(signal.SIGTERM)
    while any(run.is_running for runs in several for run in runs.runs):
        show()
        time.sleep(POLL_S)


def has_begun(folder: Folder, name: str, config: BaseRunConfig, data: Mapping[str, Any]) -> bool:
    """Return whether there is a run to go on with; if not, one can begin, also where a kill has left a beginning.

    folder: of the trial, or of the runs side by side. name: of the run in it. config: the run's. data: the same as the
    mapping that its config.yml holds. Raises RunFolderError or ConfigError for anything else than this run, as a link
    to another one, one with another config, or one that has lost a file. Nothing is changed.
    """
    for entry, expected in ((name, "folder"), (f"{name}.log", "file")):
        if (kind := folder.kind(entry)) not in (expected, None):
            raise RunFolderError(f"{folder.path / entry}: expected a {expected} of a run, got {WORDS[kind]}")
    if folder.kind(name) is None:
        return False
    run = RunFolder(folder.path / name)
    run.require_plain()
    has_config = run.root.kind(run.config.name) is not None
    found = load_yaml(plain_path(run.root, run.config.name)) if has_config else data
    if (difference := _difference(data, found)) is not None:
        message = f"{run.path}: expected the run in which {difference}; move that one away, and the run begins anew"
        raise RunFolderError(message)
    if has_config and run.root.kind(run.run.name) is not None:
        return True
    run.require_begun_only(files_of_copies(config.copied()))
    return False


def _difference(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> str | None:
    """Say in which key two configs differ first; None if they do not."""
    for key, mine, other in tree_differences(ours, theirs):
        return f"{printable(key)} is {cut(repr(mine), 100)}, got one in which it is {cut(repr(other), 100)}"
    return None
