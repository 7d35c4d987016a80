"""The report of a sweep: one HTML page on what was searched, what was found, and how each trial went."""

import shlex
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from palestra.config import render
from palestra.recording.results import label
from palestra.report.blocks import Block, Captioned, Cell, Code, Facts, FigureGrid, Heading, Legend, Note, Section, Table
from palestra.report.figures import Figures, thinned
from palestra.report.overview import MOST_ROWS
from palestra.report.page import render_sections, write_page
from palestra.report.sweep_curves import TrialCurve, finite, trial_curves
from palestra.report.sweep_figures import (
    ValueRange,
    importance_size,
    paint_importance,
    paint_parallel,
    paint_slice,
    paint_trial_curves,
    paint_values,
    parallel_size,
)
from palestra.report.sweep_importance import Importance, importance_of
from palestra.report.sweep_reading import (
    STATES,
    Axis,
    SweepData,
    TrialData,
    objective_text,
    point_text,
    read_setting,
    short_labels,
    value_text,
)
from palestra.sweeps.config import SweepConfig
from palestra.sweeps.space import BASE, ChoiceConfig, DimensionConfig, IntegerConfig, LogConfig, UniformConfig

MOST_DOTS = 400  # of a figure
MOST_LINES = 150  # of the parallel coordinates
MOST_AXES = 10  # of these
MOST_SLICES = 24
MOST_TRIALS = 300  # of the table
MOST_POINTS = 30  # of a curve's table of numbers
NUM_BEST = 50  # trials that are drawn in any case
NUM_NAMED = 5  # trials whose curves have names
WIDE = (7.2, 3.2)  # inches


def write_sweep_report(path: Path, out: Path | None, may_connect: bool) -> Path:
    """Write the report of a sweep atomically, and give its path. out: the file; None: report.html in the sweep's
    folder. may_connect: whether to connect to a database that the sweep names. Raises RunFolderError, ConfigError."""
    data = SweepData.read(path, may_connect)
    page = out or path / "report.html"
    write_page(page, render_sweep(data))
    return page


def render_sweep(data: SweepData) -> str:
    """The page, as HTML."""
    figures = Figures()
    importance = importance_of(data, data.ranked)
    axes = sorted(data.axes, key=lambda axis: -importance.shares.get(axis.key, 0.0))
    values = ValueRange.of([trial.value for trial in data.ranked], data.config.objective.goal)
    sections = [
        _overview(data),
        _values_section(data, values, figures),
        _importance_section(data, importance, figures),
        _parallel_section(data, axes[:MOST_AXES], values, figures),
        _slices_section(data, axes, values, figures),
        _curves_section(data, figures),
        _trials_section(data),
        _setting_section(data),
    ]
    return render_sections(data.path.resolve().name, _lead(data), sections)


# ---- what was searched, and what was found -------------------------------------------------------------


def _lead(data: SweepData) -> list[str]:
    objective = data.config.objective
    wanted = "highest" if objective.goal == "max" else "lowest"
    lines = [f"A sweep over {', '.join(data.bases)} for the {wanted} {objective.measure}: {_counts_text(data)}."]
    if data.best is not None:
        best = data.best
        lines.append(f"Best so far is trial {best.number} with {objective_text(best.value)}: {point_text(data, best)}.")
    return lines


def _counts_text(data: SweepData) -> str:
    """22 trials, 9 succeeded, 12 pruned, 1 skipped"""
    states = [trial.state for trial in data.trials]
    counts = [f"{states.count(state):,} {state}" for state in STATES if state in states]
    return ", ".join([f"{len(states):,} trial{'' if len(states) == 1 else 's'}", *counts])


def _overview(data: SweepData) -> Section:
    section = Section("overview", "The sweep")
    entries = {
        "objective": _objective_text(data.config),
        "trials": _counts_text(data),
        "points": f"chosen by {data.config.search.name}, {_pruning_text(data.config)}",
        "env steps": f"{sum(trial.env_steps for trial in data.trials):,.0f} in all trials that have ended",
    }
    if data.best is not None:
        best, file = data.best, data.path / "best.yml"
        entries["best trial"] = f"{best.number}, with {data.config.objective.measure} {objective_text(best.value)}"
        entries["its point"] = point_text(data, best)
        entries["to train it"] = f"palestra train {shlex.quote(str(file))}"
    section.blocks.append(Facts(list(entries.items())))
    section.blocks += [Note(fault, is_warning=True) for fault in data.faults]
    section.blocks += _state_notes(data)
    section.blocks.append(_space_table(data))
    section.blocks += _best_table(data)
    return section


def _objective_text(config: SweepConfig) -> str:
    """The highest return/agent of evaluation main (pairing 0), at the last evaluation; ..."""
    objective, num_seeds = config.objective, len(config.seeds)
    pairing = "" if objective.pairing is None else f", pairing {objective.pairing}"
    wanted = "highest" if objective.goal == "max" else "lowest"
    when = "at the last evaluation of a run" if objective.of == "last" else "at the best evaluation of a run"
    seeds = f"the interquartile mean over {num_seeds} seeds" if num_seeds > 1 else "one seed"
    return f"the {wanted} {objective.measure} of evaluation {objective.evaluation}{pairing}, {when}; {seeds}"


def _pruning_text(config: SweepConfig) -> str:
    return "no trial is ended early" if config.pruning is None else f"trials are ended early by {config.pruning.name}"


def _state_notes(data: SweepData) -> Iterator[Note]:
    states = [trial.state for trial in data.trials]
    if "running" in states:
        path = shlex.quote(str(data.path))
        yield Note(f"Trials run, or were left by a process that was killed: palestra resume {path} goes on with them.")
    if "failed" in states:
        yield Note(f"{states.count('failed'):,} trials failed; the table of trials says why.", is_warning=True)


def _space_table(data: SweepData) -> Block:
    if not data.config.space:
        return Note("Nothing but the base is searched.")
    rows = [[Cell(key), Cell(_dimension_text(dimension))] for key, dimension in data.config.space.items()]
    if len(data.bases) > 1:
        for row, key in zip(rows, data.config.space, strict=True):
            row.append(Cell(", ".join(name for name in data.bases if data.has_key(name, key)) or "-"))
    head = ["key", "values", *(["bases that have it"] if len(data.bases) > 1 else [])]
    return Table("What was searched.", head, rows)


def _dimension_text(dimension: DimensionConfig) -> str:
    match dimension:
        case ChoiceConfig():
            return f"one of {', '.join(map(value_text, dimension.stored()))}"
        case LogConfig():
            return f"{dimension.low:g} to {dimension.high:g}, logarithmic"
        case UniformConfig():
            step = "" if dimension.step is None else f" in steps of {dimension.step:g}"
            return f"{dimension.low:g} to {dimension.high:g}{step}"
        case IntegerConfig():
            how = ", logarithmic" if dimension.log else "" if dimension.step == 1 else f" in steps of {dimension.step}"
            return f"integers {dimension.low} to {dimension.high}{how}"


def _best_table(data: SweepData) -> Iterator[Block]:
    if data.best is None:
        yield Note("No trial has succeeded so far.")
    elif data.best_differences:
        rows = [
            [Cell(change.key), Cell(value_text(change.before)), Cell(value_text(change.after))]
            for change in data.best_differences[:MOST_ROWS]
        ]
        yield Table("The keys in which best.yml differs from its base, besides the seed.", ["key", "base", "best"], rows)
    elif data.best_config:
        yield Note("best.yml is equal to its base, besides the seed.")


# ---- figures -------------------------------------------------------------------------------------------


def _values_section(data: SweepData, values: ValueRange, figures: Figures) -> Section:
    section = Section("values", "Value over trials")
    if not data.trials:
        section.blocks.append(Note("There is no trial yet."))
        return section
    chosen = {trial.number for trial in _chosen(data, data.ranked, MOST_DOTS)}
    others = [trial for trial in data.trials if trial.state != "succeeded"]
    chosen |= {trial.number for trial in thinned(others, MOST_DOTS)}
    shown = [trial for trial in data.trials if trial.number in chosen]
    text = f"{data.config.objective.measure} of each trial in the order of trials, and the best so far. {_lead(data)[-1]}"
    drawn = figures.draw(
        "Value of each trial", text, lambda figure: paint_values(figure, data, shown, values), size=WIDE
    )
    section.blocks.append(FigureGrid([Captioned(drawn, None)], is_wide=True))
    parts = ["Trials without a value stand at the bottom."] if any(t.state != "succeeded" for t in shown) else []
    section.blocks += _notes([*parts, _beyond_text(data, values), _left_out_text(len(shown), len(data.trials))])
    return section


def _importance_section(data: SweepData, importance: Importance, figures: Figures) -> Section:
    section = Section("importance", "Importance of keys")
    found = [("All trials", importance)]
    if len(data.bases) > 1:
        for name in data.bases:
            mine = [trial for trial in data.ranked if data.base_of(trial) == name]
            found.append((f"Trials of {name}", importance_of(data, mine)))
    labels = _labels(data)
    grid = []
    for title, each in found:
        if not each.shares:
            section.blocks.append(Note(f"{title}: {each.text}" if len(found) > 1 else each.text))
            continue
        shares = {labels[key]: share for key, share in list(each.shares.items())[:MOST_SLICES]}
        words = f"{each.text} {', '.join(f'{name} {share:.0%}' for name, share in shares.items())}."
        drawn = figures.draw(title, words, partial(paint_importance, shares=shares), importance_size(len(shares)))
        rows = [[Cell(key), Cell(f"{share:.1%}", share)] for key, share in each.shares.items()]
        grid.append(Captioned(drawn, Table(f"Importance, {title}", ["key", "share"], rows)))
        section.blocks.append(Note(f"{title}: {each.text}" if len(found) > 1 else each.text))
    if grid:
        section.blocks.insert(0, FigureGrid(grid))
        section.blocks.append(Note("A key is important if the best trials crowd at some of its values, and others do not."))
    return section


def _parallel_section(data: SweepData, axes: Sequence[Axis], values: ValueRange, figures: Figures) -> Section:
    section = Section("parallel", "Parallel coordinates")
    if not data.ranked or not axes:
        section.blocks.append(Note("There is nothing to draw: no key has several values, or no trial has succeeded."))
        return section
    shown = _chosen(data, data.ranked, MOST_LINES)
    text = f"A line for each trial across {', '.join(axis.label for axis in axes)}, to its value. {_lead(data)[-1]}"
    drawn = figures.draw(
        "Trials across the space",
        text,
        lambda figure: paint_parallel(figure, data, axes, shown, values),
        parallel_size(len(axes)),
    )
    section.blocks.append(FigureGrid([Captioned(drawn, None)], is_wide=True))
    parts = ["The better the rank of a trial, the stronger its line; the best one is bold."]
    if len(data.bases) > 1:
        parts.append("A line has gaps at keys that its base does not have.")
    if len(data.axes) > len(axes):
        parts.append(f"Of {len(data.axes)} keys the {len(axes)} most important ones are drawn.")
    section.blocks += _notes([*parts, _left_out_text(len(shown), len(data.ranked)), _beyond_text(data, values)])
    return section


def _slices_section(data: SweepData, axes: Sequence[Axis], values: ValueRange, figures: Figures) -> Section:
    section = Section("slices", "Value over each key")
    if not data.ranked or not axes:
        section.blocks.append(Note("There is nothing to draw: no key has several values, or no trial has succeeded."))
        return section
    shown = _chosen(data, data.ranked, MOST_DOTS)
    if len(data.bases) > 1:
        section.blocks.append(Legend(list(enumerate(data.bases))))
    grid = []
    for axis in axes[:MOST_SLICES]:
        text = f"{data.config.objective.measure} of trials over {axis.key}."
        paint = partial(paint_slice, data=data, axis=axis, trials=shown, values=values)
        grid.append(Captioned(figures.draw(axis.label, text, paint), None))
    section.blocks.append(FigureGrid(grid))
    parts = ["A dot is a trial that succeeded; the star is the best one."]
    if any(axis.choices for axis in axes):
        parts.append("The bars of choices are interquartile means of the finite values.")
    if len(axes) > MOST_SLICES:
        parts.append(f"Not drawn, because less important: {', '.join(axis.label for axis in axes[MOST_SLICES:])}.")
    section.blocks += _notes([*parts, _left_out_text(len(shown), len(data.ranked)), _beyond_text(data, values)])
    return section


def _curves_section(data: SweepData, figures: Figures) -> Section:
    section = Section("curves", "Trials over training")
    found = trial_curves(data)
    curves = [curve for curve in found.curves if finite(curve.points)]
    if not curves:
        section.blocks += [Note("There is no evaluation of a trial yet."), *_notes([_not_trusted(found.source)])]
        return section
    values = ValueRange.of([value for curve in curves for _, value in curve.points], data.config.objective.goal)
    named = [curve for curve in curves[:NUM_NAMED] if curve.trial.state == "succeeded"]
    text = f"{data.config.objective.measure} of trials over {label(found.unit)}. " + " ".join(map(_curve_text, named))
    drawn = figures.draw(
        "Objective over training",
        text,
        lambda figure: paint_trial_curves(figure, data, curves, found.unit, values, NUM_NAMED),
        size=WIDE,
    )
    section.blocks.append(FigureGrid([Captioned(drawn, _curve_table(data, named, found.unit))], is_wide=True))
    is_cut = any(curve.trial.state == "pruned" for curve in curves)
    parts = [found.source, "The best trials have names. " + ("A cross ends a trial that was pruned." if is_cut else "")]
    beyond = values.num_beyond([value for curve in curves for _, value in curve.points])
    parts.append(f"{beyond:,} values that are far worse are drawn at the edge." if beyond else "")
    section.blocks += _notes([*parts, _left_out_text(len(curves), found.num_trials)])
    return section


def _not_trusted(source: str) -> str:
    return source if "cannot be read" in source else ""


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


# ---- the trials, and how it was run --------------------------------------------------------------------


def _trials_section(data: SweepData) -> Section:
    section = Section("trials", "Trials")
    order = {"running": 0, "pruned": 1, "failed": 2, "skipped": 3}
    others = [trial for trial in data.trials if trial.state in order]
    trials = [*data.ranked, *sorted(others, key=lambda trial: (order[trial.state], trial.number))]
    if not trials:
        section.blocks.append(Note("There is no trial yet."))
        return section
    labels = _labels(data)
    keys = [key for key in labels if any(key in trial.point for trial in trials)]
    has_why = any(trial.why for trial in trials[:MOST_TRIALS])
    rows = [
        [
            Cell(str(trial.number)),
            Cell(trial.state),
            Cell("-") if trial.value != trial.value else Cell(objective_text(trial.value), trial.value),
            Cell(", ".join(f"{seed}: {objective_text(value)}" for seed, value in trial.by_seed.items()) or "-"),
            *(Cell(value_text(trial.point[key]) if key in trial.point else "-") for key in keys),
            Cell(f"{trial.env_steps:,.0f}", trial.env_steps) if trial.env_steps else Cell("-"),
            *([Cell(trial.why[:500])] if has_why else []),
        ]
        for trial in trials[:MOST_TRIALS]
    ]
    caption = "The trials, the best ones first."
    if len(trials) > MOST_TRIALS:
        caption = f"The first {MOST_TRIALS} of {len(trials):,} trials, the best ones first; study.db has all."
    head = ["trial", "state", data.config.objective.measure, "by seed", *(labels[key] for key in keys), "env steps"]
    section.blocks.append(Table(caption, [*head, *(["why"] if has_why else [])], rows))
    return section


def _setting_section(data: SweepData) -> Section:
    blocks: list[Block] = [Facts(read_setting(data))]
    if not data.config.constraints:
        blocks.append(Note("No constraint excludes points."))
    else:
        blocks += [Heading("Constraints"), *(Note(text) for text in data.config.constraints)]
    blocks.append(Code("sweep.yml", render(data.config, SweepConfig)))
    return Section("setting", "What was run", blocks)


# ---- what several sections say --------------------------------------------------------------------------


def _labels(data: SweepData) -> dict[str, str]:
    """The labels of the keys, in the order of the space; that of the base first, if there are several."""
    labels = short_labels(list(data.config.space))
    return {BASE: BASE, **labels} if len(data.bases) > 1 else labels


def _chosen(data: SweepData, trials: Sequence[TrialData], most: int) -> list[TrialData]:
    """At most so many of the trials, which begin with the best: NUM_BEST of these, and others evenly chosen."""
    return [*trials[:NUM_BEST], *thinned(trials[NUM_BEST:], most - NUM_BEST)]


def _left_out_text(num_shown: int, num_trials: int) -> str:
    what = f"Drawn are {num_shown:,} of {num_trials:,} trials: the best ones, and others evenly chosen."
    return what if num_shown < num_trials else ""


def _beyond_text(data: SweepData, values: ValueRange) -> str:
    beyond = values.num_beyond([trial.value for trial in data.ranked])
    if beyond == 0:
        return ""
    return f"{beyond:,} trial{' is' if beyond == 1 else 's are'} far beyond the range drawn, and stand at its edge."


def _notes(parts: Sequence[str]) -> list[Note]:
    text = " ".join(part.strip() for part in parts if part)
    return [Note(text)] if text else []
