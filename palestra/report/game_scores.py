"""Scores that a game finds itself, such as the accuracy of a verifier: over training, by pairing."""

import math
from collections.abc import Iterable, Sequence

from matplotlib.figure import Figure

from palestra.recording.results import PairResult, Seat, label, score_text, thinned
from palestra.report.blocks import Block, Captioned, Cell, FigureGrid, Heading, Note, Section, Table
from palestra.report.evaluation_tables import counted_in_runs, evaluation_names, pairing_text, pairings
from palestra.report.figures import Figures, paint_curves
from palestra.report.groups import Group, score_curve, step_unit
from palestra.report.learning import legend
from palestra.runtime.scores import return_of

MOST_COLUMNS = 10  # moments of a table
COLOURS = "Shares are coloured from 0 to 1, other scores from their least value to their greatest."


def scores_section(groups: Sequence[Group], figures: Figures) -> list[Section]:
    """Make the section on the scores of a game; none where the learning curves show all that it declares.

    It says what the scores are, and for each pairing in which a player learns it has a curve of the first score and a
    coloured table of all over training.
    """
    blocks: list[Block] = []
    unit, names = step_unit(groups), evaluation_names(groups)
    for name in names:
        found = [(seats, pair) for seats, pair in pairings(groups, name) if _names(groups, name, seats)]
        if not found:
            continue
        seatings = [seats for seats, _ in found]
        blocks += [Heading(f"Evaluation {name}")] if len(names) > 1 else []
        blocks += _meanings(found[0][1])
        blocks.append(FigureGrid([_figure(groups, name, seats, unit, figures) for seats in seatings]))
        blocks.append(Note(COLOURS))
        for _, pair in found:
            blocks += [_table(group, name, pair, unit, len(groups) > 1) for group in groups]
    of_what = "game" if counted_in_runs(groups) == "games" else "model"
    return [Section("scores", f"Scores of the {of_what}", [*legend(groups), *blocks])] if blocks else []


def _meanings(pair: PairResult) -> list[Block]:
    """Make a table of what the scores are; those that are the same but for a channel or a round share a line."""
    found: dict[tuple[str, str], list[str]] = {}
    for name in own_scores(pair):
        if pair.declared[name].meaning:  # of an evaluation of one's own it is not known
            found.setdefault((pair.declared[name].unit, pair.declared[name].meaning), []).append(name)
    rows = [[Cell(", ".join(names)), Cell(unit), Cell(meaning)] for (unit, meaning), names in found.items()]
    return [Table("What the scores are.", ["score", "unit", "meaning"], rows)] if rows else []


def own_scores(pair: PairResult) -> list[str]:
    """Return the scores without returns and without those that the learning curves show."""
    shown = {pair.measure_of(seat) for seat in pair.seats} | {return_of(role) for role in pair.players}
    return [name for name in pair.declared if name not in shown]


def _names(groups: Sequence[Group], evaluation: str, seats: tuple[Seat, ...]) -> list[str]:
    """Return the scores that are known at some moment, in their order."""
    found = [
        (name, pair.every_score[name].value)
        for group in groups
        for run in group.runs
        for each in run.evaluated
        if each.evaluation.name == evaluation
        for pair in each.evaluation.pairs
        if pair.seats == seats
        for name in own_scores(pair)
    ]
    known = {name for name, value in found if math.isfinite(value)}
    return [name for name in dict.fromkeys(name for name, _ in found) if name in known]


def _figure(
    groups: Sequence[Group], evaluation: str, seats: tuple[Seat, ...], unit: str, figures: Figures
) -> Captioned:
    score, title = _names(groups, evaluation, seats)[0], pairing_text(seats)
    found = [(number, score_curve(group, evaluation, seats, score, unit)) for number, group in enumerate(groups)]
    colours, curves = [n for n, curve in found if curve.points], [curve for _, curve in found if curve.points]
    ends = " ".join(f"{curve.group.label}: {score_text(curve.points[-1].score.value)} at the end." for curve in curves)
    is_share = all(0.0 <= point.score.value <= 1.0 for curve in curves for point in curve.points)

    def paint(figure: Figure) -> None:
        paint_curves(figure, curves, colours, [], unit, score)
        if is_share:
            figure.axes[0].set_ylim(-0.03, 1.03)

    return Captioned(figures.draw(title, f"{score} of {title} over {label(unit)}. {ends}", paint))


def _table(group: Group, evaluation: str, pair: PairResult, unit: str, has_others: bool) -> Table:
    """Make a table of a pairing with a row for each score and a column for some of the moments."""
    seats = pair.seats
    names = _names([group], evaluation, seats)
    curves = {name: score_curve(group, evaluation, seats, name, unit) for name in names}
    by_step = {name: {point.step: point.score.value for point in curve.points} for name, curve in curves.items()}
    steps = thinned(sorted({step for track in by_step.values() for step in track}), MOST_COLUMNS)
    rows = [
        [
            Cell(name),
            *(_cell(track.get(step, math.nan), ends_of_colours(track.values(), pair.is_share(name))) for step in steps),
        ]
        for name, track in by_step.items()
    ]
    means = f", means over {len(group.runs)} runs" if len(group.runs) > 1 else ""
    of_group = f"{group.label}, " if has_others else ""
    caption = f"{of_group}{pairing_text(seats)}: scores over {label(unit)}{means}."
    return Table(caption, ["score", *(f"{step:,}" for step in steps)], rows, is_heat=True)


def ends_of_colours(values: Iterable[float], is_share: bool) -> tuple[float, float]:
    """Return the values with the palest and the fullest colour among those of one score, which may be a share."""
    known = [*(value for value in values if math.isfinite(value)), *((0.0, 1.0) if is_share else ())]
    return min(known, default=0.0), max(known, default=0.0)


def _cell(value: float, ends: tuple[float, float]) -> Cell:
    if not math.isfinite(value):
        return Cell("-")
    low, high = ends
    return Cell(score_text(value), value, heat=(value - low) / (high - low) if high > low else 0.5)
