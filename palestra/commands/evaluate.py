"""Evaluates a stored run or a tournament, and shows the progress on a display."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from palestra.evaluation.evaluator import Watch
from palestra.recording.display.display import Display
from palestra.recording.results import Progress, Task
from palestra.runs.evaluating import AnyEvaluations
from palestra.storage.run_folder import RunFolder

SHOW_INTERVAL_S = 0.25


class Evaluable(Protocol):
    """A stored run that has loaded a checkpoint, or a tournament that has begun."""

    folder: RunFolder
    device: torch.device
    counters: dict[str, int]

    @property
    def evaluations(self) -> AnyEvaluations: ...

    def evaluate(self, name: str, num: int | None, watch: Watch) -> tuple[Path, dict[str, Any]]: ...


class ShownEvaluations:
    """Plays evaluations, each with its bar on the display, which must be open.

    names: of the evaluations. num: of games per pairing; None: as at the end of a run.
    """

    def __init__(self, run: Evaluable, names: Sequence[str], num: int | None, display: Display) -> None:
        self.run, self.num, self.display = run, num, display
        self.tasks: dict[str, Task] = {}
        for name in names:
            each = num or run.evaluations.num(name, is_final=True)
            total = each * len(run.evaluations.pairings(name, with_scripted=True))
            self.tasks[name] = Task(name, 0, total, run.evaluations.counted, run.evaluations.most_rounds(name))
        self._began_s = time.monotonic()
        self._shown_at_s = 0.0

    def play(self, name: str) -> tuple[Path, dict[str, Any]]:
        """Play an evaluation as `StoredRun.evaluate` does, while its bar moves."""
        task = self.tasks[name]

        def watch(num_over: int, num_rounds: int) -> None:
            task.move(num_over, num_rounds)
            self._show()

        found = self.run.evaluate(name, self.num, watch)
        task.done = task.total
        self._show(at_once=True)
        return found

    def _show(self, at_once: bool = False) -> None:
        now_s = time.monotonic()
        if at_once or now_s - self._shown_at_s > SHOW_INTERVAL_S:
            self._shown_at_s = now_s
            self.display.update(self.progress())

    def progress(self) -> Progress:
        """Return how far the evaluations are, for the display."""
        tasks, elapsed_s = list(self.tasks.values()), time.monotonic() - self._began_s
        share = sum(task.done for task in tasks) / sum(task.total for task in tasks)
        return Progress(
            name=self.run.folder.path.name,
            run_folder=str(self.run.folder.path),
            device=str(self.run.device),
            fraction=share,
            elapsed_s=elapsed_s,
            remaining_s=elapsed_s * (1.0 - share) / share if share else None,
            counters={"opt_steps": self.run.counters["opt_steps"]},
            tasks=tasks,
            phase=lambda: "finished" if share == 1.0 else "evaluating",
        )
