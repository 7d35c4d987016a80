"""Curves over training: scores of evaluations, and the metrics of the players."""

import math
from collections.abc import Iterator, Sequence

from palestra.recording.results import PairResult, Seat, label, metric_text, score_text
from palestra.report.blocks import Block, Captioned, Cell, FigureGrid, Heading, Legend, Note, Section, Table, scored
from palestra.report.evaluation_tables import evaluation_names, pairing_text, pairings
from palestra.report.figures import Figures, Level, paint_curves, thinned
from palestra.report.groups import FEWEST_OF_A_BAND, Curve, Group, metric_curve, metric_names, score_curve, step_unit

MOST_FIGURES = 24  # of metrics
COUNTERS = ("env_steps", "opt_steps")


def curves_section(groups: Sequence[Group], figures: Figures) -> Section:
    section = Section("curves", "Learning curves")
    section.blocks += legend(groups)
    unit = step_unit(groups)
    for name in evaluation_names(groups):
        grid = [_score_figure(groups, name, seats, pair, unit, figures) for seats, pair in pairings(groups, name)]
        if grid:
            section.blocks += [Heading(f"Evaluation {name}"), FigureGrid(grid)]
    if not section.blocks or all(isinstance(block, Legend) for block in section.blocks):
        section.blocks.append(Note("There is no evaluation of a learning player."))
    else:
        section.blocks.append(Note(_what_bands_are(groups)))
    return section


def metrics_section(groups: Sequence[Group], figures: Figures) -> Section:
    section = Section("metrics", "Training metrics")
    names = list(dict.fromkeys(name for group in groups for name in metric_names(group)))
    wanted = [name for name in names if name.startswith(("players/", "notes/")) and _last(name) not in COUNTERS]
    wanted.sort(key=lambda name: (name.split("/")[:2], "/episodes/" not in name))
    constant = {name: value for name in wanted if (value := _constant(groups, name)) is not None}
    drawn = [name for name in wanted if name not in constant]
    if not wanted:
        section.blocks.append(Note("There is no training record with metrics."))
        return section
    section.blocks += legend(groups)
    unit = step_unit(groups)
    for owner in dict.fromkeys(_owner(name) for name in drawn[:MOST_FIGURES]):
        mine = [name for name in drawn[:MOST_FIGURES] if _owner(name) == owner]
        grid = FigureGrid([_metric_figure(groups, name, unit, figures) for name in mine])
        section.blocks += [Heading(owner), grid]
    if constant:
        rows = [[Cell(label(name)), Cell(metric_text(value), value)] for name, value in constant.items()]
        section.blocks.append(Table("Metrics that never changed.", ["metric", "value"], rows))
    if len(drawn) > MOST_FIGURES:
        left_out = ", ".join(drawn[MOST_FIGURES:])
        section.blocks.append(Note(f"Not drawn, but in records.jsonl: {left_out}."))
    return section


def legend(groups: Sequence[Group]) -> list[Block]:
    """The colours of the groups, if there are several."""
    return [Legend([(number, group.label) for number, group in enumerate(groups)])] if len(groups) > 1 else []


def _what_bands_are(groups: Sequence[Group]) -> str:
    sizes = [len(group.runs) for group in groups]
    parts = []
    if any(size > 1 for size in sizes):
        parts.append(
            "Bold lines are means over the runs of a group, at the steps that all of them have; thin lines are single "
            "runs."
        )
    if any(size >= FEWEST_OF_A_BAND for size in sizes):
        parts.append("Bands are 95% t intervals of that mean.")
    if any(1 < size < FEWEST_OF_A_BAND for size in sizes):
        parts.append("A group of two or three runs has no band: so few runs do not show how far the mean may be off.")
    if any(size == 1 for size in sizes):
        what = "The bands of a run alone" if parts else "Bands"
        parts.append(f"{what} are the 95% intervals of the evaluation's games.")
    return " ".join(parts)


def _score_figure(
    groups: Sequence[Group], name: str, seats: tuple[Seat, ...], pair: PairResult, unit: str, figures: Figures
) -> Captioned:
    learner = next(seat for seat in seats if seat.learns)
    measure = pair.measure_of(learner)
    title = pairing_text(seats)
    curves, colours = _present(score_curve(group, name, seats, measure, unit) for group in groups)
    levels = _levels(groups, name, seats, learner, measure)
    text = f"{measure} of {title} over {label(unit)}. {_in_words(curves)}"
    drawn = figures.draw(
        title, text, lambda figure: paint_curves(figure, curves, colours, levels, label(unit), measure)
    )
    return Captioned(drawn, _numbers(curves, measure, unit))


def _levels(groups: Sequence[Group], name: str, seats: tuple[Seat, ...], learner: Seat, measure: str) -> list[Level]:
    """The scripted players that sit in the learner's role against the same opponents, with their scores in the last
    evaluation of the first run.
    """
    others = [seat for seat in seats if seat != learner]
    return [
        Level(rival.player, pair.scores[measure].value)
        for found, pair in pairings(groups, name, learned=False)
        for rival in found
        if rival.role == learner.role
        and [seat for seat in found if seat != rival] == others
        and measure in pair.scores
        and math.isfinite(pair.scores[measure].value)
    ]


def _metric_figure(groups: Sequence[Group], name: str, unit: str, figures: Figures) -> Captioned:
    title = label("/".join(name.split("/")[2:]) or name)
    curves, colours = _present(metric_curve(group, name, unit) for group in groups)
    text = f"{label(name)} over {label(unit)}. {_in_words(curves)}"
    drawn = figures.draw(title, text, lambda figure: paint_curves(figure, curves, colours, [], label(unit), title))
    return Captioned(drawn, _numbers(curves, title, unit))


def _present(curves: Iterator[Curve]) -> tuple[list[Curve], list[int]]:
    """The curves that have a point, with the numbers of their groups."""
    found = [(number, curve) for number, curve in enumerate(curves) if curve.points or curve.each]
    return [curve for _, curve in found], [number for number, _ in found]


def _in_words(curves: Sequence[Curve]) -> str:
    """Where each curve begins and ends, in words."""
    return " ".join(
        f"{curve.group.label}: from {score_text(curve.points[0].score.value)} at {curve.points[0].step:,} to "
        f"{score_text(curve.points[-1].score.value)} at {curve.points[-1].step:,}."
        for curve in curves
        if curve.points
    )


def _numbers(curves: Sequence[Curve], measure: str, unit: str) -> Table | None:
    """The points of the bold lines."""
    rows = [
        [
            Cell(f"{point.step:,}", point.step),
            *([Cell(curve.group.label)] if len(curves) > 1 else []),
            scored(point.score),
        ]
        for curve in curves
        for point in thinned(curve.points)
    ]
    head = [label(unit), *(["group"] if len(curves) > 1 else []), measure]
    return Table(f"{measure} over {label(unit)}", head, rows) if rows else None


def _constant(groups: Sequence[Group], name: str) -> float | None:
    """The value of a metric if it is the same in all records of all runs; else None."""
    values = {value for group in groups for run in group.runs for _, value in run.metrics.get(name, [])}
    return values.pop() if len(values) == 1 else None


def _owner(name: str) -> str:
    kind, _, rest = name.partition("/")
    return f"Player {rest.partition('/')[0]}" if kind == "players" else "Notes"


def _last(name: str) -> str:
    return name.rpartition("/")[2]
