"""Tells the display a few times a second, as plain data, how a training stands."""

import math
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from palestra.recording.results import Progress, Task
from palestra.runtime.clock import Mark
from palestra.runtime.timing import Phase
from palestra.training.interface import RunningTraining

SHOW_INTERVAL_S = 0.25
NUM_MARKS = 120  # one per SHOW_INTERVAL_S: rates are those of the last half minute
WORDS: dict[Phase, str] = {
    "play": "playing",
    "memory": "training",
    "update": "updating",
    "evaluation": "evaluating",
    "saving": "saving",
    "other": "training",
}


class ProgressReporter:
    """Tells the display of one training how things stand."""

    def __init__(self, training: RunningTraining) -> None:
        self.training = training
        self.tasks: list[Task] = []
        self._message: str | None = None
        self._warned: set[tuple[str, str]] = set()
        self._shown_at_s = 0.0
        self.begin()

    def begin(self) -> None:
        """Count time and rates from here on: a `fit` begins, or a checkpoint was restored."""
        self._seconds_before = sum(self.training.time_log.total().values())
        self._began_s = self._first_step_s = time.monotonic()
        self._share_before = self._share()
        training = self.training
        self.stages = {"train": training.train_stage(training.config), "test": training.test_stage(training.config)}
        self._marks: deque[Mark] = deque([self.training.mark()], maxlen=NUM_MARKS)

    def show(self, at_once: bool = False) -> None:
        """Tell the display how things stand, unless it was told a moment ago."""
        now_s = time.monotonic()
        if at_once or now_s - self._shown_at_s > SHOW_INTERVAL_S:
            self._shown_at_s = now_s
            self.show_news()
            self.training.opened_output().display.update(self.now())

    def show_news(self) -> None:
        """Show the lines that evaluators have for the user."""
        for line in self.training.evaluating.news():
            self.training.opened_output().display.error(line)

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
        """How the training stands now. Elapsed and remaining seconds include evaluations and saves; elapsed seconds are
        those of all processes that the run has had."""
        training = self.training
        mark = training.mark()
        self._marks.append(mark)
        output, metrics = training.opened_output(), training.shown_metrics()
        self._warn_of(metrics)
        return Progress(
            name=training.name,
            run_folder=str(output.folder.path),
            device=str(training.device),
            stages=self.stages,
            stage=None if training.finished else training.stage,
            fraction=self._share(),
            elapsed_s=self._seconds_before + time.monotonic() - self._began_s,
            remaining_s=self._remaining_s(),
            time=training.time_log.total(),
            counters=training.counts(),
            rates=self._marks[0].rates(mark),
            players=metrics,
            curves={name: output.history.points(name) for name in metrics},
            evaluations=output.evaluations,
            tasks=(*self.tasks, *training.evaluating.tasks()),
            end_reason=training.end_reason,
            phase=self._phase,
        )

    def _phase(self) -> str:
        if self.training.stage == "test":
            return "testing"
        if self.training.finished and self._message is None:
            return "finished"
        return self._message or WORDS[self.training.time_log.phase]

    def _warn_of(self, metrics: Mapping[str, Mapping[str, float]]) -> None:
        """Warn once of each metric that is not finite."""
        for name, values in metrics.items():
            for key, value in values.items():
                if not math.isfinite(value) and (name, key) not in self._warned:
                    self._warned.add((name, key))
                    line = f"{key} of {name} is {value} at opt step {self.training.opt_steps}"
                    self.training.opened_output().display.warn(line)

    def _share(self) -> float:
        training = self.training
        return 1.0 if training.finished else training.config.stop.share(training.counters)

    def _remaining_s(self) -> float | None:
        """Seconds until the end of training at its pace in this process, including evaluations and saves; None before
        any progress, and in the test."""
        if self.training.stage == "test":
            return None
        share, now_s = self._share(), time.monotonic()
        progress = share - self._share_before
        if progress <= 0.0:  # what comes before the first step, such as a first evaluation, comes only once
            self._first_step_s = now_s
            return None
        return (now_s - self._first_step_s) * (1.0 - share) / progress
