"""Figures for papers: curves of runs over training as PDF, SVG or PNG, a panel for each metric or pairing."""

import io
import math
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from palestra.config import ConfigError
from palestra.recording.plots import LEARNED_COLOURS, LEVEL_COLOURS
from palestra.recording.results import label, path_of_pairing, printable, thinned
from palestra.report.evaluation_tables import evaluation_names, pairings
from palestra.report.figures import MOST_POINTS, PLAIN, count_steps
from palestra.report.groups import (
    FEWEST_OF_A_BAND,
    NUM_RESAMPLES,
    Group,
    axis_of,
    common_counters,
    group_runs,
    repeated_seeds,
    reported_score,
)
from palestra.report.reading import read_runs
from palestra.run.tables import chosen_names, in_words, rows_of_records
from palestra.runtime.scores import Estimate
from palestra.runtime.statistics import interquartile_mean_curve

SHARE = 0.95  # of the resamples, that lies in a band
COLOURS = (*LEARNED_COLOURS, *LEVEL_COLOURS)
DASHES = ("-", "--", ":", "-.")  # when the colours are used up
MOST_COLUMNS = 3
PANEL = (2.9, 2.2)  # inches
LETTER, LINE = 0.085, 0.2  # inches, about the width of a letter and the height of a line
METADATA = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}  # equal runs give equal files
STYLE: Any = {
    **PLAIN,
    "pdf.fonttype": 42,  # texts are TrueType, which journals ask for and editors can change
    "svg.hashsalt": "palestra",
    "axes.titlesize": 9,
    "grid.color": "#dddddd",
    "legend.frameon": False,
}


@dataclass(frozen=True)
class Series:
    """A group of runs with all its numbers. unit: the counter on the horizontal axis."""

    group: Group
    unit: str
    tell: Callable[[str], None]

    @cached_property
    def tracks(self) -> dict[str, dict[str, dict[int, float]]]:
        """All numbers of the runs, as name of the number -> run -> value by step."""
        found: dict[str, dict[str, dict[int, float]]] = {}
        for run in self.group.runs:
            records = [*run.training, *(each.record for each in run.evaluated)]
            for row in rows_of_records(records, run.kind, run.name, 0, self.tell):
                found.setdefault(row.name, {}).setdefault(row.run, {})[row.counters.get(self.unit, 0)] = row.value
        return found

    @cached_property
    def shares(self) -> set[str]:
        """The names of the scores that lie between 0 and 1."""
        return {
            f"{path_of_pairing(each.evaluation.name, pair.players)}/{score}"
            for run in self.group.runs
            for each in run.evaluated
            for pair in each.evaluation.pairs
            for score in pair.declared
            if pair.is_share(score)
        }

    @property
    def game(self) -> str:
        return self.group.runs[0].subject or "an unknown game"

    @property
    def algorithms(self) -> list[str]:
        """The algorithms by which the players learn, for people: DQN, PPO, ..."""
        return list(dict.fromkeys(map(_algorithm_text, self.group.runs[0].learning)))


class Line(NamedTuple):
    """A line of a panel. run: whose it is; empty for several. band: the ends of its interval; None if it has none."""

    run: str
    steps: Sequence[int]
    values: Sequence[float]
    band: tuple[Sequence[float], Sequence[float]] | None


@dataclass(frozen=True)
class Plot:
    """A figure as the content of a file. caption: what its lines and bands are, in a sentence."""

    content: bytes
    caption: str


def plot_runs(
    paths: Sequence[Path],
    x: str | None,
    file_format: str,
    metrics: Sequence[str],
    single: bool,
    tell: Callable[[str], None],
    iqm: bool = False,
) -> Plot:
    """Draw the curves of runs: of several that differ in seed alone the mean with its t interval, as reports do.

    With `iqm` it is the interquartile mean with its bootstrap interval, with `single` each run is a line.

    x: a counter of all runs; None: the usual one of theirs. file_format: pdf, svg or png. metrics: names of numbers, or
    their ends, in which * stands for any text; none: the scores of the players that learn. tell: called with a message
    for each damaged line or file. Raises RunFolderError for a folder that is no run, and ConfigError for a wrong
    argument, and if there is nothing to draw.
    """
    check_format(file_format)
    runs = read_runs(paths)
    x = x or axis_of(runs)
    if x not in (known := common_counters(runs)):
        raise ConfigError.at("--x", f"expected one of {', '.join(known)}, got {x!r}")
    groups = group_runs(runs)
    for line in (*chain.from_iterable(run.faults for run in runs), *repeated_seeds(groups)):
        tell(line)
    all_series = [Series(group, x, tell) for group in groups]
    panels = [
        (game, name)
        for game in dict.fromkeys(series.game for series in all_series)
        for name in _names([series for series in all_series if series.game == game], metrics)
    ]
    with matplotlib.rc_context(STYLE):
        content = saved(_draw(panels, all_series, x, single, iqm), file_format)
    return Plot(content, _caption(all_series, single, iqm))


def check_format(file_format: str) -> None:
    """Raise ConfigError for a format that is not pdf, svg or png."""
    if file_format not in METADATA:
        raise ConfigError.at("--out", f"expected a file that ends in .pdf, .svg or .png, got {'.' + file_format!r}")


def saved(figure: Figure, file_format: str) -> bytes:
    """Return a figure as the content of a file: pdf, svg or png."""
    file = io.BytesIO()
    figure.savefig(file, format=file_format, dpi=200, metadata=METADATA[file_format])
    return file.getvalue()


# ---- what is drawn -------------------------------------------------------------------------------------


def _names(all_series: Sequence[Series], metrics: Sequence[str]) -> list[str]:
    """Return the names of the numbers that are drawn: those that are asked for, or the scores of players that learn.

    Raises ConfigError if there are none.
    """
    known = list(dict.fromkeys(name for series in all_series for name in series.tracks))
    groups = [series.group for series in all_series]
    scores = (
        f"{path_of_pairing(evaluation, pair.players)}/{pair.measure_of(next(seat for seat in seats if seat.learns))}"
        for evaluation in evaluation_names(groups)
        for seats, pair in pairings(groups, evaluation)
    )
    wanted = metrics or [name for name in scores if name in known]
    if not wanted:
        raise ConfigError.at(
            "--metrics", f"expected a name, because no evaluation of a learning player is recorded; {in_words(known)}"
        )
    return chosen_names(known, wanted)


def _lines(series: Series, name: str, single: bool, iqm: bool) -> list[Line]:
    """Return the lines of a group in a panel; none if it has no such number.

    Where several runs are too few for a band, their own lines follow. Raises ConfigError if its runs share no step.
    """
    tracks = series.tracks.get(name, {})
    kept = {run: thinned(sorted(track), MOST_POINTS) for run, track in tracks.items()}
    own = [Line(run, steps, [tracks[run][step] for step in steps], None) for run, steps in kept.items()]
    if single or len(tracks) <= 1:
        return own
    has_band = len(tracks) >= FEWEST_OF_A_BAND
    steps = thinned(sorted(set.intersection(*map(set, tracks.values()))), MOST_POINTS)
    if not steps:
        message = f"the runs of {series.group.label} have {name} at no common number of {label(series.unit)}"
        raise ConfigError.at("plot", f"{message}; draw each by itself with --single")
    by_step = [[track[step] for track in tracks.values()] for step in steps]
    if iqm:
        values = torch.tensor(by_step, dtype=torch.float64).T
        value, low, high = interquartile_mean_curve(values, NUM_RESAMPLES, 0, SHARE).tolist()
    else:
        is_share = name in series.shares
        means = [reported_score(list(map(Estimate.of, values)), name, is_share) for values in by_step]
        value, low, high = (list(ends) for ends in zip(*means, strict=True))
    return [Line("", steps, value, (low, high))] if has_band else [Line("", steps, value, None), *own]


# ---- how it is drawn -----------------------------------------------------------------------------------


def _draw(panels: Sequence[tuple[str, str]], all_series: Sequence[Series], x: str, single: bool, iqm: bool) -> Figure:
    """Draw panels. panels: pairs of a game and the name of the number of its runs that is shown."""
    num_columns = min(len(panels), MOST_COLUMNS)
    num_rows = math.ceil(len(panels) / num_columns)
    figure = Figure(figsize=(0.4 + PANEL[0] * num_columns, PANEL[1] * num_rows), layout="constrained")
    grid = figure.subplots(num_rows, num_columns, squeeze=False).flatten().tolist()
    several_games = len({game for game, _ in panels}) > 1
    kinds = {name.split("/")[1] if name.startswith("evaluation/") else "" for _, name in panels}
    handles: dict[str, Any] = {}
    by_run = single and len(all_series) == 1 and len(all_series[0].group.runs) > 1  # each run has a colour of its own
    run_names = [run.name for run in all_series[0].group.runs]
    for axes, (game, name) in zip(grid, panels, strict=False):
        for number, series in enumerate(all_series):
            if series.game == game:
                lines = _lines(series, name, single, iqm)
                for line in lines:
                    place = run_names.index(line.run) if by_run else number
                    is_thin = not by_run and (single or (line.run != "" and len(lines) > 1))
                    drawn = _draw_line(axes, line, place, is_thin)
                    handles.setdefault(printable(line.run if by_run else series.group.label), drawn)
        title, y_label = panel_texts(name, len(kinds) > 1)
        axes.set_title(f"{printable(game)}: {title}" if several_games else title)
        axes.set_ylabel(y_label)
        count_steps(axes, x)
    for axes in grid[len(panels) :]:
        axes.remove()
    letters = int(figure.get_figwidth() / LETTER)
    title = textwrap.fill(figure_title(all_series), letters)
    figure.suptitle(title, fontsize=10)
    num_lines = title.count("\n") + 1
    if len(handles) > 1:
        fitting = letters // (max(map(len, handles)) + 6)  # each with a line and space before its name
        num_in_row = max(1, min(len(handles), 3, fitting))
        num_lines += math.ceil(len(handles) / num_in_row)
        figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=num_in_row)
    figure.set_figheight(PANEL[1] * num_rows + LINE * num_lines + 0.3)
    return figure


def _draw_line(axes: Axes, line: Line, number: int, thin: bool) -> Any:
    colour, dash = COLOURS[number % len(COLOURS)], DASHES[number // len(COLOURS) % len(DASHES)]
    mark = "." if len(line.steps) <= 30 else None
    width, alpha = (0.9, 0.7) if thin else (1.6, 1.0)
    (drawn,) = axes.plot(line.steps, line.values, dash, color=colour, linewidth=width, alpha=alpha, marker=mark)
    if line.band is not None:
        axes.fill_between(line.steps, *line.band, color=colour, alpha=0.2, linewidth=0)
    return drawn


def panel_texts(name: str, several_kinds: bool) -> tuple[str, str]:
    """Return the title of a panel and the label of its values, as "host vs random" and "rho".

    several_kinds: whether the figure shows more than one evaluation, or training metrics too, so that the title names
    the evaluation.
    """
    kind, owner, *rest = [label(word) for word in name.split("/")] if name.count("/") > 1 else ["", ""]
    if kind == "evaluation":
        pairing, *measure = rest
        title = f"{owner}: {pairing}" if several_kinds else pairing
        if measure[0] == "return":  # figures for papers are read by people alone
            roles = "/".join(measure[1:])
            return title, "return" if " vs " not in pairing and len(measure) == 2 else f"return of {roles}"
        return title, ", ".join(measure[1:]) if measure[0] == "statistics" else "/".join(measure)
    return (owner, ", ".join(rest)) if kind == "players" else ("", label(name))


def _algorithm_text(name: str) -> str:
    """Return how an algorithm is called in a figure: "PPO", "expert iteration", or a class by its name."""
    if ":" in name:
        return name.rpartition(":")[2]
    return name.upper() if len(name) <= 4 else name.replace("_", " ")


def figure_title(all_series: Sequence[Series]) -> str:
    """Return the title of a figure, as "PPO, DQN on CartPole-v1; DQN on polyhedra"."""
    by_game: dict[str, dict[str, None]] = {}
    for series in all_series:
        by_game.setdefault(series.game, {}).update(dict.fromkeys(series.algorithms))
    return printable("; ".join(f"{', '.join(names)} on {game}" if names else game for game, names in by_game.items()))


def _caption(all_series: Sequence[Series], single: bool, iqm: bool) -> str:
    sizes = [len(series.group.runs) for series in all_series]
    if single or max(sizes) == 1:
        return f"lines are single runs ({sum(sizes)})"
    counts = f"{min(sizes)}" if min(sizes) == max(sizes) else f"{min(sizes)} to {max(sizes)}"
    least = f", of {FEWEST_OF_A_BAND} runs or more" if min(sizes) < FEWEST_OF_A_BAND else ""
    has_bands = max(sizes) >= FEWEST_OF_A_BAND
    is_thin = any(1 < size < FEWEST_OF_A_BAND for size in sizes)
    thin = f", thin lines the single runs{' where they are fewer' if has_bands else ''}" if is_thin else ""
    if not iqm:
        return (
            f"lines are means of {counts} runs" + (f", bands their 95% t intervals{least}" if has_bands else "") + thin
        )
    few = " (of fewer than four runs it is their mean)" if min(sizes) < 4 else ""
    bands = f", bands their bootstrapped {SHARE:.0%} intervals{least}" if has_bands else ""
    return f"lines are interquartile means of {counts} runs{few}{bands}{thin}"
