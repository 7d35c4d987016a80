"""What a user sees while a sweep works: a live screen on a terminal, plain lines elsewhere, nothing where it is quiet.

A display asks for the sweep's progress when it shows it, because that reads the study. It never ends a sweep: progress
that cannot be read or drawn is left out, and reported once.
"""

import logging
import math
import signal
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta

from rich.cells import cell_len
from rich.console import Console

from palestra.recording.display import can_draw, needs_ascii
from palestra.recording.display.display import Closing
from palestra.recording.display.lines import Line, bar, bordered, fitted, joined, piece, row, shortened, spread
from palestra.recording.display.live import LiveLines
from palestra.recording.results import count_text, duration_text, fraction_of_one, known_text, label, printable
from palestra.sweeps.naming import short_keys
from palestra.sweeps.progress import EndedTrial, RunProgress, SweepProgress

MOST_SEEDS = 3  # whose values are shown one by one
MOST_RUNS = 4  # that a line names


def point_text(point: Mapping[str, str]) -> str:
    """Return a point as "learning_rate 0.003, gamma 0.99"."""
    names = short_keys(point)
    return printable(", ".join(f"{names[key]} {text}" for key, text in point.items()))


def value_text(value: float | None) -> str:
    return "-" if value is None else f"{value:.5g}"


def seeds_text(trial: EndedTrial) -> str:
    """Return the values of a trial's seeds; "" for a single one."""
    if len(trial.values) < 2:
        return ""
    if len(trial.values) <= MOST_SEEDS:
        return f"seeds: {', '.join(map(value_text, trial.values))}"
    least, most = value_text(min(trial.values)), value_text(max(trial.values))
    return f"{len(trial.values)} seeds: {least} to {most}"


def trials_text(progress: SweepProgress) -> str:
    """Return how many trials have ended, as "3 of 8 trials"."""
    if progress.total is None:
        return f"{progress.num_ended:,} trial{'' if progress.num_ended == 1 else 's'}"
    return f"{progress.num_ended:,} of {progress.total:,} trial{'' if progress.total == 1 else 's'}"


def counts_text(progress: SweepProgress) -> str:
    """Return how many trials are in each state, as "3 succeeded, 1 failed, 2 running"."""
    return ", ".join(f"{count:,} {state}" for state, count in progress.counts.items())


def generation_text(progress: SweepProgress) -> str:
    """Return the newest generation, as "generation 3 of 10"; "" if there are none."""
    if progress.generation is None:
        return ""
    of = "" if progress.num_generations is None else f" of {progress.num_generations:,}"
    return f"generation {progress.generation:,}{of}"


def amount_text(progress: SweepProgress) -> str:
    """Return how much the runs have counted, as "1.2M of 5M env steps"; "" if nothing, and nothing limits it."""
    if not progress.count and math.isinf(progress.max_count):
        return ""
    limit = "" if math.isinf(progress.max_count) else f" of {count_text(progress.max_count)}"
    return f"{count_text(progress.count)}{limit} {label(progress.unit)}"


def worked_text(progress: SweepProgress, age_s: float = 0.0) -> str:
    """Return how long the sweep has worked, as "worked 0:12:33 of 1:00:00"."""
    limit = "" if math.isinf(progress.max_s) else f" of {duration_text(progress.max_s)}"
    return f"worked {duration_text(progress.worked_s + age_s)}{limit}"


def end_text(seconds: float, now: datetime) -> str:
    """Return when the sweep ends, as "about 12 min left, at 14:32"; "" if it is not known."""
    if not math.isfinite(seconds):
        return ""
    if seconds < 60:
        return "less than a minute left"
    end = now + timedelta(seconds=seconds)
    minutes = round(seconds / 60)
    if minutes < 100:
        left = f"{minutes} min"
    elif minutes < 48 * 60:
        left = f"{minutes // 60} h {minutes % 60} min"
    else:
        left = "{} d {} h".format(*divmod(round(minutes / 60), 24))
    days = (end.date() - now.date()).days
    on = "" if not days else f" on {end:%A}" if days < 7 else f" on {end.day} {end:%B}"
    return f"about {left} left, at {end:%H:%M}{on}"


def elsewhere_text(progress: SweepProgress) -> str:
    """Say what runs besides; "" if nothing does."""
    num, what = progress.num_elsewhere, "begun: other processes work on them, or they wait for a place"
    return f"{num:,} more trial{'' if num == 1 else 's'} {what}" if num else ""


def failures_text(progress: SweepProgress) -> list[str]:
    """Return lines that say how many trials failed, and why the first ones did."""
    if not (num := progress.counts.get("failed", 0)):
        return []
    first = ", the first of them" if num > len(progress.first_failures) else ""
    lines = [f"{num:,} trial{'' if num == 1 else 's'} failed{first}:"]
    for trial in progress.first_failures:
        lines.append(printable(f"  trial {trial.number}: {trial.reason}"))
        lines += [] if trial.log is None else [printable(f"    its log: {trial.log}")]
    return lines


def progress_line(progress: SweepProgress, now: datetime) -> str:
    """Return all of it in one line, for files and pipes."""
    best = progress.best
    runs = [f"trial {run.trial} seed {run.seed} at {math.floor(100 * run.share)}%" for run in progress.runs]
    more = f" and {len(runs) - MOST_RUNS} more" if len(runs) > MOST_RUNS else ""
    texts = [
        f"{trials_text(progress)} done",
        generation_text(progress),
        counts_text(progress),
        amount_text(progress),
        worked_text(progress),
        "" if best is None else f"best: trial {best.number}, {progress.measure} {value_text(best.value)}",
        f"running: {', '.join(runs[:MOST_RUNS])}{more}" if runs else "",
        elsewhere_text(progress),
        end_text(progress.seconds_left, now),
    ]
    return " | ".join(filter(None, texts))


LEAST_WIDTH, LEAST_HEIGHT = 40, 10
NARROW = 72
LEAST_ENDED = 4  # lines that come before blank ones
VALUE_WIDTH = 9
STYLES = {"running": "cyan", "succeeded": "green", "failed": "red", "pruned": "yellow", "skipped": "dim"}


def screen_lines(progress: SweepProgress, age_s: float, now: datetime, width: int, height: int) -> list[Line]:
    """Return at most `height` lines, each `width` wide. age_s: how long ago `progress` was true."""
    if width < LEAST_WIDTH or height < LEAST_HEIGHT:
        return [fitted([piece(f"{trials_text(progress)}  {_end(progress, age_s, now)}")], width)]
    inside, left = width - 4, height - 2
    head = _head(progress, age_s, now, inside)
    best = _best(progress, inside)
    left -= len(head) + len(best)
    failures = _failures(progress, inside, left // 4)
    runs = _runs(progress, age_s, inside, max((left - len(failures)) * 2 // 3, 1))
    left -= len(failures) + len(runs)
    num_gaps = sum(map(bool, (best, runs, progress.ended, failures)))
    ended = _ended(progress, inside, left - num_gaps if left - num_gaps >= LEAST_ENDED else left)
    body = spread([head, best, runs, ended, failures], height - 2)
    title = [piece("palestra", "bold"), piece(f" · sweep {progress.path.name}")]
    return bordered(body[: height - 2], title, [piece(_ending(str(progress.path), width - 8), "dim")], width)


def _ending(text: str, width: int) -> str:
    """Return the end of a text that is too long."""
    return text if cell_len(text) <= width else "…" + text[-max(width - 1, 0) :]


# ---- how it stands -----------------------------------------------------------------------------------------


def _end(progress: SweepProgress, age_s: float, now: datetime) -> str:
    if progress.stopped_by is not None:
        name = signal.Signals(progress.stopped_by).name
        return f"{name}: the runs are being saved" if progress.runs else f"stopped by {name}"
    return end_text(max(progress.seconds_left - age_s, 0.0), now) if math.isfinite(progress.seconds_left) else ""


def _head(progress: SweepProgress, age_s: float, now: datetime, width: int) -> list[Line]:
    done, end = trials_text(progress), _end(progress, age_s, now)
    bar_width = max(width - cell_len(done) - cell_len(end) - 1 - 2 * bool(end), 0)
    style = "yellow" if progress.stopped_by is not None else "bold"
    line = bar(fraction_of_one(progress.share), bar_width, "green")
    lines = [[piece(f"{done} ", "bold"), *line, piece(f"  {end}" if end else "", style)]]
    states = [state for state in STYLES if state in progress.counts]
    counts = [[piece(f"{progress.counts[state]:,} ", STYLES[state]), piece(state, "dim")] for state in states]
    texts = generation_text(progress), amount_text(progress), worked_text(progress, age_s)
    amounts = [[piece(text)] for text in texts if text]
    if sum(segment.cell_length + 3 for text in [*counts, *amounts] for segment in text) <= width:
        return [*lines, joined([*counts, *amounts], width)]
    return [*lines, joined(counts, width), joined(amounts, width)]


def _best(progress: SweepProgress, width: int) -> list[Line]:
    best = progress.best
    if best is None:
        return [[piece("best so far  ", "bold"), piece("no trial has succeeded yet", "dim")]]
    seeds, value = seeds_text(best), f"{progress.measure} {value_text(best.value)}"
    line = [piece("best so far  ", "bold"), piece(f"trial {best.number}  "), piece(value, "bold green")]
    below = [point_text(best.point)]
    if len(seeds) > width - sum(segment.cell_length for segment in line) - 2:
        below.insert(0, seeds)
    else:
        line.append(piece(f"  {seeds}", "dim"))
    return [line, *([piece(" " * 13 + shortened(text, width - 13))] for text in below)]


# ---- what runs ---------------------------------------------------------------------------------------------


def _runs(progress: SweepProgress, age_s: float, width: int, height: int) -> list[Line]:
    elsewhere = elsewhere_text(progress) if height > 3 or not progress.runs else ""
    room = height - bool(elsewhere)
    shown = progress.runs if len(progress.runs) <= room else progress.runs[: max(room - 1, 0)]
    lines = [_run_line(run, progress, age_s, width) for run in shown]
    if num := len(progress.runs) - len(shown):
        lines.append([piece(f"and {num:,} more run{'' if num == 1 else 's'}", "dim")])
    if elsewhere:
        lines.append([piece(shortened(elsewhere, width), "dim")])
    return lines[:height]


def _run_line(run: RunProgress, progress: SweepProgress, age_s: float, width: int) -> Line:
    restarts = f"{run.restarts} restart{'' if run.restarts == 1 else 's'}" if run.restarts else ""
    cells = [
        (piece(value_text(run.value), "bold"), -VALUE_WIDTH),
        (piece(duration_text(run.seconds + age_s), "dim"), -8),
        (piece(_state_of_run(run, progress)), -14),
        (piece(restarts, "yellow"), -11),
    ]
    if width < NARROW:
        cells = [cells[0], (cells[3 if restarts else 1][0], -11)]
    names = [piece(f"trial {run.trial}", "cyan"), piece(f"seed {run.seed}")]
    name_widths = [max(9, len(names[0].text)), max(7, len(names[1].text))]
    used = sum(name_widths) + sum(-cell_width for _, cell_width in cells) + len(cells) + 2 + 5
    share = fraction_of_one(run.share)
    return [
        *row(names, name_widths),
        *bar(share, min(max(width - used, 0), 60), "cyan"),
        piece(f" {math.floor(100 * share):3}%"),
        *row([piece(""), *(cell for cell, _ in cells)], [0, *(cell_width for _, cell_width in cells)]),
    ]


def _state_of_run(run: RunProgress, progress: SweepProgress) -> str:
    if progress.stopped_by is not None:
        return "saving"
    if run.share >= 1.0:
        return "evaluating"
    if not run.count:
        return "starting"
    return "" if math.isnan(run.per_s) else f"{count_text(run.per_s)} {label(progress.unit).split()[-1]}/s"


# ---- what has ended ----------------------------------------------------------------------------------------


def _ended(progress: SweepProgress, width: int, height: int) -> list[Line]:
    if not progress.ended or height < 2:
        return []
    lines: list[Line] = [[piece("the last that ended" if len(progress.ended) > height - 1 else "ended", "dim")]]
    for trial in progress.ended[: height - 1]:
        told = trial.reason if trial.state == "skipped" else point_text(trial.point)
        name, value = piece(f"trial {trial.number}"), piece(value_text(trial.value))
        cells = [name, piece(trial.state, STYLES[trial.state]), value]
        widths = [max(9, len(name.text)), 9, -VALUE_WIDTH]
        lines.append([*row(cells, widths), piece(shortened(told, width - sum(widths[:2]) - VALUE_WIDTH - 3), "dim")])
    return lines


def _failures(progress: SweepProgress, width: int, height: int) -> list[Line]:
    """Draw the last failures: for each a line with the reason, and one with the log where there is room."""
    lines: list[Line] = []
    for trial in progress.failures[: max(height // 2, 1)]:
        name = f"trial {trial.number} failed: "
        lines.append([piece(name, "bold red"), piece(shortened(trial.reason, width - len(name)), "red")])
        if trial.log is not None and height >= 2:
            lines.append([piece(f"  its log: {_ending(str(trial.log), width - 11)}", "dim")])
    return lines


READ_S, LINE_S = 1.0, 60.0
MOST_SHARE = 0.01  # of the time may go into reading progress: a study that takes longer is read less often

logger = logging.getLogger(__name__)

Read = Callable[[], SweepProgress]


class SweepDisplay(Closing):
    """A display that shows nothing. Used in a `with` block."""

    def update(self, read: Read, is_last: bool = False) -> None:
        """Show the progress if that is due, or if nothing will come after it. May be called as often as one likes."""

    def ended(self, line: str) -> None:
        """Say how a trial has ended."""
        self.note(line)

    def note(self, line: str) -> None:
        """Tell something of which a trial's end says nothing."""

    def stopping(self, number: int, read: Read) -> None:
        """Say that a signal has come, and that the runs are saved."""


class _Reading(SweepDisplay):
    """Reads the progress when it is due, every `interval_s` or less often."""

    interval_s = READ_S

    def __init__(self) -> None:
        self._due_s = -math.inf
        self._has_failed = False

    def show(self, progress: SweepProgress) -> None:
        raise NotImplementedError

    def update(self, read: Read, is_last: bool = False) -> None:
        started = time.monotonic()
        if started < self._due_s and not is_last:
            return
        try:
            self.show(read())
        except Exception:  # a display is not worth a sweep
            if not self._has_failed:
                self._has_failed = True
                logger.warning("the display could not show how the sweep stands; the sweep goes on", exc_info=True)
        ended = time.monotonic()
        self._due_s = ended + max(self.interval_s, (ended - started) / MOST_SHARE)


class PlainSweepDisplay(_Reading):
    """Prints a line of plain ASCII for each trial that ends, and every minute one that tells how the sweep stands."""

    interval_s = LINE_S

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console
        self._due_s = time.monotonic() + LINE_S

    def update(self, read: Read, is_last: bool = False) -> None:
        super().update(read)  # what comes last the summary tells

    def show(self, progress: SweepProgress) -> None:
        self.note(progress_line(progress, datetime.now()))

    def note(self, line: str) -> None:
        self._console.out(known_text(line, self._console.encoding), highlight=False)

    def stopping(self, number: int, read: Read) -> None:
        self.note(f"{signal.Signals(number).name}: the runs are being saved")


class LiveSweepDisplay(LiveLines, _Reading):
    """A screen on a terminal. It shows which trials have ended, so no lines are printed for them."""

    fault = "the display could not show how the sweep stands; the sweep goes on"

    def __init__(self, console: Console, is_ascii: bool) -> None:
        LiveLines.__init__(self, console, is_ascii)
        _Reading.__init__(self)
        self._latest: tuple[SweepProgress, float] | None = None  # and when it was read

    def show(self, progress: SweepProgress) -> None:
        self._latest = progress, time.monotonic()

    def ended(self, line: str) -> None:
        self._due_s = -math.inf

    def note(self, line: str) -> None:
        self._region.print_above(f"{known_text(line) if self.is_ascii else printable(line)}\n")

    def stopping(self, number: int, read: Read) -> None:
        self._due_s = -math.inf
        self.update(read)
        self._draw()

    def _lines(self, width: int, height: int) -> list[Line] | None:
        if self._latest is None:
            return None
        progress, at_s = self._latest
        return screen_lines(progress, time.monotonic() - at_s, datetime.now(), width, height)


def make_sweep_display(console: Console) -> SweepDisplay:
    """Make a display: live on a terminal that can draw it, plain lines elsewhere, nothing on a quiet console."""
    if console.quiet:
        return SweepDisplay()
    return LiveSweepDisplay(console, needs_ascii(console)) if can_draw(console) else PlainSweepDisplay(console)
