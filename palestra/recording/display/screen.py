"""The screen of the live display, which tells how a run stands."""

import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.segment import Segment

from palestra.recording.display.lines import Line, bar, bordered, fitted, joined, piece, row, spread
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


class Screen:
    """Draws a run's progress.

    The tables and curves of evaluations are costly and seldom change, so they are kept until there is another
    evaluation.
    """

    def __init__(self) -> None:
        self._kept: dict[Callable[..., list[Line]], tuple[tuple[object, ...], list[Line]]] = {}

    def lines(self, progress: Progress, warnings: Warnings, age_s: float, width: int, height: int) -> list[Line]:
        """Return at most `height` lines, each `width` wide. age_s: how long ago `progress` was true."""
        if width < LEAST_WIDTH or height < LEAST_HEIGHT:
            time_text = _time_text(progress, age_s, with_gone=False).strip()
            return [fitted([piece(f"{time_text}, {progress.phase()}")], width)]
        inside, left = width - 4, height - 2
        head = _bar_lines(progress, progress.tasks[: height // 6], age_s, inside)
        shares = [[piece(phase, "dim"), piece(f" {share:.0%}")] for phase, share in phase_shares(progress.time)]
        head += filter(None, (joined(texts, inside) for texts in (_stages(progress), shares, _counters(progress))))
        foot = _warning_lines(warnings, 3 if height >= 24 else 1)
        left -= len(head) + len(foot)
        curves = self._keep(_curve_lines, progress.evaluations, inside)[: max(left // 4, 1)]
        metrics = _metric_lines(progress, inside)
        num_metrics = min(len(metrics), max(left - len(curves) - 9, left // 3))
        scores = self._keep(_score_lines, progress.evaluations, inside, left - len(curves) - num_metrics)
        num_metrics = min(len(metrics), left - len(curves) - len(scores))  # what the table left
        body = spread([head, metrics[:num_metrics] if num_metrics > 1 else [], scores, curves, foot], height - 2)
        title = [piece("palestra", "bold"), piece(f" · {progress.name} · {progress.device}")]
        return bordered(body, title, [piece(progress.run_folder or "", "dim")], width)

    def _keep(self, draw: Callable[..., list[Line]], evaluations: Sequence[Evaluation], *sizes: int) -> list[Line]:
        """Draw the evaluations, or return the lines drawn before if evaluations and sizes are the same."""
        wanted = (len(evaluations), evaluations[-1] if evaluations else None, sizes)
        if self._kept.get(draw, ((), []))[0] != wanted:
            self._kept[draw] = wanted, draw(evaluations, *sizes)
        return self._kept[draw][1]


# ---- the run -------------------------------------------------------------------------------------------


def _bar_lines(progress: Progress, tasks: Sequence[Task], age_s: float, width: int) -> list[Line]:
    """Draw a bar for the run, and one for each task."""
    bars = [(progress.phase(), fraction_of_one(progress.fraction), _time_text(progress, age_s, width >= NARROW))]
    bars += [(task.name, fraction_of_one(task.done / max(task.total, 1)), f"  {task_text(task)}") for task in tasks]
    label_width = min(max(12, *(len(name) for name, _, _ in bars)), width // 3)
    bar_width = max(width - label_width - max(len(text) for _, _, text in bars) - 2, 0)
    return [
        [
            *row([piece(name, "bold" if style == "green" else "")], [label_width]),
            *bar(share, bar_width, style),
            piece(f" {text}"),
        ]
        for (name, share, text), style in zip(bars, ["green", *["cyan"] * len(tasks)], strict=True)
    ]


def _time_text(progress: Progress, age_s: float, with_gone: bool) -> str:
    """Return, for instance, " 62%  0:01:15 gone, 0:00:46 left"."""
    share, gone = math.floor(100 * fraction_of_one(progress.fraction)), as_float(progress.elapsed_s) + age_s
    left = max(as_float(progress.remaining_s) - age_s, 0.0)  # nan stays nan
    gone_text = f"{duration_text(gone)} gone, " if with_gone else ""
    return f"{share:3}%  {gone_text}{duration_text(left)} left"


def _stages(progress: Progress) -> list[Line]:
    """Name the stages of the run, for instance: train 12,000 opt steps   then test 5,000 games."""
    texts: list[Line] = []
    for name, stage in progress.stages.items():
        is_on = name == progress.stage
        told = piece(f"{'then ' * bool(texts)}{name} ", "bold" if is_on else "dim")
        texts.append([told, piece(amount_text(stage), "" if is_on else "dim")])
    return texts


def _counters(progress: Progress) -> list[Line]:
    texts = []
    for name, count in progress.counters.items():
        rate = f" ({count_text(progress.rates[name])}/s)" if progress.rates.get(name) else ""
        texts.append([piece(f"{label(name)} ", "dim"), piece(count_text(count)), piece(rate, "green")])
    return texts


def _warning_lines(warnings: Warnings, num: int) -> list[Line]:
    """Return the last `num` warnings, the first of them with the number of all."""
    shown = warnings.last[-num:]
    head = f"{warnings.number} warnings, the last: " if warnings.number > len(shown) else ""
    return [[piece(head if not i else "", "bold yellow"), piece(line, "yellow")] for i, line in enumerate(shown)]


# ---- the players ---------------------------------------------------------------------------------------


def _metric_lines(progress: Progress, width: int) -> list[Line]:
    """Draw a line for each metric with its curve over the run, or for each of many players a line of numbers alone."""
    if not (names := list(dict.fromkeys(name for metrics in progress.players.values() for name in metrics))):
        return []
    label_width = min(max(len(name) for name in names), max(14, width // 4))
    if (cell_width := (width - label_width - 1) // len(progress.players) - 1) < METRIC_WIDTH + 1 + LEAST_CURVE:
        return _number_lines(progress, names, width)
    curve_width = min(cell_width - METRIC_WIDTH - 2, 60)
    widths = [label_width, *[-METRIC_WIDTH, curve_width + 1] * len(progress.players)]
    heads = [cell for player in progress.players for cell in (piece(""), piece(player, "bold"))]
    lines = [row([piece(""), *heads], widths)]
    for name in names:
        cells = [piece(label(name), "dim")]
        for player, metrics in progress.players.items():
            curve = sparkline(progress.curves.get(player, {}).get(name, ()), curve_width)
            cells += [_number(metrics.get(name)), piece(curve, "cyan")]
        lines.append(row(cells, widths))
    return lines


def _number_lines(progress: Progress, names: Sequence[str], width: int) -> list[Line]:
    label_width = min(max(map(len, progress.players)), width // 3)
    names = names[: max(1, (width - label_width - 1) // 13)]
    widths = [label_width, *[-12] * len(names)]
    head = [piece("player", "dim"), *(piece(label(name), "dim") for name in names)]
    numbers = {player: [_number(metrics.get(name)) for name in names] for player, metrics in progress.players.items()}
    return [row(head, widths), *(row([piece(player, "bold"), *own], widths) for player, own in numbers.items())]


def _number(value: object) -> Segment:
    is_odd = value is not None and not math.isfinite(as_float(value))
    return piece(metric_text(value), "bold red" if is_odd else "")


# ---- the evaluations -----------------------------------------------------------------------------------


def _score_lines(evaluations: Sequence[Evaluation], width: int, height: int) -> list[Line]:
    """Draw the table of the first evaluation in at most `height` lines, two of which are its head."""
    if not (first := next(iter(by_name(evaluations).values()), [])) or height < 3:
        return []
    console = Console(file=io.StringIO(), width=width, legacy_windows=False)
    return console.render_lines(score_table(first, width, height - 2), pad=False)[:height]


def _curve_lines(evaluations: Sequence[Evaluation], width: int) -> list[Line]:
    """Draw scores over the evaluations: the first, a bar for each, the last."""
    curves = learning_curves(by_name(evaluations), width // 2 - 16)
    label_width = min(max((len(curve.label) for curve in curves), default=0), width // 2)
    widths = [label_width, -8, width // 2 - 16, 8]
    return [
        row([piece(c.label), piece(c.first, "dim"), piece(c.bars, "cyan"), piece(c.last, "bold")], widths)
        for c in curves
    ]
