"""The run of a training: its config, folder, records, clock and signals, and what its display is told."""

import math
import sys
import time
import uuid
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from palestra.buffers.replay import ReplayBuffer
from palestra.config import ConfigError, below, cut, render, user_class_hashes
from palestra.recording import Logger, check_recorders, make_recorders
from palestra.recording.display import Display, make_display
from palestra.recording.plots import plot_scores
from palestra.recording.recorders import Recorder
from palestra.recording.results import Progress, Stage, Task
from palestra.recording.summary import render_summary
from palestra.run.base import BaseRunConfig
from palestra.run.branching import Reached, begins_anew, extend
from palestra.run.copies import files_of_copies
from palestra.run.records import RunRecords
from palestra.run.warm_starts import Beginning
from palestra.runtime.console import VisibleConsole, visible
from palestra.runtime.device import find_device
from palestra.runtime.signals import Interrupted, StopSignals
from palestra.runtime.threads import CompilingNotice, frozen_garbage, limited_threads
from palestra.runtime.timing import Mark, Phase, TimeLog, TrainingClock, summed_times
from palestra.storage.disk import staying_here, writing
from palestra.storage.facts import RunFacts
from palestra.storage.run_folder import RunFolder

SHOW_INTERVAL_S = 0.25
NUM_MARKS = 120  # one per SHOW_INTERVAL_S: rates are those of the last half minute
WORDS: dict[Phase, str] = {
    "play": "playing",
    "memory": "training",
    "data": "reading data",
    "update": "updating",
    "evaluation": "evaluating",
    "saving": "saving",
    "waiting": "waiting for other processes",
    "other": "training",
}


class Run:
    """The run of a training. A new run gets its folder when it is opened for the first time.

    place: the run's folder; for a new run its path, where there may be an empty one, or None: runs/<name>-<n>. origin:
    the checkpoint of another run that it branches off. trainer_in_python: the class that trains it, if the config does
    not name that class. resumed: whether the folder existed before this object. recorders: those of the present `fit`,
    by name. data_files: the SHA-256 of files of recorded play, by path. set_in_python: the calls that gave it objects
    which no config names. has_branched_off: whether the state of `origin` was taken over. beginnings: what it began
    with of other runs and of files, to be told once.
    """

    def __init__(
        self,
        config: BaseRunConfig,
        place: str | Path | RunFolder | None,
        name: str,
        console: Console | None,
        origin: Path | None,
        trainer_in_python: str | None,
    ) -> None:
        self.config: Any = config
        self.place, self.name, self.origin = place, name, origin
        self.trainer_in_python = trainer_in_python
        self.resumed, self.is_begun, self.has_branched_off = isinstance(place, RunFolder), False, False
        self.console = console or VisibleConsole()
        self.device = find_device(config.execution.device)
        self.clock, self.time_log, self.signals = TrainingClock(), TimeLog(self.device), StopSignals()
        self.compiling = CompilingNotice(lambda line: self.display.log(line))
        self.recorders: dict[str, Recorder] = {}
        self.set_in_python: list[str] = []
        self.data_files: dict[str, str] = {}
        self.beginnings: list[Beginning] = []
        self._loggers: dict[str, Recorder] = {}

    @property
    def folder(self) -> RunFolder:
        """The run's folder. Raises RuntimeError for a new run that was not opened yet."""
        if not isinstance(self.place, RunFolder):
            raise RuntimeError("the run has no folder yet: call fit() first")
        return self.place

    @property
    def copies(self) -> RunFolder | None:
        """The run in whose folder lies what it has copied: itself, or the one that it branches off; None if neither."""
        return self.folder if self.resumed else None if self.origin is None else RunFolder.of_checkpoint(self.origin)

    def begins_anew(self) -> bool:
        """Return whether it has no state to begin with: neither a checkpoint nor one that it branches off."""
        return self.origin is None and (not self.resumed or begins_anew(self.folder))

    @cached_property
    def display(self) -> Display:
        return make_display(self.config.output.display, self.console)

    @cached_property
    def records(self) -> RunRecords:
        """The run's records. Raises RuntimeError as `folder` does."""
        return RunRecords(self.folder, self.display, self.config)

    # ---- objects from Python -----------------------------------------------------------------------------

    def set_logger(self, recorder: Recorder | Logger) -> None:
        """Let a recorder of the user's own, or one by name, file the records, too.

        The config takes up a Logger, so that a resumed run needs none. Raises RuntimeError once the run has begun,
        TypeError for what is neither, ConfigError for a Logger whose recorder the config has already.
        """
        self.require_unopened("set_logger")
        if isinstance(recorder, Logger):
            self._take_logger(recorder)
            return
        if not isinstance(recorder, Recorder):
            expected = (
                "set_logger: expected a Logger, or an object of a class that derives from "
                "palestra.recording.recorders.Recorder"
            )
            raise TypeError(f"{expected}, got {cut(repr(recorder))}")
        name = type(recorder).__name__
        self._loggers[name] = recorder
        self.note_call(f"set_logger({name}(...))")

    def _take_logger(self, logger: Logger) -> None:
        output = self.config.output
        if logger.config in output.recorders:
            return
        if self.resumed:
            known = ", ".join(each.name for each in output.recorders) or "none"
            message = f"expected a recorder of the run's config ({known}), got {logger.config.name!r}"
            raise ConfigError.at("set_logger", message)
        with below("output.recorders"):
            recorders = check_recorders([*output.recorders, logger.config])
        self.config = self.config.model_copy(update={"output": output.model_copy(update={"recorders": recorders})})

    def require_unopened(self, call: str) -> None:
        """Raise RuntimeError if the run has begun in this process. call: what has to come before."""
        if self.is_begun:
            raise RuntimeError(f"{call}: expected a call before fit(), got one after the run has begun")

    def note_call(self, *calls: str) -> None:
        """Note calls that give the run objects which no config names."""
        self.set_in_python = sorted({*self.set_in_python, *calls})

    # ---- while it trains -----------------------------------------------------------------------------------

    @contextmanager
    def opened(self, begin: Callable[[RunFolder], None], is_saved: Callable[[], bool]) -> Iterator[None]:
        """A context for one `fit`: the run is locked and its records are open, threads limited, and signals caught.

        If an error leaves a new branch before it has taken over a state, its folder is removed. begin: writes what a
        new run needs in its folder besides its config. is_saved: says whether nothing is lost if the process ends at
        once.
        """
        # before there is a folder, because an extra may be missing
        self.recorders = make_recorders(self.config.output.recorders) | self._loggers
        try:
            self._make_folder(begin)
            with self.computing(is_saved), self.folder.lock(), self.display, self.records.opened():
                if self.set_in_python:
                    calls = ", ".join(self.set_in_python)
                    self.display.log(f"this run cannot be rebuilt from its config: it uses objects from {calls}")
                if (trainer := self.trainer_in_python) is not None:
                    self.display.log(f"this run cannot be resumed from the shell: its config does not name {trainer}")
                yield
        except BaseException:
            is_new_branch = self.origin is not None and not self.resumed and not self.has_branched_off
            if is_new_branch and isinstance(self.place, RunFolder):
                self.place.discard()
            raise

    @contextmanager
    def computing(self, is_saved: Callable[[], bool]) -> Iterator[None]:
        """The part of `opened` that a process needs which only computes for the run: threads, signals, a notice."""
        execution = self.config.execution
        within_s = self.config.output.stop_within_s
        with (
            staying_here(),
            limited_threads(execution.num_threads),
            frozen_garbage(),
            self.compiling.listening(),
            self.signals.caught(within_s, lambda why: self._before_exit(why, is_saved())),
        ):
            yield

    def _make_folder(self, begin: Callable[[RunFolder], None]) -> None:
        """Make the folder of a new run, once."""
        if self.is_begun:
            return
        place = self.place
        if self.resumed or (isinstance(place, RunFolder) and place.root.kind(place.run.name) is not None):
            if self.folder.facts().set_in_python != self.set_in_python:
                raise self.folder.not_rebuildable()
        else:
            if self.config.output.mirror is not None:
                self.config.output.mirror.require_backend()  # before there is a folder
            copies = files_of_copies(self.config.copied())
            place = default_folder(place.path if isinstance(place, RunFolder) else place, self.name, copies)
            with place.beginning(copies):
                self.place = place
                begin(place)  # first: a folder with a config and run.json is a run
                self._write_config(place)
        self.is_begun = True

    def _write_config(self, folder: RunFolder) -> None:
        """Write the resolved config and run.json, which fixes the mirror's URL and the checkpoint folder for good.

        Raises RunFolderError if the disk refuses.
        """
        output = self.config.output
        run_id = uuid.uuid4().hex
        place, mirror = output.checkpoint_folder, output.mirror
        elsewhere = None if place is None else folder.keep_checkpoints_in(Path(place), run_id)
        facts = RunFacts.of_now(
            id=run_id,
            user_classes=user_class_hashes(self.config),
            data_files=self.data_files,
            set_in_python=list(self.set_in_python),
            trainer_in_python=self.trainer_in_python,
            branched_from=None if self.origin is None else str(self.origin.resolve()),
            mirror=None if mirror is None else f"{mirror.url.rstrip('/')}/{folder.path.resolve().name}",
            checkpoint_folder=None if elsewhere is None else str(elsewhere.resolve()),
        )
        with writing(folder.path):
            folder.root.write(folder.config.name, render(self.config, type(self.config)).encode())
            folder.write_facts(facts)  # last: a folder with a config and run.json is a run

    @contextmanager
    def timed(self) -> Iterator[None]:
        """A context in which seconds count as training."""
        with self.clock.running(), self.time_log.running():
            yield

    def count_time_in(self, time_log: TimeLog, buffers: Mapping[str, ReplayBuffer]) -> None:
        """Count the seconds of training, and of its replay buffers, in a time log."""
        self.time_log = time_log
        for buffer in buffers.values():
            buffer.time_log = time_log

    def unfiled(self) -> dict[str, Recorder]:
        """The recorders that lack records, or the end of the run."""
        return {name: self.recorders[name] for name in self.records.unfiled() if name in self.recorders}

    @contextmanager
    def aside(self, phase: Phase) -> Iterator[None]:
        """A context in which seconds count for `phase`, and not as training."""
        with self.clock.paused(), self.time_log.during(phase):
            yield

    def seconds(self) -> dict[str, float]:
        """Return the seconds of training so far, of all processes of the run, in all and by phase."""
        return {"training": self.clock.seconds, **self.time_log.total()}

    def set_time_before(self, seconds: Mapping[str, float]) -> None:
        """Set the seconds that earlier processes have counted. seconds: what `seconds` gave then."""
        self.clock.set_before(seconds["training"])
        self.time_log.set_before(seconds, summed_times(self.records.read()))

    def note_end(self, reason: str) -> None:
        """Write to run.json why the run ended before its `stop`, which the last record says, too."""
        try:
            self.folder.write_facts(self.folder.facts().model_copy(update={"ended": reason}))
        except OSError as error:
            self.display.error(f"{self.folder.run} could not be written: {error}")

    def conclude(self, progress: Progress, with_plot: bool) -> None:
        """Draw the plot, if asked for (it takes a second or more), and print the summary where the display has one."""
        folder = self.folder
        plot = folder.path / "scores.png"
        files = {"records": folder.records}
        if self.config.output.save is not None:
            files["checkpoints"] = folder.checkpoints.path
        try:
            if with_plot and (picture := plot_scores(self.records.read(), self.config.axis())) is not None:
                folder.root.write(plot.name, picture)
                files["plot"] = plot
        except (OSError, ValueError) as error:  # matplotlib's, of what MPLBACKEND says
            self.display.error(f"{plot} could not be written: {error}")
        self.display.update(progress)
        self.display.close()  # its last screen stays above the summary
        if self.display.has_summary:
            render_summary(self.console, progress, files, self._ways_on(is_over=progress.fraction >= 1))

    def _before_exit(self, why: str, is_saved: bool) -> None:
        """Say how to go on. It is called from another thread; the main thread may be anywhere."""
        way = self.place.ways_on().to_resume() if isinstance(self.place, RunFolder) else None
        remedy = "nothing was saved" if way is None else f"to go on: {way}"
        left = f"left {'after' if is_saved else 'without'} saving"
        print(f"{why}; {left}; {visible(remedy)}", file=sys.__stderr__, flush=True)

    # ---- what it says of itself --------------------------------------------------------------------------

    def finished_line(self, end_reason: str | None) -> str:
        """Say that the run is finished, and how it can go on. end_reason: why it ended before its `stop`, if it did."""
        ways = self.folder.ways_on()
        end = self.config.next_end(end_reason)
        way = ways.to_branch() if end is None else ways.to_extend(end)
        on = "it cannot go on, because nothing was saved" if way is None else f"to go on: {way}"
        return f"it is finished; {on}"

    def extend(self, overrides: Sequence[str], reached: Reached | None) -> None:
        """Give the run another end, in its config on the disk and here.

        Raises as palestra.run.branching.extend, RuntimeError if the run has no folder yet.
        """
        if not isinstance(self.place, RunFolder):
            raise RuntimeError("extend: expected a run that has begun, got one without a folder; call fit() first")
        extended = extend(self.place.path, overrides, reached)
        self.config = self.config.model_copy(update={key: getattr(extended, key) for key in extended.extendable})

    def _ways_on(self, is_over: bool) -> dict[str, str]:
        """The commands that this run accepts now, by what they do."""
        ways = self.folder.ways_on()
        found = {
            "go on from here": None if is_over else ways.to_resume(),
            "evaluate again": ways.to_evaluate(self.config.pairing(), bool(self.config.measured())),
            "see it as a page": ways.to_see(),
        }
        return {what: way for what, way in found.items() if way is not None}


def default_folder(run: str | Path | None, name: str, copies: Collection[str] | None = None) -> RunFolder:
    """A new folder at `run` or, if that is None, runs/<name>-<n> in the working directory.

    Raises RunFolderError if it exists. copies: as in `RunFolder.create_at`.
    """
    return RunFolder.create(Path("runs"), name) if run is None else RunFolder.create_at(Path(run), copies)


class Standing(NamedTuple):
    """The state of a training at one moment, as far as the display shows it.

    stage: the present one; None if the run is finished. share: how much of training is done, 0 to 1. metrics: those
    that are shown, by learning player. tasks: those that go on beside training. end_reason: why the run ends before
    its `stop`.
    """

    stage: str | None
    share: float
    counters: Mapping[str, int]
    mark: Mark
    metrics: Mapping[str, Mapping[str, float]]
    tasks: Sequence[Task]
    end_reason: str | None


class ProgressReporter:
    """Tells the display of one run how things stand, a few times a second and as plain data.

    look: gives how the training stands now. is_shown: whether there is anybody to be told.
    """

    def __init__(self, run: Run, look: Callable[[], Standing], is_shown: bool = True) -> None:
        self.run, self.look, self.is_shown = run, look, is_shown
        self.tasks: list[Task] = []
        self.decisive: dict[tuple[str, int], str] = {}  # what decides `best`, by evaluation and opt step
        self._message: str | None = None
        self._warned: set[tuple[str, str]] = set()
        self._shown_at_s = 0.0

    def begin(self, stages: Mapping[str, Stage]) -> None:
        """Count time and rates from here on, because a `fit` begins.

        stages: all of the run, by name, in their order.
        """
        self.stages, self._standing = stages, self.look()
        self._seconds_before = sum(self.run.time_log.total().values())
        self._began_s = self._first_step_s = time.monotonic()
        self._share_before = self._standing.share
        self._marks: deque[Mark] = deque([self._standing.mark], maxlen=NUM_MARKS)

    def show(self, at_once: bool = False) -> None:
        """Tell the display how things stand, unless it was told a moment ago."""
        now_s = time.monotonic()
        if self.is_shown and (at_once or now_s - self._shown_at_s > SHOW_INTERVAL_S):
            self._shown_at_s = now_s
            self.run.display.update(self.now())

    def show_or_leave(self) -> None:
        """Update the display while something takes long. Raises Interrupted if a signal asks the run to leave."""
        if self.run.signals.received is not None:
            raise Interrupted
        self.show()

    @contextmanager
    def during(self, message: str, tasks: Sequence[Task]) -> Iterator[None]:
        """Show a message and tasks instead of training."""
        self._message, before = message, self._message
        self.tasks += tasks
        self.show(at_once=True)
        try:
            yield
        finally:
            self._message = before
            self.tasks = [task for task in self.tasks if task not in tasks]

    def now(self) -> Progress:
        """Collect what the display shows of the training now, and warn once of each metric that is not finite.

        Elapsed and remaining seconds include evaluations and saves. Elapsed seconds are those of all processes that the
        run has had; remaining ones, until the end of training, go by the pace in this one: None before any progress,
        and in the test.
        """
        run, now, now_s = self.run, self.look(), time.monotonic()
        self._standing = now
        progress = now.share - self._share_before
        if progress <= 0.0:  # a first evaluation, for instance, comes before the first step, and only once
            self._first_step_s = now_s
        has_pace = progress > 0.0 and now.stage != "test"
        self._marks.append(now.mark)
        for name, values in now.metrics.items():
            for key, value in values.items():
                if not math.isfinite(value) and (name, key) not in self._warned:
                    self._warned.add((name, key))
                    run.display.warn(f"{key} of {name} is {value} at opt step {now.counters['opt_steps']}")
        return Progress(
            name=run.name,
            run_folder=str(run.folder.path),
            device=str(run.device),
            stages=self.stages,
            stage=now.stage,
            fraction=now.share,
            elapsed_s=self._seconds_before + now_s - self._began_s,
            remaining_s=(now_s - self._first_step_s) * (1.0 - now.share) / progress if has_pace else None,
            time=run.time_log.total(),
            counters=now.counters,
            rates=self._marks[0].rates(now.mark),
            players=now.metrics,
            curves={name: run.records.history.points(name) for name in now.metrics},
            evaluations=run.records.evaluations,
            tasks=(*self.tasks, *now.tasks),
            end_reason=now.end_reason,
            decisive=self.decisive,
            phase=self._phase,
        )

    def _phase(self) -> str:
        if self._standing.stage == "test":
            return "testing"
        if self._standing.stage is None and self._message is None:
            return "finished"
        return self._message or WORDS[self.run.time_log.phase]
