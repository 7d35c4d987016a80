"""The screen of a sweep's live display, which tells how the sweep stands."""

import math
import signal
from datetime import datetime

from rich.cells import cell_len

from palestra.recording.display.lines import Line, bar, bordered, fitted, joined, piece, row, shortened, spread
from palestra.recording.results import count_text, duration_text, fraction_of_one, label
from palestra.sweeps.progress import RunProgress, SweepProgress
from palestra.sweeps.texts import (
    amount_text,
    elsewhere_text,
    end_text,
    point_text,
    seeds_text,
    trials_text,
    value_text,
    worked_text,
)

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
    amounts = [[piece(text)] for text in (amount_text(progress), worked_text(progress, age_s)) if text]
    if sum(segment.cell_length + 3 for text in [*counts, *amounts] for segment in text) <= width:
        return [*lines, joined([*counts, *amounts], width)]
    return [*lines, joined(counts, width), joined(amounts, width)]


def _best(progress: SweepProgress, width: int) -> list[Line]:
    best = progress.best
    if best is None:
        return [[piece("best so far  ", "bold"), piece("no trial has succeeded yet", "dim")]]
    seeds = seeds_text(best)
    value = f"{progress.measure} {value_text(best.value)}"
    line = [piece("best so far  ", "bold"), piece(f"trial {best.number}  "), piece(value, "bold green")]
    room = width - sum(segment.cell_length for segment in line) - 2
    below = [point_text(best.point)]
    if len(seeds) > room:
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
        *row([piece(""), *(cell for cell, _ in cells)], [0, *(cell_width for _, cell_width in cells)], gap=1),
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
        cells = [
            piece(f"trial {trial.number}"),
            piece(trial.state, STYLES[trial.state]),
            piece(value_text(trial.value)),
        ]
        widths = [max(9, len(cells[0].text)), 9, -VALUE_WIDTH]
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
