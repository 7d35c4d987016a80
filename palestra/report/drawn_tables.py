"""Tables for papers as PDF, SVG or PNG: learning tables (scores by environment and algorithm) and cross-tables (who
meets whom). Lengths are in inches.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from textwrap import wrap
from typing import Any, NamedTuple

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import Rectangle
from matplotlib.textpath import TextPath

from palestra.config import ConfigError
from palestra.recording.results import Score, Seat, label, printable, score_text
from palestra.report.comparison import ScoreRow, compare_groups
from palestra.report.evaluation_tables import evaluation_names
from palestra.report.groups import Group, group_runs, mean_score, standings_of
from palestra.report.moments import read_moments
from palestra.report.plots import STYLE, Plot, Series, check_format, figure_title, saved
from palestra.report.reading import Evaluated, RunData, read_runs

KINDS = ("learning-table", "cross-table")
FONT_SIZE, SMALL = 9, 7  # points
LINE = 0.16  # the height of a line of text
PAD = 0.09
MARGIN = 0.06
MOST_LETTERS = 14  # in a line of a cross-table's heads
PALEST, FULLEST = 0.05, 0.85  # the part of the colour map that is used

Seats = tuple[Seat, ...]


def plot_tables(
    paths: Sequence[Path], kind: str, file_format: str, checkpoint: str | None, tell: Callable[[str], None]
) -> Plot:
    """Draw the scores of runs, of several that differ in seed alone their mean, as tables.

    kind: one of KINDS. file_format: pdf, svg or png. checkpoint: best, latest, a number or @ and an opt step; None: the
    last evaluation. tell: called with a message for each damaged part. Raises RunFolderError for a folder that is no
    run, CheckpointError for a damaged checkpoint, and ConfigError for a wrong argument, and if there is nothing to
    draw.
    """
    check_format(file_format)
    runs = [run for run, _ in read_moments(paths, checkpoint)]
    for run in runs:
        for fault in run.faults:
            tell(fault)
    groups = group_runs(runs)
    series = [Series(group, "env_steps", tell) for group in groups]
    with matplotlib.rc_context(STYLE):
        if kind == "learning-table":
            figure = _draw_learning_table(series)
        else:
            figure = _draw_cross_tables(list(_cross_tables(series, _scripted_results(runs))))
        content = saved(figure, file_format)
    marks = (
        "; a star marks players that learn"
        if kind == "learning-table"
        else "; players that learn are bold, darker is higher"
    )
    return Plot(content, _caption(groups) + marks)


def _caption(groups: Sequence[Group]) -> str:
    sizes = sorted({len(group.runs) for group in groups})
    if sizes == [1]:
        return "scores of single runs, ± half of their 95% intervals over games"
    counts = f"{sizes[0]}" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
    single = " (of a single run: over games)" if sizes[0] == 1 else ""
    return f"means of {counts} runs, ± half of their 95% t intervals{single}"


# ---- learning tables -----------------------------------------------------------------------------------


class Row(NamedTuple):
    game: str
    score: ScoreRow


def _draw_learning_table(all_series: Sequence[Series]) -> Figure:
    """A line for each score of a learning player in each environment, a column for each algorithm, or for each group of
    runs where an algorithm has several in one environment.
    """
    games = dict.fromkeys(series.game for series in all_series)
    by_game = {game: [series for series in all_series if series.game == game] for game in games}
    rows = [
        Row(game, row)
        for game, found in by_game.items()
        for row in compare_groups([series.group for series in found]).rows
    ]
    if not rows:
        raise ConfigError.at(
            "--kind", "expected runs with an evaluation of a learning player for a learning table, got none"
        )
    names = {series.group.label: _column(series, by_game[series.game]) for series in all_series}
    columns = list(dict.fromkeys(names.values()))
    heads = {
        "environment": [printable(row.game) for row in rows],
        "evaluation": [printable(row.score.evaluation) for row in rows],
        "players": [label(row.score.pairing) for row in rows],
        "score": [label(row.score.measure) for row in rows],
    }
    heads = {name: texts for name, texts in heads.items() if name != "evaluation" or len(set(texts)) > 1}
    cells = [[_entry(row.score, names, column) for column in columns] for row in rows]
    lines = [[*texts, *entries] for *texts, entries in zip(*heads.values(), cells, strict=True)]
    for before, line in reversed(list(pairwise(lines))):
        line[0] = "" if line[0] == before[0] else line[0]  # an environment is named once
    return _ruled_table(figure_title(all_series), [*heads, *columns], lines, num_left=len(heads))


def _column(series: Series, others: Sequence[Series]) -> str:
    """PPO; or PPO: fast, where several of the groups in an environment learn by PPO."""
    text, name = ", ".join(series.algorithms), series.group.label
    is_only = sum(other.algorithms == series.algorithms for other in others) == 1
    return printable(text if text and is_only else f"{text}: {name}" if text else name)


def _entry(row: ScoreRow, names: dict[str, str], column: str) -> str:
    means = [each.mean for each in row.groups if names[each.group] == column]
    return _text_of(means[0]) if means else "–"


def _text_of(score: Score) -> str:
    return " ".join(_parts_of(score))


def _parts_of(score: Score) -> list[str]:
    """The score, and its interval if it has one: .254, ± .003"""
    half = (score.high - score.low) / 2
    return [score_text(score.value), *([f"± {score_text(half)}"] if math.isfinite(half) else [])]


def _ruled_table(title: str, head: Sequence[str], lines: Sequence[Sequence[str]], num_left: int) -> Figure:
    """A table with three rules. num_left: so many columns are flush left, the others centred."""
    widths = [max(_width(head[i], "bold"), *(_width(line[i]) for line in lines)) + 2 * PAD for i in range(len(head))]
    height = LINE * 1.35
    width = max(sum(widths), _width(title, size=FONT_SIZE + 1) + 2 * PAD)
    axes = _page(width, 0.3 + height * (len(lines) + 1.2))
    axes.text(width / 2, 0.08, title, ha="center", va="center", fontsize=FONT_SIZE + 1)
    starts = [(width - sum(widths)) / 2 + sum(widths[:i]) for i in range(len(head))]
    for number, line in enumerate([head, *lines]):
        y = 0.3 + height * (number + 0.5 + (0.1 if number else 0))
        for i, text in enumerate(line):
            x, align = (starts[i] + PAD, "left") if i < num_left else (starts[i] + widths[i] / 2, "center")
            axes.text(x, y, text, ha=align, va="center", fontweight="bold" if number == 0 else "normal")
    for y, weight in ((0.3, 1.0), (0.3 + height * 1.05, 0.6), (0.3 + height * (len(lines) + 1.15), 1.0)):
        axes.plot([starts[0], starts[0] + sum(widths)], [y, y], color="black", linewidth=weight, clip_on=False)
    return axes.get_figure()  # type: ignore[return-value]


# ---- cross-tables --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CrossTable:
    """Who meets whom: the first seats in rows, the second ones in columns."""

    title: str
    measure: str
    scores: dict[Seats, Score]

    def seats(self, place: int) -> list[Seat]:
        """The seats of a role, players that learn first."""
        found = dict.fromkeys(seats[place] for seats in self.scores)
        return sorted(found, key=lambda seat: not seat.learns)


Scripted = dict[Path, tuple[Evaluated, ...]]


def _scripted_results(runs: Sequence[RunData]) -> Scripted:
    """All evaluations of runs of which one moment is asked for: pairings in which nobody learns are not played again at
    every moment.
    """
    dated = [run.path for run in runs if run.at]
    return {run.path: run.evaluated for run in read_runs(dated)} if dated else {}


def _cross_tables(all_series: Sequence[Series], scripted: Scripted) -> Iterator[CrossTable]:
    found = []
    for series in all_series:
        names = evaluation_names([series.group])
        for name in names:
            scores: dict[Seats, list[Score]] = {}
            measure = "score"
            for run in series.group.runs:
                for seats, pair in _results(run, name, scripted.get(run.path, ())):
                    if len(seats) == 2:
                        measure = pair.measure
                        scores.setdefault(seats, []).append(pair.score)
            if scores:
                title = [figure_title([series])]
                title += [printable(series.group.label)] if len(all_series) > 1 else []
                title += [printable(name)] if len(names) > 1 else []
                means = {seats: mean_score(each) for seats, each in scores.items()}
                found.append(CrossTable(", ".join(title), measure, means))
    if not found:
        raise ConfigError.at(
            "--kind", "expected runs with an evaluation of a game of two roles for a cross-table, got none"
        )
    yield from found


def _results(run: RunData, name: str, everything: Sequence[Evaluated]) -> Iterator[tuple[Seats, Any]]:
    """The last results of an evaluation; of scripted players alone from `everything`, too."""
    now = standings_of(run.evaluated, name)
    yield from ((seats, standing.last) for seats, standing in now.items())
    for seats, standing in standings_of(everything, name).items():
        if seats not in now and not standing.last.learned:
            yield seats, standing.last


def _draw_cross_tables(tables: Sequence[CrossTable]) -> Figure:
    """The tables, one below the other."""
    sizes = [_size(table) for table in tables]
    axes = _page(max(width for width, _ in sizes), sum(height for _, height in sizes) + 0.25 * (len(tables) - 1))
    top = 0.0
    for table, (_, height) in zip(tables, sizes, strict=True):
        _draw_cross_table(axes, table, top)
        top += height + 0.25
    return axes.get_figure()  # type: ignore[return-value]


HEAD = 0.34  # the height of the title with the measure
CELL_HEIGHT = 2.3 * LINE


def _measures(table: CrossTable) -> tuple[float, float, float]:
    """The width of the rows' names and of a cell, and the height of the columns' names."""
    rows, columns = table.seats(0), table.seats(1)
    side = max(_width(_player(row), _weight(row)) for row in rows)
    side = max(side, _width(_corner(rows, columns), size=SMALL)) + 2 * PAD
    lines = [_player(column, MOST_LETTERS).split("\n") for column in columns]
    wide = [_width(line, _weight(column)) for column, each in zip(columns, lines, strict=True) for line in each]
    return side, max(0.6, *wide) + PAD, LINE * max(map(len, lines)) + 0.06


def _size(table: CrossTable) -> tuple[float, float]:
    side, cell, top = _measures(table)
    texts = max(_width(table.title, size=FONT_SIZE + 1), _width(label(table.measure))) + PAD
    return max(side + cell * len(table.seats(1)), texts), HEAD + top + CELL_HEIGHT * len(table.seats(0))


def _draw_cross_table(axes: Axes, table: CrossTable, top: float) -> None:
    side, cell, names = _measures(table)
    rows, columns = table.seats(0), table.seats(1)
    axes.text(PAD / 2, top + 0.08, table.title, va="center", fontsize=FONT_SIZE + 1)
    axes.text(PAD / 2, top + 0.25, label(table.measure), va="center", color="#444444")
    top += HEAD
    axes.text(PAD / 2, top + names - 0.05, _corner(rows, columns), va="bottom", fontsize=SMALL, color="#444444")
    for j, column in enumerate(columns):
        x = side + cell * (j + 0.5)
        text = _player(column, MOST_LETTERS)
        axes.text(x, top + names - 0.05, text, ha="center", va="bottom", fontweight=_weight(column))
    finite = [score.value for score in table.scores.values() if math.isfinite(score.value)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    for i, row in enumerate(rows):
        y = top + names + CELL_HEIGHT * i
        axes.text(PAD / 2, y + CELL_HEIGHT / 2, _player(row), va="center", fontweight=_weight(row))
        for j, column in enumerate(columns):
            score = table.scores.get((row, column))
            _draw_cell(axes, (side + cell * j, y), cell, score, low, high)


def _draw_cell(
    axes: Axes, corner: tuple[float, float], width: float, score: Score | None, low: float, high: float
) -> None:
    x, y = corner[0] + width / 2, corner[1] + CELL_HEIGHT / 2
    if score is None or not math.isfinite(score.value):
        axes.text(x, y, "–", ha="center", va="center", color="#444444")
        return
    share = (score.value - low) / (high - low) if high > low else 0.5
    colour = matplotlib.colormaps["Blues"](PALEST + (FULLEST - PALEST) * share)
    axes.add_patch(Rectangle(corner, width, CELL_HEIGHT, facecolor=colour, edgecolor="white", linewidth=1.2))
    ink = "white" if _luminance(colour) < 0.18 else "black"  # the contrast is at least 4.5 to 1
    value, *interval = _parts_of(score)
    axes.text(x, y - (0.07 if interval else 0), value, ha="center", va="center", color=ink)
    for text in interval:
        axes.text(x, y + 0.09, text, ha="center", va="center", fontsize=SMALL, color=ink)


def _luminance(colour: Sequence[float]) -> float:
    """Of a colour in sRGB, 0..1, as the guidelines for accessible pages (WCAG) define it."""
    red, green, blue = (x / 12.92 if x <= 0.03928 else ((x + 0.055) / 1.055) ** 2.4 for x in colour[:3])
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _corner(rows: Sequence[Seat], columns: Sequence[Seat]) -> str:
    return printable(f"{rows[0].role} \\ {columns[0].role}")


def _player(seat: Seat, width: int = 1000) -> str:
    return "\n".join(wrap(label(seat.player), width))


def _weight(seat: Seat) -> str:
    return "bold" if seat.learns else "normal"


# ---- on paper ------------------------------------------------------------------------------------------


def _page(width: float, height: float) -> Axes:
    """Axes in inches from the upper left corner, with a margin around."""
    size = (width + 2 * MARGIN, height + 2 * MARGIN)
    axes = Figure(figsize=size).add_axes((0, 0, 1, 1), xlim=(-MARGIN, width + MARGIN), ylim=(height + MARGIN, -MARGIN))
    axes.set_axis_off()
    return axes


def _width(text: str, weight: str = "normal", size: float = FONT_SIZE) -> float:
    """Of a line of text."""
    if not text.strip():
        return 0.0
    return float(TextPath((0, 0), text, size=size, prop=FontProperties(weight=weight)).get_extents().xmax) / 72
