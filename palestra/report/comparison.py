"""Compares groups of runs: the scores of their last evaluations, and how likely one group's runs beat another's.

A comparison is shown in a terminal, as CSV, or as a section of a report.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from palestra.recording.results import Seat, estimate_text, num_text, printable
from palestra.report.blocks import Cell, Note, Section, count, scored
from palestra.report.blocks import Table as PageTable
from palestra.report.evaluation_tables import counted_in_runs, evaluation_names, pairing_text, pairings
from palestra.report.groups import FEWEST_OF_A_BAND, NUM_RESAMPLES, Group, cut, mean_score, standings_of
from palestra.report.overview import differing_keys
from palestra.runtime.statistics import (
    Estimate,
    estimate_interquartile_mean,
    estimate_probability_of_improvement,
    score_interval_of_improvement,
)
from palestra.storage.disk import csv_text
from palestra.sweeps.naming import short_keys

NUM_RESAMPLES_OF_PAIRS = 10_000

ByRun = tuple[tuple[str, Estimate], ...]
Pair = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class GroupScore:
    """One score of one group. group: its label. by_run: the score of each run that has one, with the run's name.

    mean: over the runs, with its 95% t interval; for a single run its own score, with the interval over its games. iqm:
    the interquartile mean over runs; None for a single run. improvement: the probability that a run of this group is
    better than one of the first group; None for the first group and for single runs. Both have 95% bootstrap intervals
    over runs, from FEWEST_OF_A_BAND runs on; else nan in their place. The interval of the improvement is at least as
    wide as its score interval, which four runs that have won against four others do not close.
    """

    group: str
    by_run: ByRun
    mean: Estimate
    iqm: Estimate | None
    improvement: Estimate | None


@dataclass(frozen=True)
class ScoreRow:
    """A score of a pairing in an evaluation, for every group that has it.

    is_high_good: whether the players that learn want it high; None for one that does not count, because no learning
    player wants it, or some want the contrary. is_share: whether it lies between 0 and 1.
    """

    evaluation: str
    pairing: str
    measure: str
    is_high_good: bool | None
    is_share: bool
    groups: tuple[GroupScore, ...]

    def by_run(self, group: Group) -> ByRun:
        """Return the scores of the runs of a group."""
        return next((each.by_run for each in self.groups if each.group == group.label), ())


@dataclass(frozen=True)
class Comparison:
    """A comparison of groups.

    differences: the keys in which the configs differ, each with its value in every group. overall: for each group but
    the first, the mean over all rows that count of the probability of improvement; None if no row has one.
    """

    groups: tuple[Group, ...]
    differences: dict[str, list[str]]
    rows: tuple[ScoreRow, ...]
    overall: tuple[Estimate | None, ...]


def compare_groups(groups: Sequence[Group]) -> Comparison:
    """Compare the last evaluations of groups, in the pairings in which a player learns."""
    rows = [row for name in evaluation_names(groups) for row in _rows(groups, name)]
    pairs = [
        [_pair(row.by_run(group), row.by_run(groups[0]), row.is_high_good) for row in rows] for group in groups[1:]
    ]
    overall = [estimate_improvement([pair for pair in of_group if pair is not None]) for of_group in pairs]
    return Comparison(tuple(groups), differing_keys(groups), tuple(rows), tuple(overall))


def unequal_samples(groups: Sequence[Group]) -> list[str]:
    """Return a sentence for each evaluation in which the last results of a pairing are of unequal numbers of games.

    Games that were over at their start count, because how many these are depends on the seed.
    """
    found = []
    for name in evaluation_names(groups):
        lasts = {
            group.label: [
                standing.last
                for run in group.runs
                for standing in standings_of(run.evaluated, name).values()
                if standing.last.learned
            ]
            for group in groups
        }
        games: dict[tuple[Seat, ...], set[int]] = {}
        for last in chain.from_iterable(lasts.values()):
            games.setdefault(last.seats, set()).add(last.num + last.started_over)
        if any(len(nums) > 1 for nums in games.values()):
            texts = "; ".join(f"{label} {num_text(each)}" for label, each in lasts.items())
            found.append(f"The samples of {name} are unequal, per pairing: {texts}.")
    return found


def _rows(groups: Sequence[Group], name: str) -> Iterator[ScoreRow]:
    for seats, pair in pairings(groups, name):
        for measure in pair.scores:
            is_high_good, first = pair.is_high_good(measure), _by_run(groups[0], name, seats, measure)
            found = []
            for group in groups:
                if by_run := _by_run(group, name, seats, measure):
                    both = None if group is groups[0] else _pair(by_run, first, is_high_good)
                    mean, iqm = mean_score([score for _, score in by_run]), None
                    if (num := len(by_run)) > 1:
                        iqm = _of_enough(estimate_interquartile_mean([_values(by_run)], NUM_RESAMPLES, seed=0), num)
                    improvement = estimate_improvement([both]) if both else None
                    found.append(GroupScore(group.label, by_run, mean, iqm, improvement))
            yield ScoreRow(name, pairing_text(seats), measure, is_high_good, pair.is_share(measure), tuple(found))


def _by_run(group: Group, name: str, seats: tuple[Seat, ...], measure: str) -> ByRun:
    standings = ((run.name, standings_of(run.evaluated, name).get(seats)) for run in group.runs)
    lasts = ((run_name, standing.last) for run_name, standing in standings if standing is not None)
    return tuple((run_name, last.scores[measure]) for run_name, last in lasts if measure in last.scores)


def _values(by_run: ByRun) -> torch.Tensor:
    return torch.tensor([score.value for _, score in by_run], dtype=torch.float64)


def _of_enough(estimate: Estimate, num_runs: int) -> Estimate:
    """Return an estimate without its interval if it is of few runs: resampled, these are too often all the same."""
    return estimate if num_runs >= FEWEST_OF_A_BAND else Estimate.of(estimate.value)


def _pair(ours: ByRun, theirs: ByRun, is_high_good: bool | None) -> Pair | None:
    """Return the scores of the runs of two groups, with signs so that more is better.

    None if one of the groups has less than two runs, or if the score does not count.
    """
    if is_high_good is None:
        return None
    sign = 1.0 if is_high_good else -1.0
    pair = (sign * _values(ours), sign * _values(theirs))
    return pair if min(map(len, pair)) > 1 and bool(torch.cat(pair).isfinite().all()) else None


def estimate_improvement(pairs: Sequence[Pair]) -> Estimate | None:
    """Estimate the probability that a run of ours is better than one of theirs, as the mean over pairs of groups.

    pairs: the scores of our runs and of theirs, of which more is better. None without any.
    """
    if not pairs:
        return None
    estimate = estimate_probability_of_improvement(pairs, NUM_RESAMPLES_OF_PAIRS, seed=0)
    nums = [min(map(len, values)) for values in zip(*pairs, strict=True)]
    low, high = score_interval_of_improvement(estimate.value, *nums)
    estimate = Estimate(estimate.value, min(low, estimate.low), max(high, estimate.high))
    return _of_enough(estimate, min(nums))


def as_data(comparison: Comparison, places: Mapping[Path, str]) -> dict[str, Any]:
    """Return the comparison as data for JSON; `plain` turns NaN and infinities into null.

    places: of runs that were fetched from elsewhere, by their folders.
    """
    labels = [group.label for group in comparison.groups]
    return {
        "groups": {
            group.label: [places.get(run.path, str(run.path)) for run in group.runs] for group in comparison.groups
        },
        "differences": {key: dict(zip(labels, values, strict=True)) for key, values in comparison.differences.items()},
        "scores": [
            {
                "evaluation": row.evaluation,
                "pairing": row.pairing,
                "measure": row.measure,
                "better": None if row.is_high_good is None else "high" if row.is_high_good else "low",
                "group": each.group,
                "runs": dict(each.by_run),
                "mean": each.mean,
                "iqm": each.iqm,
                "probability_of_improvement": each.improvement,
            }
            for row in comparison.rows
            for each in row.groups
        ],
        "probability_of_improvement": dict(zip(labels[1:], comparison.overall, strict=True)),
    }


# ---- shown ----------------------------------------------------------------------------------------------------


COLUMNS = ("evaluation", "pairing", "measure", "group", "run", "value", "low", "high")


def render_comparison(console: Console, comparison: Comparison, iqm: bool = False) -> None:
    """Print the runs, the keys in which configs differ, and the scores.

    Of several runs the mean is shown, as in reports and plots, or with `iqm` the interquartile mean.
    """
    groups, rows = comparison.groups, []
    for group in groups:
        for run in group.runs:
            last = {each.evaluation.name: each.evaluation.opt_steps for each in run.evaluated}
            steps = ", ".join(sorted({f"opt step {number:,}" for number in last.values()})) or "no evaluation"
            rows.append([group.label, run.name, str(run.seed), run.state, steps])
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
    rows = []
    for row in comparison.rows:
        for each in row.groups:
            score = each.iqm if iqm and each.iqm is not None else cut(each.mean, row.measure, row.is_share)
            texts = [row.pairing, _measure_text(row), each.group, str(len(each.by_run)), estimate_text(score)]
            rows.append([*texts, estimate_text(each.improvement)][: len(head)])
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
    sizes = {len(group.runs) for group in groups}
    resampled = ["IQM"] * iqm + ["P"] * (len(groups) > 1)
    have = f"{' and '.join(resampled)} {'have 95% intervals' if resampled[1:] else 'has a 95% interval'}"
    better = f"P(better): the share of pairs in which a run of the group is better than one of {groups[0].label}"
    sentences = {
        f"A single run has the 95% interval over its {counted_in_runs(groups)}.": 1 in sizes,
        "Means over runs have 95% t intervals.": sizes != {1} and not iqm,
        f"With {FEWEST_OF_A_BAND} runs or more, {have} over runs.": sizes != {1} and resampled,
        f"{better}; a score that learning players want in opposite directions, or not at all, has none.": groups[1:],
    }
    told = [*(each for each, holds in sentences.items() if holds), *unequal_samples(groups)]
    return " ".join([*told, "* trained in the run."])


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
    rows = (
        [row.evaluation, row.pairing, row.measure, each.group, run, *score]
        for row in comparison.rows
        for each in row.groups
        for run, score in each.by_run
    )
    return csv_text(COLUMNS, rows)
