"""Tables for papers as PDF, SVG or PNG.

Learning tables show scores by environment and algorithm, cross-tables who meets whom. Lengths are in inches.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from textwrap import wrap
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.table import Cell

from palestra.config import ConfigError
from palestra.recording.results import UNKNOWN, Seat, label, printable, score_text
from palestra.report.comparison import compare_groups
from palestra.report.evaluation_tables import counted_in_runs, ends_of_colours, evaluation_names
from palestra.report.groups import Group, group_runs, mean_score, repeated_seeds, standings_of
from palestra.report.plots import STYLE, Plot, Series, check_format, figure_title, saved
from palestra.report.reading import Evaluated, RunData, read_moments, read_runs
from palestra.run.tables import chosen_names
from palestra.runtime.scores import Estimate

KINDS = ("learning-table", "cross-table")
FONT_SIZE = 9  # points
WIDTH = 1.0  # of a page, which grows with its content when it is saved
LINE = 0.16  # the height of a line of text
HEIGHT = 0.22  # of a row of a learning table
HEAD = 0.42  # the height of the title with the measure
CELL_HEIGHT = 0.37  # of a cross-table
MOST_LETTERS = 14  # in a line of a cross-table's heads
PALEST, FULLEST = 0.05, 0.85  # the range of the colour map that is used

Seats = tuple[Seat, ...]


def plot_tables(
    paths: Sequence[Path],
    kind: str,
    file_format: str,
    checkpoint: str | None,
    tell: Callable[[str], None],
    metrics: Sequence[str] = (),
) -> Plot:
    """Draw the scores of runs as tables; of runs that differ in the seed alone the mean.

    kind: one of KINDS. file_format: pdf, svg or png. checkpoint: best, latest, a number or @ and an opt step; None: the
    last evaluation. tell: called with a message for each damaged line or file. metrics: the scores that are shown, by
    name; none: all of a learning table, the first one of a cross-table. Raises RunFolderError for a folder that is no
    run, CheckpointError for a damaged checkpoint, ConfigError for a wrong argument, and if there is nothing to draw.
    """
    check_format(file_format)
    runs = [run for run, _ in read_moments(paths, checkpoint)]
    groups = group_runs(runs)
    for line in (*chain.from_iterable(run.faults for run in runs), *repeated_seeds(groups)):
        tell(line)
    series = [Series(group, "opt_steps", tell) for group in groups]
    with matplotlib.rc_context({**STYLE, "savefig.bbox": "tight"}):
        if kind == "learning-table":
            figure = _draw_learning_table(series, metrics)
        else:
            # pairings in which nobody learns are not played at every moment: earlier results are needed
            scripted = {run.path: run.evaluated for run in read_runs([run.path for run in runs if run.at])}
            tables = _cross_tables(series, scripted, metrics)
            figure, all_axes = _page([HEAD + sum(_heights(table)) for table in tables])
            for axes, table in zip(all_axes, tables, strict=True):
                _draw_cross_table(axes, table)
        content = saved(figure, file_format)
    marks = {"learning-table": "a star marks players that learn"}
    return Plot(content, f"{_caption(groups)}; {marks.get(kind, 'players that learn are bold, darker is higher')}")


def _caption(groups: Sequence[Group]) -> str:
    sizes = sorted({len(group.runs) for group in groups})
    if sizes == [1]:
        return f"scores of single runs, ± half of their 95% intervals over {counted_in_runs(groups)}"
    counts = f"{sizes[0]}" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
    single = f" (of a single run: over {counted_in_runs(groups)})" if sizes[0] == 1 else ""
    return f"means of {counts} runs, ± half of their 95% t intervals{single}"


# ---- learning tables -----------------------------------------------------------------------------------


def _draw_learning_table(all_series: Sequence[Series], metrics: Sequence[str]) -> Figure:
    """Draw a line for each score of a learning player in each environment, and a column for each algorithm.

    Where an algorithm has several groups of runs in one environment, each of them has a column.
    """
    games = dict.fromkeys(series.game for series in all_series)
    by_game = {game: [series for series in all_series if series.game == game] for game in games}
    rows = [
        (game, row)
        for game, found in by_game.items()
        for row in compare_groups([series.group for series in found]).rows
    ]
    if not rows:
        raise ConfigError.at(
            "--kind", "expected runs with an evaluation of a learning player for a learning table, got none"
        )
    if metrics:
        shown = chosen_names(list(dict.fromkeys(row.measure for _, row in rows)), metrics)
        rows = [(game, row) for game, row in rows if row.measure in shown]
    names = {}
    for series in all_series:  # PPO, or "PPO: fast" where several groups in an environment learn by PPO
        text, name = ", ".join(series.algorithms), series.group.label
        is_only = sum(other.algorithms == series.algorithms for other in by_game[series.game]) == 1
        names[name] = printable(text if text and is_only else f"{text}: {name}" if text else name)
    columns = list(dict.fromkeys(names.values()))
    heads = {
        "environment": [printable(game) for game, _ in rows],
        "evaluation": [printable(row.evaluation) for _, row in rows],
        "players": [label(row.pairing) for _, row in rows],
        "score": [label(row.measure) for _, row in rows],
    }
    heads = {name: texts for name, texts in heads.items() if name != "evaluation" or len(set(texts)) > 1}
    cells = []
    for _, row in rows:
        texts = {names[each.group]: " ".join(_pieces_of(each.mean)) for each in reversed(row.groups)}
        cells.append([texts.get(column, "–") for column in columns])
    lines = [[*texts, *entries] for *texts, entries in zip(*heads.values(), cells, strict=True)]
    for before, line in reversed(list(pairwise(lines))):
        line[0] = "" if line[0] == before[0] else line[0]  # an environment is named once
    figure, [axes] = _page([HEIGHT * (len(lines) + 2)])
    _write_title(axes, figure_title(all_series))
    table = _write_table(axes, [[*heads, *columns], *lines], [HEIGHT] * (len(lines) + 1))
    for (place, column), cell in table.items():  # three rules
        cell.visible_edges = "BT" if place == 0 else "B" if place == len(lines) else ""
        cell.set_text_props(ha="left" if column < len(heads) else "center", weight="bold" if place == 0 else "normal")
    return figure


def _pieces_of(score: Estimate) -> list[str]:
    """Return a score and, if it has one, its interval as texts: .254, ± .003."""
    return [score_text(score.value), *([f"± {score_text(score.half)}"] if math.isfinite(score.half) else [])]


# ---- cross-tables --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CrossTable:
    """A table of who meets whom: the first seats in rows, the second ones in columns."""

    title: str
    measure: str
    scores: dict[Seats, Estimate]

    def seats(self, place: int) -> list[Seat]:
        """Return the seats of a role, players that learn first."""
        return sorted(dict.fromkeys(seats[place] for seats in self.scores), key=lambda seat: not seat.learns)


def _cross_tables(
    all_series: Sequence[Series], scripted: Mapping[Path, Sequence[Evaluated]], metrics: Sequence[str]
) -> list[CrossTable]:
    """Make the tables. scripted: all evaluations of runs of which one moment is asked for, by their folders."""
    found = []
    for series in all_series:
        names = evaluation_names([series.group])
        for name in names:
            by_measure: dict[str, dict[Seats, list[Estimate]]] = {}
            for run in series.group.runs:
                for seats, pair in _results(run, name, scripted.get(run.path, ())):
                    for measure in chosen_names([*pair.every_score], metrics) if metrics else [pair.measure]:
                        if len(seats) == 2:
                            score = pair.every_score.get(measure, UNKNOWN)
                            by_measure.setdefault(measure, {}).setdefault(seats, []).append(score)
            for measure, scores in by_measure.items():
                of_group = [printable(series.group.label)] * (len(all_series) > 1)
                title = ", ".join([figure_title([series]), *of_group, *[printable(name)] * (len(names) > 1)])
                found.append(CrossTable(title, measure, {seats: mean_score(each) for seats, each in scores.items()}))
    if not found:
        raise ConfigError.at(
            "--kind", "expected runs with an evaluation of a game of two roles for a cross-table, got none"
        )
    return found


def _results(run: RunData, name: str, everything: Sequence[Evaluated]) -> Iterator[tuple[Seats, Any]]:
    """Yield the last results of an evaluation; those of scripted players alone are also looked for in `everything`."""
    now = standings_of(run.evaluated, name)
    yield from ((seats, standing.last) for seats, standing in now.items())
    for seats, standing in standings_of(everything, name).items():
        if seats not in now and not standing.last.learned:
            yield seats, standing.last


def _heights(table: CrossTable) -> list[float]:
    """Return the heights of the columns' names and of each row."""
    num_lines = max(_player(column, MOST_LETTERS).count("\n") + 1 for column in table.seats(1))
    return [LINE * num_lines + 0.1, *[CELL_HEIGHT] * len(table.seats(0))]


def _draw_cross_table(axes: Axes, table: CrossTable) -> None:
    rows, columns = table.seats(0), table.seats(1)
    _write_title(axes, table.title, label(table.measure))
    corner = printable(f"{rows[0].role} \\ {columns[0].role}")
    lines = [[corner, *(_player(column, MOST_LETTERS) for column in columns)]]
    lines += [[_player(row), *(_cell_text(table.scores.get((row, column))) for column in columns)] for row in rows]
    cells = _write_table(axes, lines, _heights(table))
    for number, seat in enumerate(rows, start=1):
        cells[number, 0].set_text_props(ha="left", weight=_weight(seat))
    for number, seat in enumerate(columns, start=1):
        cells[0, number].set_text_props(weight=_weight(seat))
    low, high = ends_of_colours(score.value for score in table.scores.values())
    for (row, column), score in table.scores.items():
        if math.isfinite(score.value):
            share = (score.value - low) / (high - low) if high > low else 0.5
            colour = matplotlib.colormaps["Blues"](PALEST + (FULLEST - PALEST) * share)
            cell = cells[rows.index(row) + 1, columns.index(column) + 1]
            cell.visible_edges = "closed"
            cell.set(facecolor=colour, edgecolor="white", linewidth=1.2)
            cell.set_text_props(color="white" if _luminance(colour) < 0.18 else "black")  # a contrast of 4.5 to 1


def _cell_text(score: Estimate | None) -> str:
    return "–" if score is None or not math.isfinite(score.value) else "\n".join(_pieces_of(score))


def _luminance(colour: Sequence[float]) -> float:
    """Return the luminance, 0 to 1, of a colour in sRGB, as the guidelines for accessible pages (WCAG) define it."""
    red, green, blue = (x / 12.92 if x <= 0.03928 else ((x + 0.055) / 1.055) ** 2.4 for x in colour[:3])
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _player(seat: Seat, width: int = 1000) -> str:
    return "\n".join(wrap(label(seat.player), width))


def _weight(seat: Seat) -> str:
    return "bold" if seat.learns else "normal"


# ---- on paper ------------------------------------------------------------------------------------------


def _page(heights: Sequence[float]) -> tuple[Figure, list[Axes]]:
    """Make axes one below the other, on a page that fits its content when it is saved."""
    figure = Figure(figsize=(WIDTH, sum(heights)))
    spaces = {"left": 0.0, "right": 1.0, "bottom": 0.0, "top": 1.0, "hspace": 0.0, "height_ratios": heights}
    grid = figure.subplots(len(heights), 1, squeeze=False, gridspec_kw=spaces)
    for axes in grid.flat:
        axes.set_axis_off()
    return figure, list(grid.flat)


def _write_title(axes: Axes, title: str, measure: str = "") -> None:
    axes.text(0, 1, title, va="top", fontsize=FONT_SIZE + 1, zorder=-1)
    axes.annotate(measure, (0, 1), (0, -13), textcoords="offset points", va="top", color="#444444", zorder=-1)


def _write_table(axes: Axes, lines: Sequence[Sequence[str]], heights: Sequence[float]) -> dict[tuple[int, int], Cell]:
    """Write a table at the bottom of axes, as wide as its texts; returns its cells by row and column."""
    table = axes.table(lines, cellLoc="center", edges="open", loc="lower left")
    table.auto_set_font_size(False)
    table.set_fontsize(FONT_SIZE)
    table.auto_set_column_width(list(range(len(lines[0]))))
    table.set_clip_on(False)
    whole = axes.get_position().height * axes.get_figure().get_figheight()  # type: ignore[union-attr]
    cells = table.get_celld()
    for (row, _), cell in cells.items():
        cell.set_height(heights[row] / whole)
    return cells
