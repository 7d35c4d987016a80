"""The report of a sweep: one HTML page on what was searched, what was found, and how each trial went.

Figures show the values, the importance of keys, the space, and training.
"""

import math
import shlex
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import optuna
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.trial import create_trial

from palestra.config import cut
from palestra.recording.results import label, thinned
from palestra.report.blocks import Block, Cell, Code, Facts, FigureGrid, Heading, Legend, Note, Section, Table
from palestra.report.figures import Figures
from palestra.report.overview import MOST_ROWS, facts_of, named_texts
from palestra.report.page import render_sections
from palestra.report.sweep_figures import (
    BAR_HEIGHT,
    ValueRange,
    last_value,
    paint_importance,
    paint_lineage,
    paint_parallel,
    paint_slice,
    paint_trial_curves,
    paint_values,
)
from palestra.report.sweep_reading import Axis, SweepData, TrialData, finite, objective_text, trial_curves
from palestra.storage.disk import write_file
from palestra.sweeps.config import SweepConfig
from palestra.sweeps.naming import parameter_text
from palestra.sweeps.space import ChoiceConfig, DimensionConfig, IntegerConfig, LogConfig, UniformConfig, has_key

MOST_TRIALS = 300  # of the table


def write_sweep_report(path: Path, out: Path | None) -> Path:
    """Write the report of a sweep atomically, and give its path.

    out: the file; None: report.html in the sweep's folder. Raises RunFolderError, ConfigError.
    """
    data = SweepData(path)
    line = f"A sweep over {', '.join(data.bases)} for the {_wanted(data.config)}: {data.counts_text}."
    sections = [_overview(data), *figure_sections(data, Figures()), _trials_section(data), _setting_section(data)]
    page = out or path / "report.html"
    write_file(page, render_sections(path.resolve().name, [line, data.best_text], sections))
    return page


def _wanted(config: SweepConfig) -> str:
    return f"{'highest' if config.objective.goal == 'max' else 'lowest'} {config.objective.measure}"


# ---- what was searched, and what was found -------------------------------------------------------------


def _overview(data: SweepData) -> Section:
    pruning = data.config.pruning
    entries = {
        "objective": _objective_text(data.config),
        "trials": data.counts_text,
        "points": f"chosen by {data.config.search.name}, "
        + ("no trial is ended early" if pruning is None else f"trials are ended early by {pruning.name}"),
    }
    if num := sum(trial.counts.get(data.unit, 0) for trial in data.trials):
        entries[label(data.unit)] = f"{num:,.0f} in all trials that have ended"
    if (best := data.best) is not None:
        entries |= {
            "best trial": f"{best.number}, with {data.config.objective.measure} {objective_text(best.value)}",
            "its point": data.point_text(best),
            f"to train {'it' if best.parent is None else 'its keys from the start'}": "palestra train "
            + shlex.quote(str(data.path / "best.yml")),
        }
    faults = [Note(fault, is_warning=True) for fault in data.faults]
    blocks = [*faults, *_notes_on_trials(data), _space_table(data), *_best_table(data)]
    return Section("overview", "The sweep", [Facts(list(entries.items())), *blocks])


def _objective_text(config: SweepConfig) -> str:
    """Say what is optimised: the highest return/agent of evaluation main (pairing 0), at the last evaluation; ..."""
    objective, num_seeds = config.objective, len(config.seeds)
    pairing = "" if objective.pairing is None else f", pairing {objective.pairing}"
    when = f"at the {objective.of} evaluation of a run"
    seeds = f"the interquartile mean over {num_seeds} seeds" if num_seeds > 1 else "one seed"
    return f"the {_wanted(config)} of evaluation {objective.evaluation}{pairing}, {when}; {seeds}"


def _notes_on_trials(data: SweepData) -> Iterator[Note]:
    states = [trial.state for trial in data.trials]
    if "running" in states:
        path = shlex.quote(str(data.path))
        yield Note(f"Trials run, or were left by a process that was killed: palestra resume {path} goes on with them.")
    if count := states.count("failed"):
        yield Note(f"{count:,} trial{'' if count == 1 else 's'} failed; the table of trials says why.", is_warning=True)
    for key, edge in data.best_edges.items():
        searched = _dimension_text(data.config.space[key])
        assert data.best is not None
        where = f"{data.labels[key]} {data.best.text(key)} lies at the {edge} edge of what was searched ({searched})"
        yield Note(f"The best trial's {where}: a better value may lie beyond it. The key is {key}.")


def _space_table(data: SweepData) -> Block:
    if not data.config.space:
        return Note("Nothing but the base is searched.")
    head, rows = ["key", "values", *["bases that have it"] * (len(data.bases) > 1)], []
    for key, dimension in data.config.space.items():
        bases = ", ".join(name for name in data.bases if has_key(data.bases[name], key)) or "-"
        rows.append([Cell(key), Cell(_dimension_text(dimension)), Cell(bases)][: len(head)])
    return Table("What was searched.", head, rows)


def _dimension_text(dimension: DimensionConfig) -> str:
    match dimension:
        case ChoiceConfig():
            return f"one of {', '.join(map(parameter_text, dimension.stored()))}"
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
            [Cell(change.key), Cell(parameter_text(change.before)), Cell(parameter_text(change.after))]
            for change in data.best_differences[:MOST_ROWS]
        ]
        caption = "The keys in which best.yml differs from its base, besides the seed."
        yield Table(caption, ["key", "base", "best"], rows)
    elif data.best_config:
        yield Note("best.yml is equal to its base, besides the seed.")


# ---- the trials, and how it was run --------------------------------------------------------------------


def _trials_section(data: SweepData) -> Section:
    order = {"running": 0, "pruned": 1, "failed": 2, "skipped": 3}
    others = [trial for trial in data.trials if trial.state in order]
    trials = [*data.ranked, *sorted(others, key=lambda trial: (order[trial.state], trial.number))]
    if not trials:
        return Section("trials", "Trials", [Note("There is no trial yet.")])
    keys = [key for key in data.labels if any(key in trial.point for trial in trials)]
    has_seeds = len(data.config.seeds) > 1
    is_counted = any(trial.counts.get(data.unit) for trial in trials)
    has_why = any(trial.why for trial in trials[:MOST_TRIALS])
    has_parents = any(trial.parent is not None for trial in trials)
    rows = []
    for trial in trials[:MOST_TRIALS]:
        count, of_seeds = trial.counts.get(data.unit), [trial.by_seed.get(str(seed)) for seed in data.config.seeds]
        by_seed = ", ".join("-" if value is None else objective_text(value) for value in of_seeds)
        rows.append(
            [
                Cell(str(trial.number)),
                *[Cell("-" if trial.parent is None else str(trial.parent))] * has_parents,
                Cell("-") if math.isnan(trial.value) else Cell(objective_text(trial.value), trial.value),
                Cell(trial.state),
                *[Cell(by_seed if trial.by_seed else "-")] * has_seeds,
                *(Cell(trial.text(key) if key in trial.point else "-") for key in keys),
                *[Cell(f"{count:,.0f}", count) if count else Cell("-")] * is_counted,
                *[Cell(cut(trial.why, 500))] * has_why,
            ]
        )
    caption = "The trials, the best ones first."
    if len(trials) > MOST_TRIALS:
        caption = f"The first {MOST_TRIALS} of {len(trials):,} trials, the best ones first; the study has all."
    head = ["trial", *["parent"] * has_parents, data.config.objective.measure, "state", *["by seed"] * has_seeds]
    head += [*(data.labels[key] for key in keys), *[label(data.unit)] * is_counted, *["why"] * has_why]
    return Section("trials", "Trials", [Table(caption, head, rows)])


def _setting_section(data: SweepData) -> Section:
    entries = facts_of(data.path, data.facts, ("command", "commit", "id"))
    entries |= {"storage": data.config.storage.name, "seeds": ", ".join(map(str, data.config.seeds))}
    constraints: list[Block] = [Heading("Constraints"), *map(Note, data.config.constraints)]
    blocks = constraints if constraints[1:] else [Note("No constraint excludes points.")]
    facts = Facts(named_texts(entries))
    return Section("setting", "What was run", [facts, *blocks, Code("sweep.yml", data.config_text)])


# ---- sections with figures ------------------------------------------------------------------------------------


FEWEST_TRIALS = 5
FEW_TRIALS = 50  # of which importance is a hint at most
BEST_SHARE = 0.1  # of the trials, which are compared with all


@dataclass(frozen=True)
class Importance:
    """The importance of keys. shares: of each key, the largest first; they add up to 1.

    why_not: why there are none. num_trials: on which they rest.
    """

    shares: Mapping[str, float]
    why_not: str
    num_trials: int


def importance_of(data: SweepData, trials: Sequence[TrialData]) -> Importance:
    """Compute the importance of keys from the trials that succeeded.

    A key that only some of them have counts where it occurs; one that has the same value in all of them does not count.
    """
    usable = [trial for trial in trials if trial.state == "succeeded" and math.isfinite(trial.value)]
    if (num := len(usable)) < FEWEST_TRIALS:
        why_not = f"it needs {FEWEST_TRIALS} trials that succeeded with a finite value, and {num} have"
        return Importance({}, why_not, num)
    if len({trial.value for trial in usable}) == 1:
        return Importance({}, f"all {num:,} trials have the same value", num)
    varied = {
        axis.key for axis in data.axes if len({axis.at(t.point[axis.key]) for t in usable if axis.key in t.point}) > 1
    }
    try:
        found = _shares(data, usable)
    except (ValueError, RuntimeError, ArithmeticError, LookupError) as error:
        return Importance({}, f"Optuna cannot compute it: {cut(str(error), 200)}", num)
    found = {key: share for key, share in found.items() if key in varied and math.isfinite(share)}
    if (total := sum(found.values())) <= 0:
        return Importance({}, f"no key tells the best of {num:,} trials from the others", num)
    return Importance({key: found[key] / total for key in sorted(found, key=lambda key: -found[key])}, "", num)


def _shares(data: SweepData, trials: Sequence[TrialData]) -> dict[str, float]:
    study = optuna.create_study(direction="maximize" if data.config.objective.goal == "max" else "minimize")
    study.add_trials(
        create_trial(value=trial.value, params=dict(trial.point), distributions=dict(trial.stored.distributions))
        for trial in trials
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of few trials, which the text says
        evaluator = PedAnovaImportanceEvaluator(target_quantile=BEST_SHARE)
        return get_param_importances(study, evaluator=evaluator, normalize=False)


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
        *_lineage_section(data, figures),
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
    text = f"{measure} of each trial in the order of trials, and the best so far. {data.best_text}"
    paint = partial(paint_values, data=data, trials=shown, values=values)
    grid = FigureGrid([figures.draw("Value of each trial", text, paint, WIDE)], is_wide=True)
    lines = [
        "Trials without a value stand at the bottom." if any(trial.state != "succeeded" for trial in shown) else "",
        _beyond_text(values, heights),
        _left_out_text(len(shown), len(data.trials)),
    ]
    return Section("values", "Value over trials", [grid, *_notes(lines)])


def _lineage_section(data: SweepData, figures: Figures) -> Iterator[Section]:
    """Yield the section of trials that branch off each other; nothing if there are none."""
    if all(trial.parent is None for trial in data.trials) or data.best is None:
        return
    shown = _chosen(data.ranked, MOST_DOTS)
    lineages, measure = [data.lineage_of(trial) for trial in shown], data.config.objective.measure
    values = ValueRange.of([trial.value for trial in shown], data.config.objective.goal)
    keys = [key for key in data.labels if key in data.best.point]
    rows = [
        [Cell(str(generation)), Cell(str(trial.number)), Cell(objective_text(trial.value), trial.value)]
        + [Cell(trial.text(key)) for key in keys]
        for generation, trial in enumerate(lineages[0])
    ]
    head = ["generation", "trial", measure, *(data.labels[key] for key in keys)]
    table = Table(f"From where trial {data.best.number}, the best one, comes.", head, rows)
    text = f"{measure} of trials over generations, with a line from each to those that branch off it. {data.best_text}"
    paint = partial(paint_lineage, lineages=lineages, measure=measure, values=values)
    note = ["The bold line leads to the best trial.", *_limits(data, values, len(shown))]
    grid = FigureGrid([figures.draw("Values over generations", text, paint, WIDE)], is_wide=True)
    yield Section("lineage", "Lineage", [grid, *_notes(note), table])


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
        grid = []
        for title, each in drawn.items():
            shares = {data.labels[key]: share for key, share in list(each.shares.items())[:MOST_SLICES]}
            text = f"The importance of keys: {', '.join(f'{name} {share:.0%}' for name, share in shares.items())}."
            size = (4.4, 0.55 + BAR_HEIGHT * len(shares))
            rows = [[Cell(key), Cell(f"{share:.1%}", share)] for key, share in each.shares.items()]
            table = Table(f"Importance of keys: {title}", ["key", "share"], rows)
            grid.append(figures.draw(title, text, partial(paint_importance, shares=shares), size, table))
        blocks += [FigureGrid(grid), Note(f"By PED-ANOVA: {what}{few}")]
    for title, each in found.items():
        if not each.shares:
            where = f" ({title})" if len(found) > 1 else ""
            blocks.append(Note(f"The importance of keys is unknown{where}: {each.why_not}."))
    return Section("importance", "Importance of keys", blocks)


def _parallel_section(data: SweepData, axes: Sequence[Axis], values: ValueRange, figures: Figures) -> Section:
    if not data.ranked or not axes:
        return Section("parallel", "Parallel coordinates", [Note(NOTHING)])
    shown = _chosen(data.ranked, MOST_LINES)
    text = f"A line for each trial across {', '.join(axis.label for axis in axes)}, to its value. {data.best_text}"
    paint = partial(paint_parallel, data=data, axes_shown=axes, trials=shown, values=values)
    drawn = figures.draw("Trials across the space", text, paint, (max(7.2, 1.25 * (len(axes) + 1)), 3.4))
    grid = FigureGrid([drawn], is_wide=True, is_full=len(axes) > MOST_AXES_WIDE)
    lines = [
        "The better the rank of a trial, the stronger its line; the best one is bold.",
        "Where its base does not have a key, a line passes below the axis." if len(data.bases) > 1 else "",
        f"Of {len(data.axes)} keys the {len(axes)} most important ones are drawn." if data.axes[len(axes) :] else "",
        *_limits(data, values, len(shown)),
    ]
    return Section("parallel", "Parallel coordinates", [grid, *_notes(lines)])


def _slices_section(data: SweepData, axes: Sequence[Axis], values: ValueRange, figures: Figures) -> Section:
    if not data.ranked or not axes:
        return Section("slices", "Value over each key", [Note(NOTHING)])
    shown = _chosen(data.ranked, MOST_DOTS)
    legend = [Legend(list(enumerate(data.bases)))] if len(data.bases) > 1 else []
    paint = partial(paint_slice, data=data, trials=shown, values=values)
    measure = data.config.objective.measure
    grid = [
        figures.draw(axis.label, f"{measure} of trials over {axis.key}.", partial(paint, axis=axis))
        for axis in axes[:MOST_SLICES]
    ]
    is_with_choices, others = any(axis.choices for axis in axes), ", ".join(axis.label for axis in axes[MOST_SLICES:])
    lines = [
        "A dot is a trial that succeeded; the star is the best one.",
        "The bars of choices are interquartile means of the finite values." if is_with_choices else "",
        f"Not drawn, because less important: {others}." if others else "",
        *_limits(data, values, len(shown)),
    ]
    return Section("slices", "Value over each key", [*legend, FigureGrid(grid), *_notes(lines)])


def _curves_section(data: SweepData, figures: Figures) -> Section:
    found = trial_curves(data)
    curves = [curve for curve in found.curves if finite(curve.points)]
    if not any(len(curve.points) > 1 for curve in curves):
        what = "No trial has been evaluated more than once." if curves else "There is no evaluation of a trial yet."
        source = [Note(found.source)] if "cannot be read" in found.source else []
        return Section("curves", "Trials over training", [Note(what), *source])
    values = ValueRange.of([value for curve in curves for _, value in curve.points], data.config.objective.goal)
    named = [curve for curve in curves[:NUM_NAMED] if curve.trial.state == "succeeded"]
    measure, told, rows = data.config.objective.measure, [], []
    for curve in named:
        points, number = finite(curve.points), curve.trial.number
        (first, begin), (last, end) = points[0], points[-1]
        told.append(f"Trial {number}: from {objective_text(begin)} at {first:,} to {objective_text(end)} at {last:,}.")
        for step, value in thinned(points, MOST_POINTS):
            rows.append([Cell(f"{step:,}", step), Cell(str(number)), Cell(objective_text(value), value)])
    table = Table(f"{measure} over {label(found.unit)}", [label(found.unit), "trial", measure], rows)
    text = f"{measure} of trials over {label(found.unit)}. " + " ".join(told)
    paint = partial(paint_trial_curves, data=data, curves=curves, unit=found.unit, values=values, num_named=NUM_NAMED)
    drawn = figures.draw("Objective over training", text, paint, WIDE, table if rows else None)
    grid = FigureGrid([drawn], is_wide=True)
    is_cut = any(curve.trial.state == "pruned" for curve in curves)
    beyond = values.num_beyond([value for curve in curves for _, value in curve.points])
    lines = [
        f"{found.source} The best trials have names.",
        "A cross ends a trial that was pruned." if is_cut else "",
        f"{beyond:,} values that are far worse are drawn at the edge." if beyond else "",
        _left_out_text(len(curves), found.num_trials),
    ]
    return Section("curves", "Trials over training", [grid, *_notes(lines)])


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
    what = f"{beyond:,} trial{' is' if beyond == 1 else 's are'} far beyond the range drawn, and stand at its edge."
    return what if beyond else ""


def _notes(lines: Sequence[str]) -> list[Note]:
    return [Note(" ".join(filter(None, lines)))] if any(lines) else []
