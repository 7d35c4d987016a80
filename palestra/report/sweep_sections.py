"""The sections of a sweep's report that hold figures: values, importance, the space, and training."""

from collections.abc import Sequence
from functools import partial

from palestra.recording.results import label, thinned
from palestra.report.blocks import Block, Captioned, Cell, FigureGrid, Legend, Note, Section, Table
from palestra.report.figures import Figures
from palestra.report.sweep_curves import TrialCurve, finite, trial_curves
from palestra.report.sweep_figures import (
    BAR_HEIGHT,
    ValueRange,
    last_value,
    paint_importance,
    paint_parallel,
    paint_slice,
    paint_trial_curves,
    paint_values,
    parallel_size,
)
from palestra.report.sweep_importance import FEW_TRIALS, Importance, importance_of
from palestra.report.sweep_reading import Axis, SweepData, TrialData, best_text, objective_text

MOST_DOTS = 400  # of a figure
MOST_LINES = 150  # of the parallel coordinates
MOST_AXES = 10  # of these
MOST_AXES_WIDE = 5  # that need no more width than other figures
MOST_SLICES = 24
MOST_POINTS = 30  # of a curve's table of numbers
NUM_BEST = 50  # trials that are drawn in any case
NUM_NAMED = 5  # trials whose curves have names
WIDE = (7.2, 3.2)  # inches
NOTHING = "There is nothing to draw: no key has several values, or no trial has succeeded."


def figure_sections(data: SweepData, figures: Figures) -> list[Section]:
    """Make the sections, with the keys in the order of their importance."""
    importance = importance_of(data, data.ranked)
    axes = sorted(data.axes, key=lambda axis: -importance.shares.get(axis.key, 0.0))
    values = ValueRange.of([trial.value for trial in data.ranked], data.config.objective.goal)
    return [
        _values_section(data, figures),
        _importance_section(data, importance, figures),
        _parallel_section(data, axes[:MOST_AXES], values, figures),
        _slices_section(data, axes, values, figures),
        _curves_section(data, figures),
    ]


def _values_section(data: SweepData, figures: Figures) -> Section:
    if not data.trials:
        return Section("values", "Value over trials", [Note("There is no trial yet.")])
    heights = [last_value(trial) for trial in data.trials]
    values = ValueRange.of(heights, data.config.objective.goal)
    chosen = {trial.number for trial in _chosen(data.ranked, MOST_DOTS)}
    others = [trial for trial in data.trials if trial.state != "succeeded"]
    chosen |= {trial.number for trial in thinned(others, MOST_DOTS)}
    shown = [trial for trial in data.trials if trial.number in chosen]
    measure = data.config.objective.measure
    text = f"{measure} of each trial in the order of trials, and the best so far. {best_text(data)}"
    paint = partial(paint_values, data=data, trials=shown, values=values)
    grid = FigureGrid([Captioned(figures.draw("Value of each trial", text, paint, WIDE))], is_wide=True)
    lines = ["Trials without a value stand at the bottom."] if any(t.state != "succeeded" for t in shown) else []
    lines += [_beyond_text(values, heights), _left_out_text(len(shown), len(data.trials))]
    return Section("values", "Value over trials", [grid, *_notes(lines)])


def _importance_section(data: SweepData, importance: Importance, figures: Figures) -> Section:
    blocks: list[Block] = []
    found = {f"All {importance.num_trials:,} trials": importance}
    for name in data.bases if len(data.bases) > 1 else ():
        each = importance_of(data, [trial for trial in data.ranked if data.base_of(trial) == name])
        found[f"{each.num_trials:,} trials of {name}"] = each
    drawn = {title: each for title, each in found.items() if each.shares}
    if drawn:
        what = "a key is important if the best tenth of the trials has other values of it than all trials."
        is_few = any(each.num_trials < FEW_TRIALS for each in drawn.values())
        few = f" Of fewer than {FEW_TRIALS} trials this is a hint at most." if is_few else ""
        grid = FigureGrid([_importance_figure(data, *each, figures) for each in drawn.items()])
        blocks += [grid, Note(f"By PED-ANOVA: {what}{few}")]
    for title, each in found.items():
        if not each.shares:
            where = f" ({title})" if len(found) > 1 else ""
            blocks.append(Note(f"The importance of keys is unknown{where}: {each.why_not}."))
    return Section("importance", "Importance of keys", blocks)


def _importance_figure(data: SweepData, title: str, importance: Importance, figures: Figures) -> Captioned:
    shares = {data.labels[key]: share for key, share in list(importance.shares.items())[:MOST_SLICES]}
    text = f"The importance of keys: {', '.join(f'{name} {share:.0%}' for name, share in shares.items())}."
    size = (4.4, 0.55 + BAR_HEIGHT * len(shares))
    drawn = figures.draw(title, text, partial(paint_importance, shares=shares), size)
    rows = [[Cell(key), Cell(f"{share:.1%}", share)] for key, share in importance.shares.items()]
    return Captioned(drawn, Table(f"Importance of keys: {title}", ["key", "share"], rows))


def _parallel_section(data: SweepData, axes: Sequence[Axis], values: ValueRange, figures: Figures) -> Section:
    if not data.ranked or not axes:
        return Section("parallel", "Parallel coordinates", [Note(NOTHING)])
    shown = _chosen(data.ranked, MOST_LINES)
    text = f"A line for each trial across {', '.join(axis.label for axis in axes)}, to its value. {best_text(data)}"
    paint = partial(paint_parallel, data=data, axes_shown=axes, trials=shown, values=values)
    drawn = figures.draw("Trials across the space", text, paint, parallel_size(len(axes)))
    grid = FigureGrid([Captioned(drawn)], is_wide=True, is_full=len(axes) > MOST_AXES_WIDE)
    lines = ["The better the rank of a trial, the stronger its line; the best one is bold."]
    if len(data.bases) > 1:
        lines.append("Where its base does not have a key, a line passes below the axis.")
    if len(data.axes) > len(axes):
        lines.append(f"Of {len(data.axes)} keys the {len(axes)} most important ones are drawn.")
    notes = _notes([*lines, *_limits(data, values, len(shown))])
    return Section("parallel", "Parallel coordinates", [grid, *notes])


def _slices_section(data: SweepData, axes: Sequence[Axis], values: ValueRange, figures: Figures) -> Section:
    if not data.ranked or not axes:
        return Section("slices", "Value over each key", [Note(NOTHING)])
    shown = _chosen(data.ranked, MOST_DOTS)
    legend = [Legend(list(enumerate(data.bases)))] if len(data.bases) > 1 else []
    grid = []
    for axis in axes[:MOST_SLICES]:
        text = f"{data.config.objective.measure} of trials over {axis.key}."
        paint = partial(paint_slice, data=data, axis=axis, trials=shown, values=values)
        grid.append(Captioned(figures.draw(axis.label, text, paint)))
    lines = ["A dot is a trial that succeeded; the star is the best one."]
    if any(axis.choices for axis in axes):
        lines.append("The bars of choices are interquartile means of the finite values.")
    if len(axes) > MOST_SLICES:
        lines.append(f"Not drawn, because less important: {', '.join(axis.label for axis in axes[MOST_SLICES:])}.")
    notes = _notes([*lines, *_limits(data, values, len(shown))])
    return Section("slices", "Value over each key", [*legend, FigureGrid(grid), *notes])


def _curves_section(data: SweepData, figures: Figures) -> Section:
    found = trial_curves(data)
    curves = [curve for curve in found.curves if finite(curve.points)]
    if not any(len(curve.points) > 1 for curve in curves):
        what = "No trial has been evaluated more than once." if curves else "There is no evaluation of a trial yet."
        source = [Note(found.source)] if "cannot be read" in found.source else []
        return Section("curves", "Trials over training", [Note(what), *source])
    values = ValueRange.of([value for curve in curves for _, value in curve.points], data.config.objective.goal)
    named = [curve for curve in curves[:NUM_NAMED] if curve.trial.state == "succeeded"]
    text = f"{data.config.objective.measure} of trials over {label(found.unit)}. " + " ".join(map(_curve_text, named))
    paint = partial(paint_trial_curves, data=data, curves=curves, unit=found.unit, values=values, num_named=NUM_NAMED)
    drawn = figures.draw("Objective over training", text, paint, WIDE)
    grid = FigureGrid([Captioned(drawn, _curve_table(data, named, found.unit))], is_wide=True)
    is_cut = any(curve.trial.state == "pruned" for curve in curves)
    lines = [found.source, "The best trials have names.", "A cross ends a trial that was pruned." if is_cut else ""]
    beyond = values.num_beyond([value for curve in curves for _, value in curve.points])
    lines.append(f"{beyond:,} values that are far worse are drawn at the edge." if beyond else "")
    notes = _notes([*lines, _left_out_text(len(curves), found.num_trials)])
    return Section("curves", "Trials over training", [grid, *notes])


def _curve_text(curve: TrialCurve) -> str:
    (first, begin), (last, end) = finite(curve.points)[0], finite(curve.points)[-1]
    number = curve.trial.number
    return f"Trial {number}: from {objective_text(begin)} at {first:,} to {objective_text(end)} at {last:,}."


def _curve_table(data: SweepData, curves: Sequence[TrialCurve], unit: str) -> Table | None:
    rows = [
        [Cell(f"{step:,}", step), Cell(str(curve.trial.number)), Cell(objective_text(value), value)]
        for curve in curves
        for step, value in thinned(finite(curve.points), MOST_POINTS)
    ]
    measure = data.config.objective.measure
    return Table(f"{measure} over {label(unit)}", [label(unit), "trial", measure], rows) if rows else None


# ---- what several sections say ---------------------------------------------------------------------------


def _chosen(trials: Sequence[TrialData], most: int) -> list[TrialData]:
    """Return at most so many of the trials: the NUM_BEST best, which stand first, and others evenly chosen."""
    return [*trials[:NUM_BEST], *thinned(trials[NUM_BEST:], most - NUM_BEST)]


def _limits(data: SweepData, values: ValueRange, num_shown: int) -> list[str]:
    """Say what figures of the trials that succeeded do not show."""
    beyond = _beyond_text(values, [trial.value for trial in data.ranked])
    return [_left_out_text(num_shown, len(data.ranked)), beyond]


def _left_out_text(num_shown: int, num_trials: int) -> str:
    what = f"Drawn are {num_shown:,} of {num_trials:,} trials: the best ones, and others evenly chosen."
    return what if num_shown < num_trials else ""


def _beyond_text(values: ValueRange, of_trials: Sequence[float]) -> str:
    beyond = values.num_beyond(of_trials)
    if beyond == 0:
        return ""
    return f"{beyond:,} trial{' is' if beyond == 1 else 's are'} far beyond the range drawn, and stand at its edge."


def _notes(lines: Sequence[str]) -> list[Note]:
    return [Note(" ".join(filter(None, lines)))] if any(lines) else []
