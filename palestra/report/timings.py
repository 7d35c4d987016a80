"""The section that shows where the time went, and how fast training was."""

import math
from collections.abc import Sequence
from functools import partial

from matplotlib.figure import Figure

from palestra.recording.results import duration_text, label
from palestra.report.blocks import Block, Captioned, Cell, FigureGrid, Legend, Note, Section, Table
from palestra.report.figures import GRID, SERIES, Figures, paint_curves, short
from palestra.report.groups import Group, metric_curve, step_unit, without_intervals
from palestra.report.learning import present
from palestra.report.reading import RunData
from palestra.runtime.timing import PHASES

BAR_HEIGHT = 0.26  # inches


def time_section(groups: Sequence[Group], figures: Figures) -> Section:
    runs = [run for group in groups for run in group.runs]
    times = {run.name: time for run in runs if sum((time := _times(run)).values()) > 0}
    if not times:
        return Section("time", "Where the time went", [Note("The records hold no times.")])
    phases = [phase for phase in PHASES if any(time[phase] > 0 for time in times.values())]
    size = (5.6, 0.4 + BAR_HEIGHT * len(times))
    text = "; ".join(f"{name}: {_shares_text(time)}" for name, time in times.items())
    drawn = figures.draw("Share of the time by phase", text, lambda figure: _paint_shares(figure, times), size)
    rows = [
        [
            Cell(name),
            *(Cell(_time_text(time[p]), time[p], f"{time[p] / sum(time.values()):.0%}") for p in phases),
            Cell(_time_text(sum(time.values())), sum(time.values())),
        ]
        for name, time in times.items()
    ]
    caption = "Time by phase, in hours, minutes and seconds, and its share of all."
    waits = [Note(f"{run.name}: {told}") for run in runs if (told := waits_text(run))]
    blocks: list[Block] = [
        Legend([(number, phase) for number, phase in enumerate(PHASES) if phase in phases]),
        FigureGrid([Captioned(drawn)], is_wide=True),
        Table(caption, ["run", *phases, "all"], rows),
        *waits,
        FigureGrid([_speed(groups, name, figures) for name in _speeds(runs)]),
    ]
    return Section("time", "Where the time went", blocks)


def _speeds(runs: Sequence[RunData]) -> list[str]:
    """Return the names of the recorded rates, as opt_steps_per_s."""
    names = (name.removeprefix("clock/") for run in runs for name in run.metrics if name.startswith("clock/"))
    return list(dict.fromkeys(name for name in names if name.endswith("_per_s")))


def _times(run: RunData) -> dict[str, float]:
    """Return the seconds by phase, from the training records."""
    found = {phase: [value for _, value in run.metrics.get(f"clock/time/{phase}", [])] for phase in PHASES}
    return {phase: math.fsum(value for value in values if value > 0) for phase, values in found.items()}


def waits_text(run: RunData) -> str:
    """Say how long each process of a run has waited for the others; "" for a run in one process."""
    found = {}
    for name, values in run.metrics.items():
        if name.startswith("clock/waited_s/"):
            found[int(name.rpartition("/")[2])] = math.fsum(value for _, value in values)
    told = ", ".join(f"rank {rank} {_time_text(found[rank])}" for rank in sorted(found))
    return f"its processes have waited for each other: {told}" if told else ""


def _time_text(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 60 else duration_text(seconds)


def _shares_text(time: dict[str, float]) -> str:
    return ", ".join(f"{phase} {seconds / sum(time.values()):.0%}" for phase, seconds in time.items() if seconds)


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


def _speed(groups: Sequence[Group], name: str, figures: Figures) -> Captioned:
    unit = step_unit(groups)
    curves, colours = present(without_intervals(metric_curve(group, f"clock/{name}", unit)) for group in groups)
    title = label(name.replace("_per_s", " per second"))
    text = f"{title} of training alone, over {label(unit)}."
    paint = partial(paint_curves, curves=curves, colours=colours, levels=[], unit=unit, y_label="per second")
    return Captioned(figures.draw(title, text, paint))
