"""The report of a sweep: one HTML page on what was searched, what was found, and how each trial went."""

import math
import shlex
from collections.abc import Iterator
from pathlib import Path

from palestra.recording.results import label
from palestra.report.blocks import Block, Cell, Code, Facts, Heading, Note, Section, Table
from palestra.report.figures import Figures
from palestra.report.overview import MOST_ROWS
from palestra.report.page import render_sections, write_page
from palestra.report.sweep_reading import SweepData, TrialData, best_text, objective_text, point_text, setting_entries
from palestra.report.sweep_sections import figure_sections
from palestra.sweeps.config import SweepConfig
from palestra.sweeps.naming import parameter_text
from palestra.sweeps.space import ChoiceConfig, DimensionConfig, IntegerConfig, LogConfig, UniformConfig

MOST_TRIALS = 300  # of the table


def write_sweep_report(path: Path, out: Path | None) -> Path:
    """Write the report of a sweep atomically, and give its path.

    out: the file; None: report.html in the sweep's folder. Raises RunFolderError, ConfigError.
    """
    data = SweepData.read(path)
    page = out or path / "report.html"
    write_page(page, render_sweep(data))
    return page


def render_sweep(data: SweepData) -> str:
    """Return the page as HTML."""
    sections = [_overview(data), *figure_sections(data, Figures()), _trials_section(data), _setting_section(data)]
    return render_sections(data.path.resolve().name, _lead(data), sections)


# ---- what was searched, and what was found -------------------------------------------------------------


def _lead(data: SweepData) -> list[str]:
    objective = data.config.objective
    wanted = "highest" if objective.goal == "max" else "lowest"
    line = f"A sweep over {', '.join(data.bases)} for the {wanted} {objective.measure}: {data.counts_text}."
    return [line, best_text(data)]


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
    if data.best is not None:
        best, file = data.best, data.path / "best.yml"
        entries["best trial"] = f"{best.number}, with {data.config.objective.measure} {objective_text(best.value)}"
        entries["its point"] = point_text(data, best)
        entries["to train it"] = f"palestra train {shlex.quote(str(file))}"
    faults = [Note(fault, is_warning=True) for fault in data.faults]
    blocks = [*faults, *_state_notes(data), *_edge_notes(data), _space_table(data), *_best_table(data)]
    return Section("overview", "The sweep", [Facts(list(entries.items())), *blocks])


def _objective_text(config: SweepConfig) -> str:
    """Say what is optimised: the highest return/agent of evaluation main (pairing 0), at the last evaluation; ..."""
    objective, num_seeds = config.objective, len(config.seeds)
    pairing = "" if objective.pairing is None else f", pairing {objective.pairing}"
    wanted = "highest" if objective.goal == "max" else "lowest"
    when = "at the last evaluation of a run" if objective.of == "last" else "at the best evaluation of a run"
    seeds = f"the interquartile mean over {num_seeds} seeds" if num_seeds > 1 else "one seed"
    return f"the {wanted} {objective.measure} of evaluation {objective.evaluation}{pairing}, {when}; {seeds}"


def _state_notes(data: SweepData) -> Iterator[Note]:
    states = [trial.state for trial in data.trials]
    if "running" in states:
        path = shlex.quote(str(data.path))
        yield Note(f"Trials run, or were left by a process that was killed: palestra resume {path} goes on with them.")
    if "failed" in states:
        count = states.count("failed")
        yield Note(f"{count:,} trial{'' if count == 1 else 's'} failed; the table of trials says why.", is_warning=True)


def _edge_notes(data: SweepData) -> Iterator[Note]:
    for key, edge in data.best_edges.items():
        assert data.best is not None
        searched = _dimension_text(data.config.space[key])
        where = f"{data.labels[key]} {data.best.text(key)} lies at the {edge} edge of what was searched ({searched})"
        yield Note(f"The best trial's {where}: a better value may lie beyond it. The key is {key}.")


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
        yield Table(
            "The keys in which best.yml differs from its base, besides the seed.", ["key", "base", "best"], rows
        )
    elif data.best_config:
        yield Note("best.yml is equal to its base, besides the seed.")


# ---- the trials, and how it was run --------------------------------------------------------------------


def _count_cell(count: float | None) -> Cell:
    return Cell(f"{count:,.0f}", count) if count else Cell("-")


def _trials_section(data: SweepData) -> Section:
    order = {"running": 0, "pruned": 1, "failed": 2, "skipped": 3}
    others = [trial for trial in data.trials if trial.state in order]
    trials = [*data.ranked, *sorted(others, key=lambda trial: (order[trial.state], trial.number))]
    if not trials:
        return Section("trials", "Trials", [Note("There is no trial yet.")])
    labels = data.labels
    keys = [key for key in labels if any(key in trial.point for trial in trials)]
    has_seeds = len(data.config.seeds) > 1
    is_counted = any(trial.counts.get(data.unit) for trial in trials)
    has_why = any(trial.why for trial in trials[:MOST_TRIALS])
    rows = [
        [
            Cell(str(trial.number)),
            Cell("-") if math.isnan(trial.value) else Cell(objective_text(trial.value), trial.value),
            Cell(trial.state),
            *([Cell(_by_seed_text(data, trial) if trial.by_seed else "-")] if has_seeds else []),
            *(Cell(trial.text(key) if key in trial.point else "-") for key in keys),
            *[_count_cell(trial.counts.get(data.unit))] * is_counted,
            *([Cell(trial.why[:500])] if has_why else []),
        ]
        for trial in trials[:MOST_TRIALS]
    ]
    caption = "The trials, the best ones first."
    if len(trials) > MOST_TRIALS:
        caption = f"The first {MOST_TRIALS} of {len(trials):,} trials, the best ones first; the study has all."
    head = ["trial", data.config.objective.measure, "state", *(["by seed"] if has_seeds else [])]
    head += [*(labels[key] for key in keys), *[label(data.unit)] * is_counted, *(["why"] if has_why else [])]
    return Section("trials", "Trials", [Table(caption, head, rows)])


def _by_seed_text(data: SweepData, trial: TrialData) -> str:
    """Return the values in the order of the seeds, as "475.2, 500.0"; "-" for a seed without a value."""
    values = [trial.by_seed.get(str(seed)) for seed in data.config.seeds]
    return ", ".join("-" if value is None else objective_text(value) for value in values)


def _setting_section(data: SweepData) -> Section:
    blocks: list[Block] = [Facts(setting_entries(data))]
    if not data.config.constraints:
        blocks.append(Note("No constraint excludes points."))
    else:
        blocks += [Heading("Constraints"), *(Note(text) for text in data.config.constraints)]
    blocks.append(Code("sweep.yml", data.config_text))
    return Section("setting", "What was run", blocks)
