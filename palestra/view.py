"""What a display is told of a trainer: the moment as plain data, a few times a second."""

import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from palestra.clock import Mark
from palestra.recording.results import Progress, Task

if TYPE_CHECKING:
    from palestra.trainer import Trainer

SHOW_INTERVAL_S = 0.25
NUM_MARKS = 120  # half a minute: rates and metrics are those of late


class View:
    """The trainer's side of its display."""

    def __init__(self, trainer: "Trainer") -> None:
        self.trainer = trainer
        self.tasks: list[Task] = []
        self._message: str | None = None
        self._shown_at_s = 0.0
        self.begin()

    def begin(self) -> None:
        """The pace counts from here: a run begins, or a checkpoint was restored."""
        self._start_s, self._start_share = self._elapsed_s(), self._share()
        self._marks: deque[Mark] = deque([self.trainer._mark()], maxlen=NUM_MARKS)

    def show(self, at_once: bool = False) -> None:
        """Tell the display how things stand, unless it was told a moment ago."""
        now_s = time.monotonic()
        if at_once or now_s - self._shown_at_s > SHOW_INTERVAL_S:
            self._shown_at_s = now_s
            self.tell_news()
            self.trainer._output().display.update(self.progress())

    def tell_news(self) -> None:
        """What evaluators have to tell."""
        for line in self.trainer.evaluating.news():
            self.trainer._output().display.error(line)

    @contextmanager
    def during(self, message: str, tasks: Sequence[Task]) -> Iterator[None]:
        """Show what goes on in place of training, and its tasks."""
        self._message, before = message, self._message
        self.tasks += tasks
        self.show(at_once=True)
        try:
            yield
        finally:
            self._message = before
            self.tasks = [task for task in self.tasks if task not in tasks]

    def progress(self) -> Progress:
        """The moment, for a display."""
        trainer = self.trainer
        mark = trainer._mark()
        self._marks.append(mark)
        output = trainer._output()
        return Progress(
            name=trainer.name,
            run_folder=str(output.folder.path),
            device=str(trainer.device),
            fraction=self._share(),
            elapsed_s=self._elapsed_s(),
            remaining_s=self._remaining_s(),
            time=trainer.time_log.total(),
            counters=trainer._counts(),
            rates=self._marks[0].rates(mark),
            players={p.name: trainer.gathered.metrics[p.name].shown() | p.rates() for p in trainer.learners},
            evaluations=output.evaluations,
            tasks=(*self.tasks, *trainer.evaluating.tasks()),
            end_reason=trainer.end_reason,
            message=self._message,
        )

    def _share(self) -> float:
        return 1.0 if self.trainer.finished else self.trainer.config.stop.share(self.trainer.counters)

    def _elapsed_s(self) -> float:
        """With evaluations and saves, over all processes of the run."""
        return sum(self.trainer.time_log.total().values())

    def _remaining_s(self) -> float | None:
        """Until the run's end, at its pace in this process; None while nothing tells."""
        share, seconds = self._share(), self._elapsed_s() - self._start_s
        return None if share <= self._start_share else seconds * (1.0 - share) / (share - self._start_share)
