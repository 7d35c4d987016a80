"""The figures of a sweep: the values of trials in their order, over the space, and over training.

They are not Optuna's own plots, because those have no dark colours for the page, are squeezed by a single trial with a
value far off, leave trials of other bases out of the parallel coordinates, and do not mark the best trial.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise, starmap
from typing import Any, Self

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator

from palestra.recording.results import printable
from palestra.report.figures import CARD, GRID, INK, LEVELS, NUM_LEVELS, NUM_SERIES, SERIES, count_steps, short
from palestra.report.sweep_reading import Axis, SweepData, TrialCurve, TrialData, finite
from palestra.sweeps.naming import choice_texts
from palestra.sweeps.trials import mean

BEST = SERIES[1]  # the colour of the best trial
FURTHEST = 6  # times the distance from the best to that which three quarters reach: the edge of what is drawn
FEW_LINES = 60  # that do not hide each other
MOST_LABELS = 12  # of the choices of an axis
LONGEST_CHOICE = 14
ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"
ABSENT = -0.11  # the height of trials that do not have a key
GOLDEN = (math.sqrt(5) - 1) / 2  # its multiples lie evenly in 0..1: dots beside each other do not hide each other
BAR_HEIGHT = 0.3  # inches
CHARACTER = 0.08  # the width of one in a label, at most, in inches
SLICE = 3.5  # the least width of the axes of a slice, in inches

# ---- the axis of values --------------------------------------------------------------------------------


@dataclass(frozen=True)
class ValueRange:
    """The range of the objective's values that is drawn.

    Values beyond it, also infinite ones, are drawn at its edge.
    """

    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float], goal: str) -> Self:
        known = sorted(value for value in values if math.isfinite(value))
        if not known:
            return cls(0.0, 1.0)
        low, high, quarter = known[0], known[-1], len(known) // 4
        if goal == "max" and known[quarter] < high:
            low = next(value for value in known if value >= high - FURTHEST * (high - known[quarter]))
        elif goal == "min" and known[-1 - quarter] > low:
            high = next(value for value in known[::-1] if value <= low + FURTHEST * (known[-1 - quarter] - low))
        return cls(low, high) if low < high else cls(low - 0.5 * max(1.0, abs(low)), low + 0.5 * max(1.0, abs(low)))

    def shown(self, value: float) -> float:
        return value if math.isnan(value) else min(max(value, self.low), self.high)

    def num_beyond(self, values: Sequence[float]) -> int:
        return sum(not math.isnan(value) and value != self.shown(value) for value in values)

    def share(self, value: float) -> float:
        return (self.shown(value) - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        return [tick for tick in MaxNLocator(5).tick_values(self.low, self.high) if self.low <= tick <= self.high]

    def fit(self, axes: Axes, room_below: float = 0.05) -> None:
        """Set the limits of the vertical axis."""
        size = self.high - self.low
        axes.set_ylim(self.low - room_below * size, self.high + 0.05 * size)


# ---- values over trials --------------------------------------------------------------------------------


def paint_values(figure: Figure, data: SweepData, trials: Sequence[TrialData], values: ValueRange) -> None:
    """Paint a mark for each of the trials, and the best value so far, of all trials, as a line.

    What has no value stands at the bottom.
    """
    axes = figure.subplots()
    done = [trial for trial in data.trials if trial.state == "succeeded"]
    best = list(accumulate((trial.value for trial in done), max if data.config.objective.goal == "max" else min))
    if best:
        steps = [*(trial.number for trial in done), data.trials[-1].number]
        line = [values.shown(value) for value in (*best, best[-1])]
        axes.step(steps, line, where="post", color=BEST, linewidth=1.6, label="best so far", zorder=3)
    size = values.high - values.low
    bottom = values.low - 0.15 * size
    marks = {"succeeded": ("o", 0), "pruned": ("v", 7), "failed": ("x", 3), "skipped": ("|", 4), "running": ("D", 2)}
    for state, (mark, number) in marks.items():
        mine = [trial for trial in trials if trial.state == state]
        at = [last_value(trial) for trial in mine]
        heights = [bottom if math.isnan(value) else values.shown(value) for value in at]
        if mine:
            fill, size_of_mark = "none" if state in ("pruned", "running") else "full", 4 if state == "succeeded" else 5
            style: dict[str, Any] = {"color": SERIES[number], "markersize": size_of_mark, "fillstyle": fill}
            axes.plot([trial.number for trial in mine], heights, mark, alpha=0.75, label=state, **style)
    values.fit(axes)
    if any(math.isnan(last_value(trial)) for trial in trials):
        values.fit(axes, room_below=0.22)
        axes.axhline(values.low - 0.08 * size, color=INK, linewidth=0.7, linestyle=(0, (2, 3)))
        axes.yaxis.set_major_locator(FixedLocator(values.ticks()))
    axes.set_xlabel("trial")
    axes.set_ylabel(short(data.config.objective.measure))
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    figure.legend(loc="outside upper left", ncols=6, frameon=False, handletextpad=0.3, columnspacing=1.2)


def last_value(trial: TrialData) -> float:
    """Return a trial's value or, if it did not succeed, the last that it has reported, if there is one."""
    if trial.state in ("succeeded", "failed", "skipped"):
        return trial.value
    return next((value for _, value in reversed([*trial.reported.items()]) if math.isfinite(value)), math.nan)


# ---- lineage -------------------------------------------------------------------------------------------


def paint_lineage(figure: Figure, lineages: Sequence[Sequence[TrialData]], measure: str, values: ValueRange) -> None:
    """Paint a line from each trial's parent to it, at their values, over how many come before them.

    lineages: of the trials that are drawn, each the last of its own; that of the best trial first.
    """
    axes = figure.subplots()
    for line in reversed(lineages):
        is_best = line is lineages[0]
        shown = line if is_best else line[-2:]
        steps = range(len(line) - len(shown), len(line))
        heights = [values.shown(trial.value) for trial in shown]
        style: dict[str, Any] = {"color": BEST if is_best else SERIES[0], "linewidth": 2.4 if is_best else 0.8}
        axes.plot(steps, heights, "o-", markersize=4.5 if is_best else 3, alpha=1.0 if is_best else 0.6, **style)
    values.fit(axes)
    axes.set_xlabel("generation")
    axes.set_ylabel(short(measure))
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))


# ---- importance ----------------------------------------------------------------------------------------


def paint_importance(figure: Figure, shares: Mapping[str, float]) -> None:
    """Paint a bar for each key. shares: by the labels of keys, the largest first."""
    axes = figure.subplots()
    names = list(shares)
    bars = axes.barh(range(len(names)), [100 * shares[name] for name in names], color=SERIES[0], height=0.65)
    axes.bar_label(bars, [f"{shares[name]:.0%}" for name in names], padding=3)
    axes.set_yticks(range(len(names)), [short(name) for name in names])
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlim(0, 118 * max(shares.values()))
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}%")
    axes.grid(axis="y", visible=False)


# ---- parallel coordinates ------------------------------------------------------------------------------


def paint_parallel(
    figure: Figure, data: SweepData, axes_shown: Sequence[Axis], trials: Sequence[TrialData], values: ValueRange
) -> None:
    """Paint a line for each of the trials across the axes of the space, to its value at the right.

    trials: the best first.
    """
    axes = figure.subplots()
    num = max(2, len(data.ranked))  # the better the rank of a trial, the stronger its colour
    colours = {trial.number: LEVELS[-1 - rank * NUM_LEVELS // num] for rank, trial in enumerate(data.ranked)}
    for trial in reversed(trials):
        heights = [_parallel_height(axis, trial) for axis in axes_shown] + [values.share(trial.value)]
        is_best = data.best is not None and trial.number == data.best.number
        axes.plot(
            range(len(heights)),
            heights,
            color=BEST if is_best else colours[trial.number],
            linewidth=2.2 if is_best else 1.0 if len(trials) <= FEW_LINES else 0.7,
            alpha=1.0 if is_best else 0.85 if len(trials) <= FEW_LINES else 0.6,
        )
    for place, axis in enumerate(axes_shown):
        ticks = [(_height(axis, tick), text) for tick, text in _ticks(axis)]
        is_everywhere = all(axis.key in trial.point for trial in trials)
        _draw_axis(axes, place, axis.label, ticks if is_everywhere else [(ABSENT, "absent"), *ticks])
    texts = [(values.share(tick), f"{tick:g}") for tick in values.ticks()]
    _draw_axis(axes, len(axes_shown), data.config.objective.measure, texts)
    axes.set_xlim(-0.15, len(axes_shown) + 0.4)
    axes.set_ylim(-0.15, 1.14)
    axes.axis("off")


def _parallel_height(axis: Axis, trial: TrialData) -> float:
    """Return the height at which a trial's line crosses an axis.

    Choices are spread a little, so that lines through the same one do not hide each other.
    """
    if axis.key not in trial.point:
        return ABSENT
    spread = min(0.1, 0.6 / len(axis.choices)) * (_jitter(trial) - 0.5) if axis.choices else 0.0
    return _height(axis, trial.point[axis.key]) + spread


def _height(axis: Axis, value: Any) -> float:
    """Return the height of a value, 0 to 1; choices leave room for their spread at the ends."""
    return 0.06 + 0.88 * axis.share(value) if axis.choices else axis.share(value)


def _draw_axis(axes: Axes, place: int, name: str, ticks: Sequence[tuple[float, str]]) -> None:
    axes.vlines(place, 0, 1, color=INK, linewidth=1, zorder=4)
    axes.text(place, 1.1 if place % 2 == 0 else 1.04, short(name), ha="center", va="bottom", fontsize=8.5)
    for height, text in ticks:
        axes.plot([place, place + 0.03], [height, height], color=INK, linewidth=1, zorder=4)
        behind = {"facecolor": CARD, "alpha": 0.75, "edgecolor": "none", "pad": 0.6}
        axes.text(place + 0.05, height, text, va="center", fontsize=8, zorder=5, bbox=behind)


def _ticks(axis: Axis, width: float | None = None) -> list[tuple[Any, str]]:
    """Return values of an axis with their texts: its choices, or some numbers with both ends.

    width: of an axis along which texts stand side by side, in inches.
    """
    if axis.choices:
        step = math.ceil(len(axis.choices) / MOST_LABELS)
        return list(zip(axis.choices, _choice_labels(axis), strict=True))[::step]
    if axis.is_log:
        first, last = math.ceil(math.log10(axis.low) - 1e-9), math.floor(math.log10(axis.high) + 1e-9)
        powers = [10.0**exponent for exponent in range(first, last + 1)]
        numbers = [axis.low, *(power for power in powers if axis.low < power < axis.high), axis.high]
    else:
        inside = MaxNLocator(5, integer=isinstance(axis.low, int)).tick_values(axis.low, axis.high)
        numbers = [axis.low, *(tick for tick in inside if 0.06 < axis.share(tick) < 0.94), axis.high]
    lowest, *between, highest = [(number, f"{number:.4g}") for number in numbers]
    kept = [lowest]
    for tick in between:
        if _are_apart(axis, kept[-1], tick, width) and _are_apart(axis, tick, highest, width):
            kept.append(tick)
    return [*kept, highest]


def _are_apart(axis: Axis, tick: tuple[float, str], later: tuple[float, str], width: float | None) -> bool:
    distance = axis.share(later[0]) - axis.share(tick[0])
    return distance > 0.06 if width is None else distance * width > _room(tick[1], later[1])


def _room(text: str, other: str) -> float:
    """Return how far the middles of two labels side by side must be from each other, in inches."""
    return CHARACTER * ((len(text) + len(other)) / 2 + 1)


def _choice_labels(axis: Axis) -> list[str]:
    """Return the choices as texts, each cut to the room that there is.

    A text is cut at its end, or at its beginning where the ends are what differs.
    """
    texts = list(map(printable, choice_texts(*axis.choices).values()))
    cut = [text if len(text) <= LONGEST_CHOICE else f"{text[: LONGEST_CHOICE - 1]}{ELLIPSIS}" for text in texts]
    if len(set(cut)) == len(texts):
        return cut
    return [text if len(text) <= LONGEST_CHOICE else f"{ELLIPSIS}{text[1 - LONGEST_CHOICE :]}" for text in texts]


def _jitter(trial: TrialData) -> float:
    return trial.number * GOLDEN % 1.0


# ---- slices --------------------------------------------------------------------------------------------


def paint_slice(figure: Figure, data: SweepData, axis: Axis, trials: Sequence[TrialData], values: ValueRange) -> None:
    """Paint the value of each of the trials over one key. trials: the best first.

    Each choice has the interquartile mean of all its trials as a mark.
    """
    axes = figure.subplots()
    names = list(data.bases)
    for number, name in enumerate(names):
        mine = [trial for trial in trials if axis.key in trial.point and data.base_of(trial) == name]
        colour, heights = SERIES[number % NUM_SERIES], [values.shown(trial.value) for trial in mine]
        spread = 0.5 if axis.choices else 0.0  # of the dots of one choice
        places = [axis.at(trial.point[axis.key]) + spread * (_jitter(trial) - 0.5) for trial in mine]
        axes.plot(places, heights, "o", color=colour, markersize=3.8, alpha=0.6, markeredgewidth=0)
        if mine and mine[0] is data.best:
            star = BEST if len(names) == 1 else colour
            edge: dict[str, Any] = {"markeredgecolor": INK, "markeredgewidth": 0.8}
            axes.plot(places[:1], heights[:1], "*", color=star, markersize=12, zorder=4, **edge)
    for place, choice in enumerate(axis.choices):
        of_choice = [trial.value for trial in data.ranked if trial.point.get(axis.key, axis) == choice]
        if known := list(filter(math.isfinite, of_choice)):
            axes.hlines(values.shown(mean(known)), place - 0.32, place + 0.32, color=INK, linewidth=2.2, zorder=3)
    if axis.is_log:
        axes.set_xscale("log")
    values.fit(axes)
    _fit_slice(axes, axis)
    axes.set_ylabel(short(data.config.objective.measure))


def _fit_slice(axes: Axes, axis: Axis) -> None:
    if axis.choices:
        axes.set_xlim(-0.6, len(axis.choices) - 0.4)
        step = math.ceil(len(axis.choices) / MOST_LABELS)
        places = range(0, len(axis.choices), step)
        texts = _choice_labels(axis)[::step]
        is_tight = max(starmap(_room, pairwise(texts)), default=0.0) > SLICE * step / len(axis.choices)
        axes.set_xticks(places, texts, rotation=30 if is_tight else 0, ha="right" if is_tight else "center")
        axes.grid(axis="x", visible=False)
    elif axis.is_log:
        room = (axis.high / axis.low) ** 0.04
        axes.set_xlim(axis.low / room, axis.high * room)
        ticks = _ticks(axis, SLICE)
        axes.set_xticks([place for place, _ in ticks], [text for _, text in ticks])
        axes.xaxis.set_minor_locator(NullLocator())
    else:
        room = 0.04 * (axis.high - axis.low)
        axes.set_xlim(axis.low - room, axis.high + room)
        axes.xaxis.set_major_locator(MaxNLocator(5))


# ---- curves --------------------------------------------------------------------------------------------


def paint_trial_curves(
    figure: Figure, data: SweepData, curves: Sequence[TrialCurve], unit: str, values: ValueRange, num_named: int
) -> None:
    """Paint the objective over training.

    The best trials, which stand first, have colours and names; the others are thin, and end with a mark where they were
    pruned.
    """
    axes = figure.subplots()
    named = [curve for curve in curves[:num_named] if curve.trial.state == "succeeded"]
    order = (1, 0, 2, 3, 4)
    for curve in [*(curve for curve in curves if curve not in named), *reversed(named)]:
        steps, heights = zip(*((step, values.shown(value)) for step, value in finite(curve.points)), strict=True)
        is_pruned = curve.trial.state == "pruned"
        if curve in named:
            rank = named.index(curve)
            colour, width = SERIES[order[rank % len(order)]], 2.4 if rank == 0 else 1.5
            axes.plot(steps, heights, color=colour, linewidth=width, label=f"trial {curve.trial.number}")
        else:
            axes.plot(steps, heights, color=SERIES[7] if is_pruned else INK, linewidth=0.8, alpha=0.5)
        if is_pruned:
            axes.plot(steps[-1:], heights[-1:], "x", color=SERIES[7], markersize=4.5, alpha=0.8)
    count_steps(axes, unit)
    axes.set_ylabel(short(data.config.objective.measure))
    axes.grid(color=GRID)
    if named:
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(handles[::-1], labels[::-1], loc="outside upper left", ncols=5, frameon=False)
