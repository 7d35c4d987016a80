"""What every display does, and the one of plain lines, for files, pipes and terminals that cannot draw."""

import logging
import math
from time import monotonic
from typing import Self

from rich.console import Console

from palestra.recording.results import (
    Evaluation,
    Progress,
    count_text,
    duration_text,
    estimate_text,
    fraction_of_one,
    known_text,
    label,
    metric_text,
    pair_label,
    printable,
    stage_text,
    task_text,
)
from palestra.storage.secrets import redacted


class Closing:
    """An object for a `with` block, at whose end `close` is called."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Show the last state and let go of the terminal; a second call does nothing."""


class Display(Closing):
    """Shows a run's progress, in a `with` block: this one errors alone, on stderr where the console is quiet.

    has_summary: whether the run's summary is printed below it.
    """

    has_summary = False

    def __init__(self, console: Console) -> None:
        self._console = Console(stderr=True) if console.quiet else console

    def update(self, progress: Progress) -> None:
        """Take note of the present state; cheap."""

    def log(self, line: str) -> None:
        """Show a line that stays."""

    def warn(self, line: str) -> None:
        """Show a line that stays, and stays in sight."""
        self.log(f"warning: {line}")

    def error(self, line: str) -> None:
        """Show a line that stays, and stays in sight; even a quiet display shows it."""
        self._console.out("error:", known_text(redacted(line), self._console.encoding), highlight=False)


# ---- plain lines ---------------------------------------------------------------------------------------

INTERVAL_S = 10.0

logger = logging.getLogger(__name__)


class PlainDisplay(Display):
    """Prints a line of plain text every INTERVAL_S, and one for each evaluation."""

    has_summary = True

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._num_evaluations = 0
        self._latest: Progress | None = None
        self._shown: Progress | None = None
        self._shown_at_s = -math.inf
        self._failed = False

    def update(self, progress: Progress) -> None:
        self._latest = progress
        if len(progress.evaluations) != self._num_evaluations or monotonic() - self._shown_at_s >= INTERVAL_S:
            self._show(progress)

    def log(self, line: str) -> None:
        encoding = self._console.encoding
        self._console.out("\n".join(known_text(piece, encoding) for piece in line.splitlines()), highlight=False)

    def error(self, line: str) -> None:
        self.log(f"error: {redacted(line)}")

    def close(self) -> None:
        if self._latest is not None and self._latest is not self._shown:
            self._show(self._latest)

    def _show(self, progress: Progress) -> None:
        num_shown, self._num_evaluations = self._num_evaluations, len(progress.evaluations)
        is_first, self._shown, self._shown_at_s = self._shown is None, progress, monotonic()
        try:
            if is_first:
                for name, stage in progress.stages.items():
                    self.log(stage_text(name, stage))
            self.log(_progress_line(progress))
            for evaluation in progress.evaluations[num_shown:]:
                # others are past ones of a resumed run
                if num_shown or evaluation.opt_steps == progress.evaluations[-1].opt_steps:
                    decisive = progress.decisive.get((evaluation.name, evaluation.opt_steps))
                    self.log(evaluation_line(evaluation) + (f"; best goes by {decisive}" if decisive else ""))
        except Exception:  # a display is not worth a run
            if not self._failed:
                logger.warning("the display could not show a run's progress; training goes on", exc_info=True)
            self._failed = True


def _progress_line(progress: Progress) -> str:
    times = f"{math.floor(100 * fraction_of_one(progress.fraction)):3}% {duration_text(progress.elapsed_s)} gone"
    rates = {name: f" ({count_text(rate)}/s)" for name, rate in progress.rates.items()}
    counts = {name: count_text(count) + rates.get(name, "") for name, count in progress.counters.items()}
    pieces = [
        f"{times}, {duration_text(progress.remaining_s)} left",
        ", ".join(f"{label(name)} {text}" for name, text in counts.items()),
    ]
    for player, metrics in progress.players.items():
        pieces.append(f"{player}: " + ", ".join(f"{label(name)} {metric_text(metrics[name])}" for name in metrics))
    return " | ".join([*pieces, progress.phase(), *(f"{task.name}: {task_text(task)}" for task in progress.tasks)])


def evaluation_line(evaluation: Evaluation) -> str:
    """Return one line with the scores of the pairings in which somebody learns."""
    results = [
        f"{pair_label(pair)}: {printable(pair.measure)} {estimate_text(pair.score)}"
        for pair in evaluation.pairs
        if pair.learned
    ]
    return f"evaluation {evaluation.name} at opt step {evaluation.opt_steps}: {', '.join(results)}"
