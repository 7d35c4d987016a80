"""Sections on the course of a run: where the time went, how fast training was, and who learned in which epochs."""

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from palestra.config import Config, ConfigError, check, under
from palestra.players.updates import AnyUpdatesConfig
from palestra.recording.results import duration_text, label
from palestra.report.blocks import Block, Cell, FigureGrid, Heading, Legend, Note, Section, Table, count
from palestra.report.figures import GRID, INK, SERIES, Figures, paint_curves, short
from palestra.report.groups import Group, metric_curve, step_unit, without_intervals
from palestra.report.learning import present
from palestra.report.reading import RunData, count_in
from palestra.runtime.timing import PHASES

BAR_HEIGHT = 0.26  # inches


def time_section(groups: Sequence[Group], figures: Figures) -> Section:
    runs = [run for group in groups for run in group.runs]
    times = {run.name: time for run in runs if sum((time := _times(run)).values()) > 0}
    if not times:
        return Section("time", "Where the time went", [Note("The records hold no times.")])
    totals = {name: sum(time.values()) for name, time in times.items()}
    phases = [phase for phase in PHASES if any(time[phase] > 0 for time in times.values())]
    size = (5.6, 0.4 + BAR_HEIGHT * len(times))
    text = "; ".join(
        f"{name}: {', '.join(f'{phase} {seconds / totals[name]:.0%}' for phase, seconds in time.items() if seconds)}"
        for name, time in times.items()
    )
    drawn = figures.draw("Share of the time by phase", text, partial(_paint_shares, times=times), size)
    rows = [
        [
            Cell(name),
            *(Cell(_time_text(time[p]), time[p], f"{time[p] / totals[name]:.0%}") for p in phases),
            Cell(_time_text(totals[name]), totals[name]),
        ]
        for name, time in times.items()
    ]
    caption = "Time by phase, in hours, minutes and seconds, and its share of all."
    names, unit, speeds = dict.fromkeys(name for run in runs for name in run.metrics), step_unit(groups), []
    for name in (name for name in names if name.startswith("clock/") and name.endswith("_per_s")):
        curves, colours = present(without_intervals(metric_curve(group, name, unit)) for group in groups)
        title = label(name.removeprefix("clock/").replace("_per_s", " per second"))
        text = f"{title} of training alone, over {label(unit)}."
        paint = partial(paint_curves, curves=curves, colours=colours, levels=[], unit=unit, y_label="per second")
        speeds.append(figures.draw(title, text, paint))
    blocks: list[Block] = [
        Legend([(number, phase) for number, phase in enumerate(PHASES) if phase in phases]),
        FigureGrid([drawn], is_wide=True),
        Table(caption, ["run", *phases, "all"], rows),
        *(Note(f"{run.name}: {told}") for run in runs if (told := waits_text(run))),
        FigureGrid(speeds),
    ]
    return Section("time", "Where the time went", blocks)


def _times(run: RunData) -> dict[str, float]:
    """Return the seconds by phase, from the training records."""
    found = {phase: [value for _, value in run.metrics.get(f"clock/time/{phase}", [])] for phase in PHASES}
    return {phase: math.fsum(value for value in values if value > 0) for phase, values in found.items()}


def waits_text(run: RunData) -> str:
    """Say how long each process of a run has waited for the others; "" for a run in one process."""
    found = {
        int(name.rpartition("/")[2]): math.fsum(value for _, value in values)
        for name, values in run.metrics.items()
        if name.startswith("clock/waited_s/")
    }
    told = ", ".join(f"rank {rank} {_time_text(found[rank])}" for rank in sorted(found))
    return f"its processes have waited for each other: {told}" if told else ""


def _time_text(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 60 else duration_text(seconds)


def _paint_shares(figure: Figure, times: dict[str, dict[str, float]]) -> None:
    axes = figure.subplots()
    names = list(reversed(times))
    left = [0.0] * len(names)
    for number, phase in enumerate(PHASES):
        shares = [100 * times[name][phase] / sum(times[name].values()) for name in names]
        axes.barh(range(len(names)), shares, left=left, color=SERIES[number], height=0.7)
        left = [start + share for start, share in zip(left, shares, strict=True)]
    axes.set_yticks(range(len(names)), [short(name) for name in names])
    axes.set_xlim(0, 100)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}%")
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", color=GRID)


# ---- who learned when -----------------------------------------------------------------------------------------


MOST_EPOCHS = 10_000_000  # that are looked at
MOST_STRIPES = 360  # of a player
STRIPE_HEIGHT = 0.32  # inches

Shares = np.ndarray[Any, Any]


class _OneUpdates(Config):
    updates: AnyUpdatesConfig
    """in which epochs a player learns"""


def updates_section(groups: Sequence[Group], figures: Figures) -> list[Section]:
    """Make a section on the first run of each group in which a player is frozen; none without such a run."""
    blocks: list[Block] = []
    for group in groups:
        run = group.runs[0]
        learned = _learned(run)
        if any(not epochs.all() for epochs in learned.values()):
            blocks += [Heading(run.name)] if len(groups) > 1 else []
            blocks += [_figure(run, learned, figures), _table(run, learned)]
    what = "In the epochs that are filled a player learned; in the others it was frozen, and played."
    return [Section("updates", "Who learned when", [Note(what), *blocks])] if blocks else []


def _learned(run: RunData) -> dict[str, Shares]:
    """Return for each player that learns whether it did in each of the epochs so far: bool (epochs,)."""
    num = min(run.counters["epochs"], MOST_EPOCHS)
    found: dict[str, Shares] = {}
    for name, player in run.players.items() if num > 0 else ():
        try:
            updates = check({"updates": under(player, "updates")}, _OneUpdates).updates
        except ConfigError:  # it does not learn, or the config is damaged
            continue
        cycle = np.array([updates.learns(epoch) for epoch in range(min(updates.cycle, num))])
        found[name] = np.resize(cycle, num)
    return found


def _figure(run: RunData, learned: Mapping[str, Shares], figures: Figures) -> FigureGrid:
    size = (7.2, 0.75 + STRIPE_HEIGHT * len(learned))
    text = "; ".join(
        f"{name} learned in {int(epochs.sum()):,} of {len(epochs):,} epochs" for name, epochs in learned.items()
    )
    paint = partial(_paint, run=run, learned=learned)
    return FigureGrid([figures.draw("Epochs in which each player learned", f"{text}.", paint, size)], is_wide=True)


def _paint(figure: Figure, run: RunData, learned: Mapping[str, Shares]) -> None:
    axes = figure.subplots()
    num = len(next(iter(learned.values())))
    for place, epochs in enumerate(learned.values()):
        for start, end, share in _stripes(epochs):
            colour = SERIES[place % len(SERIES)]
            axes.broken_barh([(start, end - start)], (place - 0.36, 0.72), color=colour, alpha=share, linewidth=0)
    axes.set_yticks(range(len(learned)), [short(name) for name in learned])
    axes.set_ylim(len(learned) - 0.5, -0.5)
    axes.set_xlim(0, num)
    axes.set_xlabel("epochs")
    axes.grid(axis="y", visible=False)
    counted, opt_steps = _steps(run, num)
    if len(counted) > 1:
        above = axes.secondary_xaxis(
            "top",
            functions=(partial(np.interp, xp=counted, fp=opt_steps), partial(np.interp, xp=opt_steps, fp=counted)),
        )
        above.set_xlabel(label("opt_steps"))
        above.tick_params(colors=INK)


def _steps(run: RunData, num_epochs: int) -> tuple[list[float], list[float]]:
    """Return epochs and opt steps at the training records at which both have grown."""
    epochs, opt_steps = [0.0], [0.0]
    for record in run.training:
        now, steps = count_in(record, "epochs"), count_in(record, "opt_steps")
        if epochs[-1] < now <= num_epochs and opt_steps[-1] < steps:
            epochs.append(now)
            opt_steps.append(steps)
    return epochs, opt_steps


def _stripes(epochs: Shares) -> Iterator[tuple[int, int, float]]:
    """Yield from which epoch on until which one a player learned, and in what share of them.

    Epochs are joined where there are more than MOST_STRIPES; stripes without any are left out.
    """
    edges = np.unique(np.linspace(0, len(epochs), min(len(epochs), MOST_STRIPES) + 1).round().astype(int)).tolist()
    stripes = [(a, b, float(epochs[a:b].mean())) for a, b in pairwise(edges)]
    for share, alike in groupby(stripes, key=itemgetter(2)):
        (start, end, _), *others = alike
        if share > 0:
            yield start, others[-1][1] if others else end, share


def _table(run: RunData, learned: Mapping[str, Shares]) -> Table:
    last = run.training[-1] if run.training else {}
    rows = [
        [
            Cell(name),
            Cell(_words(under(run.config, "players", name, "updates"))),
            count(int(epochs.sum())),
            count(int((~epochs).sum())),
            count(under(last, "players", name, "opt_steps")),
        ]
        for name, epochs in learned.items()
    ]
    caption = "Epochs in which each player learned and was frozen, and its opt steps at the last training record."
    return Table(caption, ["player", "updates", "learned", "frozen", "opt steps"], rows)


def _words(updates: Any) -> str:
    """Return the key `updates` in words, as "alternating periodic, period 5, phase 0"."""
    keys = updates.items() if isinstance(updates, Mapping) else ()
    return ", ".join(label(str(value)) if key == "name" else f"{key} {value}" for key, value in keys)
