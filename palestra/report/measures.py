"""What games measure themselves, such as the accuracy of a verifier: over training, by pairing."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from palestra.recording.results import Score, Seat, as_float, label, score_text
from palestra.report.blocks import Block, Captioned, Cell, FigureGrid, Heading, Note, Section, Table
from palestra.report.evaluations import evaluation_names, pairing_text, pairings
from palestra.report.figures import Figures, paint_curves, thinned
from palestra.report.groups import Curve, Group, Point, over_runs, step_unit, steps_in
from palestra.report.learning import legend
from palestra.report.reading import RunData

MOST_COLUMNS = 10  # moments of a table


def measures_section(groups: Sequence[Group], figures: Figures) -> list[Section]:
    """A curve of the first measure for each pairing in which a player learns, and a coloured table of all measures over
    training. No section where no game has measures."""
    blocks: list[Block] = []
    unit, names = step_unit(groups), evaluation_names(groups)
    for name in names:
        seatings = [seats for seats, _ in pairings(groups, name) if _names(groups, name, seats)]
        if not seatings:
            continue
        blocks += [Heading(f"Evaluation {name}")] if len(names) > 1 else []
        blocks.append(FigureGrid([_figure(groups, name, seats, unit, figures) for seats in seatings]))
        for seats in seatings:
            blocks += [_table(group, name, seats, unit, len(groups) > 1) for group in groups]
    if not blocks:
        return []
    what = "Games without that message do not count; few games make information too large."
    told = f"Numbers that the game measures by itself; information is in bits that a message tells of the label. {what}"
    return [Section("measures", "Measures of the game", [*legend(groups), Note(told), *blocks])]


def _names(groups: Sequence[Group], evaluation: str, seats: tuple[Seat, ...]) -> list[str]:
    """The measures that are known at some moment, in their order."""
    found = [measured for group in groups for run in group.runs for _, measured in _measured(run, evaluation, seats)]
    known = {name for measured in found for name, score in measured.items() if math.isfinite(score.value)}
    return [name for name in dict.fromkeys(name for measured in found for name in measured) if name in known]


def _measured(
    run: RunData, evaluation: str, seats: tuple[Seat, ...]
) -> Iterator[tuple[Mapping[str, Any], dict[str, Score]]]:
    """The measures of a pairing in each evaluation, NaN where they are not known, as are intervals; each with its
    record."""
    for found in run.evaluated:
        if found.evaluation.name != evaluation:
            continue
        for pair, raw in found.pairs:
            if pair.seats == seats and "measures" in raw:
                intervals = raw.get("measure_intervals", {})
                yield (
                    found.record,
                    {
                        name: Score(*map(as_float, (value, *intervals.get(name, (None, None)))))
                        for name, value in raw["measures"].items()
                    },
                )


def _curve(group: Group, evaluation: str, seats: tuple[Seat, ...], measure: str, unit: str) -> Curve:
    tracks = [
        [
            Point(steps_in(record, unit), measured[measure])
            for record, measured in _measured(run, evaluation, seats)
            if measure in measured and math.isfinite(measured[measure].value)
        ]
        for run in group.runs
    ]
    is_share = any(measure in pair.shares for run in group.runs for each in run.evaluated for pair, _ in each.pairs)
    return over_runs(group, tracks, measure, is_share)


def _figure(
    groups: Sequence[Group], evaluation: str, seats: tuple[Seat, ...], unit: str, figures: Figures
) -> Captioned:
    measure, title = _names(groups, evaluation, seats)[0], pairing_text(seats)
    found = [(number, _curve(group, evaluation, seats, measure, unit)) for number, group in enumerate(groups)]
    colours, curves = [n for n, curve in found if curve.points], [curve for _, curve in found if curve.points]
    ends = " ".join(f"{curve.group.label}: {score_text(curve.points[-1].score.value)} at the end." for curve in curves)
    is_share = all(0.0 <= point.score.value <= 1.0 for curve in curves for point in curve.points)

    def paint(figure: Figure) -> None:
        paint_curves(figure, curves, colours, [], label(unit), measure)
        if is_share:
            figure.axes[0].set_ylim(-0.03, 1.03)

    return Captioned(figures.draw(title, f"{measure} of {title} over {label(unit)}. {ends}", paint), None)


def _table(group: Group, evaluation: str, seats: tuple[Seat, ...], unit: str, has_others: bool) -> Table:
    """A row for each measure, a column for some of the moments."""
    names = _names([group], evaluation, seats)
    curves = {name: _curve(group, evaluation, seats, name, unit) for name in names}
    by_step = {name: {point.step: point.score.value for point in curve.points} for name, curve in curves.items()}
    steps = thinned(sorted({step for track in by_step.values() for step in track}), MOST_COLUMNS)
    rows = [
        [Cell(name), *(_cell(track.get(step, math.nan), track) for step in steps)] for name, track in by_step.items()
    ]
    means = f", means over {len(group.runs)} runs" if len(group.runs) > 1 else ""
    of_group = f"{group.label}, " if has_others else ""
    caption = f"{of_group}{pairing_text(seats)}: measures over {label(unit)}{means}."
    return Table(caption, ["measure", *(f"{step:,}" for step in steps)], rows, is_heat=True)


def _cell(value: float, track: Mapping[int, float]) -> Cell:
    """Coloured by where it lies between 0 and 1, or, of a measure that leaves these, between its least and most."""
    if not math.isfinite(value):
        return Cell("-")
    low, high = min(0.0, *track.values()), max(1.0, *track.values())
    return Cell(score_text(value), value, heat=(value - low) / (high - low))
