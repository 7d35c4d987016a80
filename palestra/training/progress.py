"""What a display is told of a trainer: the moment as plain data, a few times a second."""

import math
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from palestra.players.player import Player
from palestra.recording.results import Progress, Task
from palestra.runtime.clock import Mark
from palestra.runtime.timing import Phase

if TYPE_CHECKING:
    from palestra.training.trainer import Trainer

SHOW_INTERVAL_S = 0.25
NUM_MARKS = 120  # half a minute: rates are those of late
WORDS: dict[Phase, str] = {
    "play": "playing",
    "memory": "training",
    "update": "updating",
    "evaluation": "evaluating",
    "saving": "saving",
    "other": "training",
}


class View:
    """The trainer's side of its display."""

    def __init__(self, trainer: "Trainer") -> None:
        self.trainer = trainer
        self.tasks: list[Task] = []
        self._message: str | None = None
        self._told: set[tuple[str, str]] = set()
        self._shown_at_s = 0.0
        self.begin()

    def begin(self) -> None:
        """A `fit` begins, or a checkpoint was restored."""
        self._before_s = sum(self.trainer.time_log.total().values())
        self._began_s = self._paced_s = time.monotonic()
        self._share_before = self._share()
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
        """The moment. Gone and left are seconds with evaluations and saves, gone those of all processes of the run."""
        trainer = self.trainer
        mark = trainer._mark()
        self._marks.append(mark)
        output = trainer._output()
        return Progress(
            name=trainer.name,
            run_folder=str(output.folder.path),
            device=str(trainer.device),
            fraction=self._share(),
            elapsed_s=self._before_s + time.monotonic() - self._began_s,
            remaining_s=self._remaining_s(),
            time=trainer.time_log.total(),
            counters=trainer._counts(),
            rates=self._marks[0].rates(mark),
            players={player.name: self._metrics(player) for player in trainer.learners},
            curves={player.name: output.history.points(player.name) for player in trainer.learners},
            evaluations=output.evaluations,
            tasks=(*self.tasks, *trainer.evaluating.tasks()),
            end_reason=trainer.end_reason,
            phase=self._phase,
        )

    def _phase(self) -> str:
        if self.trainer.finished and self._message is None:
            return "finished"
        return self._message or WORDS[self.trainer.time_log.phase]

    def _metrics(self, player: Player) -> dict[str, float]:
        """Of its episodes those up to the last record, all else since then. What is no number is told once."""
        trainer = self.trainer
        before = trainer._output().history.last(player.name)
        names = [name for name in (*(f"return/{role}" for role in player.roles), "length") if name in before]
        metrics = (
            {name: before[name] for name in names} | trainer.gathered.metrics[player.name].shown() | player.rates()
        )
        for name, value in metrics.items():
            if not math.isfinite(value) and (player.name, name) not in self._told:
                self._told.add((player.name, name))
                trainer._output().display.warn(f"{name} of {player.name} is {value} at opt step {trainer.opt_steps}")
        return metrics

    def _share(self) -> float:
        return 1.0 if self.trainer.finished else self.trainer.config.stop.share(self.trainer.counters)

    def _remaining_s(self) -> float | None:
        """Until the run's end, at its pace in this process, evaluations and saves with it; None while nothing tells."""
        share, now_s = self._share(), time.monotonic()
        gained = share - self._share_before
        if gained <= 0.0:  # what comes before the first gain, as a first evaluation, comes once
            self._paced_s = now_s
            return None
        return (now_s - self._paced_s) * (1.0 - share) / gained
