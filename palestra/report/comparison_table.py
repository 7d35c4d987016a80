"""Shows a comparison in a terminal, as CSV, or as a section of a report."""

import csv
import io
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from palestra.recording.results import estimate_text, printable
from palestra.report.blocks import Cell, Note, Section, count, scored
from palestra.report.blocks import Table as PageTable
from palestra.report.comparison import Comparison, GroupScore, ScoreRow, compare_groups, unequal_samples
from palestra.report.evaluation_tables import counted_in_runs
from palestra.report.groups import FEWEST_OF_A_BAND, Group, cut
from palestra.report.reading import RunData
from palestra.sweeps.naming import short_keys

COLUMNS = ("evaluation", "pairing", "measure", "group", "run", "value", "low", "high")


def render_comparison(console: Console, comparison: Comparison, iqm: bool = False) -> None:
    """Print the runs, the keys in which configs differ, and the scores.

    Of several runs the mean is shown, as in reports and plots, or with `iqm` the interquartile mean.
    """
    groups = comparison.groups
    rows = [[group.label, run.name, str(run.seed), run.state, _steps(run)] for group in groups for run in group.runs]
    console.print(_table(["group", "run", "seed", "state", "evaluated at"], rows))
    if len(groups) > 1:
        console.print()
        names = short_keys(comparison.differences)
        rows = [[names[key], *values] for key, values in comparison.differences.items()]
        head = ["key", *(group.label for group in groups)]
        console.print(_table(head, rows) if rows else Text("The configs are the same but for seed, output, execution."))
    console.print()
    if not comparison.rows:
        runs = [run for group in groups for run in group.runs]
        can_play = all("--games" in run.kind.options for run in runs)
        said = f"There is no evaluation{' of a learning player' * can_play} in {', '.join(run.name for run in runs)}"
        console.print(Text(printable(f"{said}{'; --games N plays one' * can_play}.")))
        return
    head = ["pairing", "measure", "group", "runs", "IQM" if iqm else "mean", *(["P(better)"] if groups[1:] else [])]
    rows = [_score_row(row, each, iqm)[: len(head)] for row in comparison.rows for each in row.groups]
    console.print(_table(head, rows))
    for line in _overall_lines(comparison):
        console.print(Text(line))
    console.print(Text(_legend(groups, iqm), style="dim"))


def _overall_lines(comparison: Comparison) -> list[str]:
    first, *others = (group.label for group in comparison.groups)
    return [
        f"All pairings: P({other} better than {first}) = {estimate_text(estimate)}"
        for other, estimate in zip(others, comparison.overall, strict=True)
        if estimate is not None
    ]


def _legend(groups: Sequence[Group], iqm: bool) -> str:
    counted = counted_in_runs(groups)
    sentences = [
        f"A single run has the 95% interval over its {counted}." if any(len(g.runs) == 1 for g in groups) else ""
    ]
    if any(len(group.runs) > 1 for group in groups):
        sentences.append("" if iqm else "Means over runs have 95% t intervals.")
        resampled = [*(["IQM"] if iqm else []), *(["P"] if groups[1:] else [])]
        if resampled:
            have = f"{' and '.join(resampled)} {'have 95% intervals' if resampled[1:] else 'has a 95% interval'}"
            sentences.append(f"With {FEWEST_OF_A_BAND} runs or more, {have} over runs.")
    if len(groups) > 1:
        better = f"P(better): the share of pairs in which a run of the group is better than one of {groups[0].label}"
        sentences.append(
            f"{better}; a score that learning players want in opposite directions, or not at all, has none."
        )
    sentences += unequal_samples(groups)
    return " ".join([*filter(None, sentences), "* learns."])


def _steps(run: RunData) -> str:
    """Return the opt steps of the last evaluations."""
    last = {each.evaluation.name: each.evaluation.opt_steps for each in run.evaluated}
    return ", ".join(sorted({f"opt step {steps:,}" for steps in last.values()})) or "no evaluation"


def _score_row(row: ScoreRow, each: GroupScore, iqm: bool) -> list[str]:
    shown = estimate_text(each.iqm if iqm and each.iqm is not None else cut(each.mean, row.measure, row.is_share))
    num_runs = str(len(each.by_run))
    return [row.pairing, _measure_text(row), each.group, num_runs, shown, estimate_text(each.improvement)]


def _measure_text(row: ScoreRow) -> str:
    return f"{row.measure} (low is better)" if row.is_high_good is False else row.measure


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for title in head:
        table.add_column(Text(printable(title)), overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    return table


def comparison_section(groups: Sequence[Group]) -> Section:
    """Make the section of a report that compares several groups."""
    comparison = compare_groups(groups)
    rows = [
        [
            Cell(row.pairing, detail=_measure_text(row)),
            Cell(each.group),
            scored(cut(each.mean, row.measure, row.is_share)),
            Cell("-") if each.improvement is None else scored(each.improvement),
            count(len(each.by_run)),
        ]
        for row in comparison.rows
        for each in row.groups
    ]
    if not rows:
        return Section("comparison", "Comparison", [Note("There is no evaluation of a learning player.")])
    table = PageTable("Scores at the last evaluation.", ["pairing", "group", "mean", "P(better)", "runs"], rows)
    overall = [Note(f"{line}.") for line in _overall_lines(comparison)]
    return Section("comparison", "Comparison", [table, Note(_legend(groups, iqm=False)), *overall])


def to_csv(comparison: Comparison) -> str:
    """Return a comparison as CSV: a head, then a line for each score of each run."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in comparison.rows:
        for each in row.groups:
            for run, score in each.by_run:
                writer.writerow([row.evaluation, row.pairing, row.measure, each.group, run, *score])
    return file.getvalue()
