"""The frame of the live display: one screen that tells how a run stands."""

import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.segment import Segment

from palestra.recording.display.lines import Line, bar, fitted, framed, joined, part, row
from palestra.recording.display.scores import learning_curves, score_table
from palestra.recording.results import (
    Evaluation,
    Progress,
    Task,
    amount_text,
    as_float,
    by_name,
    count_text,
    duration_text,
    fraction_of_one,
    label,
    metric_text,
    phase_shares,
    sparkline,
    task_text,
)

LEAST_WIDTH, LEAST_HEIGHT = 40, 10
NARROW = 50
METRIC_WIDTH = 9  # of a number
LEAST_CURVE = 8


@dataclass(frozen=True)
class Warnings:
    """What went wrong: how often, and the last lines of it."""

    number: int
    last: Sequence[str]


class Frame:
    """Draws a run's progress. What is costly and seldom changes, the evaluations, is kept from frame to frame."""

    def __init__(self) -> None:
        self._kept: dict[Callable[..., list[Line]], tuple[tuple[object, ...], list[Line]]] = {}

    def lines(self, progress: Progress, warnings: Warnings, age_s: float, width: int, height: int) -> list[Line]:
        """At most `height` lines, each `width` wide. age_s: how long ago `progress` was true."""
        if width < LEAST_WIDTH or height < LEAST_HEIGHT:
            return [fitted(_short(progress, age_s), width)]
        inside, left = width - 4, height - 2
        head = _bar_lines(progress, progress.tasks[: height // 6], age_s, inside)
        head += [
            line
            for line in (_stages_line(progress, inside), _time_line(progress, inside), _counters_line(progress, inside))
            if line
        ]
        foot = _warning_lines(warnings, 3 if height >= 24 else 1)
        left -= len(head) + len(foot)
        curves = self._keep(_curve_lines, progress.evaluations, inside)[: max(left // 4, 1)]
        metrics = _metric_lines(progress, inside)
        num_metrics = min(len(metrics), max(left - len(curves) - 9, left // 3))
        scores = self._keep(_score_lines, progress.evaluations, inside, left - len(curves) - num_metrics)
        num_metrics = min(len(metrics), left - len(curves) - len(scores))  # what the table left
        sections = [head, metrics[:num_metrics] if num_metrics > 1 else [], scores, curves, foot]
        body = _spread([section for section in sections if section], height - 2)
        title = [part("palestra", "bold"), part(f" · {progress.name} · {progress.device}")]
        return framed(body, title, [part(progress.run_folder or "", "dim")], width)

    def _keep(self, draw: Callable[..., list[Line]], evaluations: Sequence[Evaluation], *sizes: int) -> list[Line]:
        """Drawn again where there is another evaluation or another size."""
        wanted = (len(evaluations), evaluations[-1] if evaluations else None, sizes)
        if self._kept.get(draw, ((), []))[0] != wanted:
            self._kept[draw] = wanted, draw(evaluations, *sizes)
        return self._kept[draw][1]


def _spread(sections: Sequence[list[Line]], height: int) -> list[Line]:
    """One after the other, with a blank line between as long as there is room."""
    num_blanks = max(0, height - sum(map(len, sections)))
    lines: list[Line] = []
    for section in sections:
        if lines and num_blanks:
            num_blanks -= 1
            lines.append([])
        lines += section
    return lines


# ---- the run -------------------------------------------------------------------------------------------


def _bar_lines(progress: Progress, tasks: Sequence[Task], age_s: float, width: int) -> list[Line]:
    """One of the run, one per task."""
    bars = [(progress.phase(), fraction_of_one(progress.fraction), _time_text(progress, age_s, width >= NARROW))]
    bars += [(task.name, fraction_of_one(task.done / max(task.total, 1)), f"  {task_text(task)}") for task in tasks]
    label_width = min(max(12, *(len(name) for name, _, _ in bars)), width // 3)
    bar_width = max(width - label_width - max(len(text) for _, _, text in bars) - 2, 0)
    styles = ["green", *["cyan"] * len(tasks)]
    return [
        [
            *row([part(name, "bold" if style == "green" else "")], [label_width]),
            *bar(share, bar_width, style),
            part(f" {text}"),
        ]
        for (name, share, text), style in zip(bars, styles, strict=True)
    ]


def _time_text(progress: Progress, age_s: float, with_gone: bool) -> str:
    """62%  0:01:15 gone, 0:00:46 left"""
    share, gone = math.floor(100 * fraction_of_one(progress.fraction)), as_float(progress.elapsed_s) + age_s
    left = max(as_float(progress.remaining_s) - age_s, 0.0)  # nan stays nan
    gone_text = f"{duration_text(gone)} gone, " if with_gone else ""
    return f"{share:3}%  {gone_text}{duration_text(left)} left"


def _stages_line(progress: Progress, width: int) -> Line:
    """Train 12,000 opt steps   then test 5,000 games."""
    texts: list[Line] = []
    for name, stage in progress.stages.items():
        is_on = name == progress.stage
        told = part(f"{'then ' * bool(texts)}{name} ", "bold" if is_on else "dim")
        texts.append([told, part(amount_text(stage), "" if is_on else "dim")])
    return joined(texts, width)


def _time_line(progress: Progress, width: int) -> Line:
    shares = [[part(phase, "dim"), part(f" {share:.0%}")] for phase, share in phase_shares(progress.time)]
    return joined(shares, width)


def _counters_line(progress: Progress, width: int) -> Line:
    texts = []
    for name, count in progress.counters.items():
        rate = f" ({count_text(progress.rates[name])}/s)" if progress.rates.get(name) else ""
        texts.append([part(f"{label(name)} ", "dim"), part(count_text(count)), part(rate, "green")])
    return joined(texts, width)


def _short(progress: Progress, age_s: float) -> Line:
    return [part(f"{_time_text(progress, age_s, with_gone=False).strip()}, {progress.phase()}")]


def _warning_lines(warnings: Warnings, num: int) -> list[Line]:
    """The last ones, and how many there were in all."""
    shown = warnings.last[-num:]
    head = f"{warnings.number} warnings, the last: " if warnings.number > len(shown) else ""
    return [[part(head if not i else "", "bold yellow"), part(line, "yellow")] for i, line in enumerate(shown)]


# ---- the players ---------------------------------------------------------------------------------------


def _metric_lines(progress: Progress, width: int) -> list[Line]:
    """A line per metric, with its curve over the run; of many players a line each, with numbers alone."""
    names = list(dict.fromkeys(name for metrics in progress.players.values() for name in metrics))
    if not names:
        return []
    label_width = min(max(len(name) for name in names), 14)
    cell_width = (width - label_width - 1) // len(progress.players) - 1
    if cell_width < METRIC_WIDTH + 1 + LEAST_CURVE:
        return _number_lines(progress, names, width)
    curve_width = min(cell_width - METRIC_WIDTH - 2, 60)
    widths = [label_width, *[-METRIC_WIDTH, curve_width + 1] * len(progress.players)]
    heads = [cell for player in progress.players for cell in (part(""), part(player, "bold"))]
    lines = [row([part(""), *heads], widths)]
    for name in names:
        cells = [part(label(name), "dim")]
        for player, metrics in progress.players.items():
            curve = sparkline(progress.curves.get(player, {}).get(name, ()), curve_width)
            cells += [_number(metrics.get(name)), part(curve, "cyan")]
        lines.append(row(cells, widths))
    return lines


def _number_lines(progress: Progress, names: Sequence[str], width: int) -> list[Line]:
    label_width = min(max(map(len, progress.players)), width // 3)
    names = names[: max(1, (width - label_width - 1) // 13)]
    widths = [label_width, *[-12] * len(names)]
    lines = [row([part("player", "dim"), *(part(label(name), "dim") for name in names)], widths)]
    for player, metrics in progress.players.items():
        lines.append(row([part(player, "bold"), *(_number(metrics.get(name)) for name in names)], widths))
    return lines


def _number(value: object) -> Segment:
    is_odd = value is not None and not math.isfinite(as_float(value))
    return part(metric_text(value), "bold red" if is_odd else "")


# ---- the evaluations -----------------------------------------------------------------------------------


def _score_lines(evaluations: Sequence[Evaluation], width: int, height: int) -> list[Line]:
    """The table of the first evaluation in at most `height` lines, two of which are its head."""
    first = next(iter(by_name(evaluations).values()), [])
    if not first or height < 3:
        return []
    console = Console(file=io.StringIO(), width=width, legacy_windows=False)
    return console.render_lines(score_table(first, width, height - 2), pad=False)[:height]


def _curve_lines(evaluations: Sequence[Evaluation], width: int) -> list[Line]:
    """Scores over the evaluations: the first, all, the last."""
    curves = learning_curves(by_name(evaluations), width // 2 - 16)
    label_width = min(max((len(curve.label) for curve in curves), default=0), width // 2)
    widths = [label_width, -8, width // 2 - 16, 8]
    return [
        row([part(c.label), part(c.first, "dim"), part(c.bars, "cyan"), part(c.last, "bold")], widths) for c in curves
    ]
