"""Shows a comparison in a terminal, as CSV, or as a section of a report."""

import csv
import io
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from palestra.recording.results import Score, printable, score_text
from palestra.report.blocks import Cell, Note, Section, count, scored
from palestra.report.blocks import Table as PageTable
from palestra.report.comparison import Comparison, GroupScore, ScoreRow, compare_groups, unequal_samples
from palestra.report.groups import FEWEST_OF_A_BAND, Group, cut
from palestra.report.reading import Evaluated
from palestra.runtime.statistics import Estimate
from palestra.sweeps.naming import short_keys

COLUMNS = ("evaluation", "pairing", "measure", "group", "run", "value", "low", "high")


def render_comparison(console: Console, comparison: Comparison, iqm: bool = False) -> None:
    """Print the runs, the keys in which configs differ, and the scores: of several runs the mean, as reports and plots
    show it, or with `iqm` the interquartile mean.
    """
    groups = comparison.groups
    console.print(_table(["group", "run", "seed", "state", "evaluated at"], list(_run_rows(groups))))
    if len(groups) > 1:
        console.print()
        names = short_keys(comparison.differences)
        rows = [[names[key], *values] for key, values in comparison.differences.items()]
        head = ["key", *(group.label for group in groups)]
        console.print(_table(head, rows) if rows else Text("The configs are the same but for seed, output, execution."))
    console.print()
    if not comparison.rows:
        console.print(Text("There is no evaluation of a learning player; --games N plays one."))
        return
    first = groups[0].label
    head = ["pairing", "measure", "group", "runs", "IQM" if iqm else "mean", *(["P(better)"] if groups[1:] else [])]
    rows = [_score_row(row, each, iqm)[: len(head)] for row in comparison.rows for each in row.groups]
    console.print(_table(head, rows))
    for group, estimate in zip(groups[1:], comparison.overall, strict=True):
        if estimate is not None:
            console.print(Text(f"All pairings: P({group.label} better than {first}) = {_estimate_text(estimate)}"))
    console.print(Text(_legend(groups, iqm), style="dim"))


def _legend(groups: Sequence[Group], iqm: bool) -> str:
    parts = ["A run alone has the 95% interval over its games." if any(len(g.runs) == 1 for g in groups) else ""]
    if any(len(group.runs) > 1 for group in groups):
        parts.append("" if iqm else "Means over runs have 95% t intervals.")
        resampled = [*(["IQM"] if iqm else []), *(["P"] if groups[1:] else [])]
        if resampled:
            have = f"{' and '.join(resampled)} {'have 95% intervals' if resampled[1:] else 'has a 95% interval'}"
            parts.append(f"Of {FEWEST_OF_A_BAND} runs or more, {have} over runs.")
    if len(groups) > 1:
        whose = "by scores that learning players want, and not the contrary of each other"
        parts.append(f"P(better): that a run of the group is better than one of {groups[0].label}, {whose}.")
    parts += unequal_samples(groups)
    return " ".join([*filter(None, parts), "* learns."])


def _run_rows(groups: Sequence[Group]) -> list[list[str]]:
    return [
        [group.label, run.name, str(run.seed), run.state, ", ".join(sorted(_steps(run.evaluated))) or "no evaluation"]
        for group in groups
        for run in group.runs
    ]


def _steps(evaluated: Sequence[Evaluated]) -> set[str]:
    last = {each.evaluation.name: each.evaluation.opt_steps for each in evaluated}
    return {f"opt step {steps:,}" for steps in last.values()}


def _score_row(row: ScoreRow, each: GroupScore, iqm: bool) -> list[str]:
    shown = _estimate_text(each.iqm if iqm and each.iqm is not None else cut(each.mean, row.measure, row.is_share))
    num_runs = str(len(each.by_run))
    return [row.pairing, _measure_text(row), each.group, num_runs, shown, _estimate_text(each.improvement)]


def _measure_text(row: ScoreRow) -> str:
    return f"{row.measure} (low is better)" if row.is_high_good is False else row.measure


def _estimate_text(estimate: Estimate | Score | None) -> str:
    if estimate is None:
        return "-"
    ends = score_text(estimate.low), score_text(estimate.high)
    return f"{score_text(estimate.value)} [{', '.join(ends)}]" if "-" not in ends else score_text(estimate.value)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for title in head:
        table.add_column(Text(printable(title)), overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    return table


def comparison_section(groups: Sequence[Group]) -> Section:
    """The section of a report that compares several groups."""
    comparison, first = compare_groups(groups), groups[0].label
    rows = [
        [
            Cell(row.pairing, detail=_measure_text(row)),
            Cell(each.group),
            scored(cut(each.mean, row.measure, row.is_share)),
            Cell("-")
            if each.improvement is None
            else scored(Score(each.improvement.value, each.improvement.low, each.improvement.high)),
            count(len(each.by_run)),
        ]
        for row in comparison.rows
        for each in row.groups
    ]
    if not rows:
        return Section("comparison", "Comparison", [Note("There is no evaluation of a learning player.")])
    table = PageTable("Scores at the last evaluation.", ["pairing", "group", "mean", "P(better)", "runs"], rows)
    section = Section("comparison", "Comparison", [table, Note(_legend(groups, iqm=False))])
    for group, estimate in zip(groups[1:], comparison.overall, strict=True):
        if estimate is not None:
            text = f"All pairings: P({group.label} better than {first}) = {_estimate_text(estimate)}."
            section.blocks.append(Note(text))
    return section


def to_csv(comparison: Comparison) -> str:
    """A comparison as CSV: a head, then a line for each score of each run."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in comparison.rows:
        for each in row.groups:
            for run, score in each.by_run:
                writer.writerow([row.evaluation, row.pairing, row.measure, each.group, run, *score])
    return file.getvalue()
