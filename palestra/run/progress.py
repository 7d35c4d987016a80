"""Tells the display how a training stands, a few times a second and as plain data."""

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from palestra.recording.results import Progress, Stage, Task
from palestra.run.run import Run
from palestra.runtime.clock import Mark
from palestra.runtime.signals import Interrupted
from palestra.runtime.timing import Phase

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
    """Tells the display of one run how things stand.

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
        """Collect what the display shows of the training now.

        Elapsed and remaining seconds include evaluations and saves; elapsed seconds are those of all processes that the
        run has had.
        """
        run, now = self.run, self.look()
        self._standing = now
        self._marks.append(now.mark)
        self._warn_of(now)
        return Progress(
            name=run.name,
            run_folder=str(run.folder.path),
            device=str(run.device),
            stages=self.stages,
            stage=now.stage,
            fraction=now.share,
            elapsed_s=self._seconds_before + time.monotonic() - self._began_s,
            remaining_s=self._remaining_s(now),
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

    def _warn_of(self, now: Standing) -> None:
        """Warn once of each metric that is not finite."""
        for name, values in now.metrics.items():
            for key, value in values.items():
                if not math.isfinite(value) and (name, key) not in self._warned:
                    self._warned.add((name, key))
                    self.run.display.warn(f"{key} of {name} is {value} at opt step {now.counters['opt_steps']}")

    def _remaining_s(self, now: Standing) -> float | None:
        """Seconds until the end of training at its pace in this process, including evaluations and saves.

        None before any progress, and in the test.
        """
        if now.stage == "test":
            return None
        progress, now_s = now.share - self._share_before, time.monotonic()
        if progress <= 0.0:  # a first evaluation, for instance, comes before the first step, and only once
            self._first_step_s = now_s
            return None
        return (now_s - self._first_step_s) * (1.0 - now.share) / progress
