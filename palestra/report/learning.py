"""Curves over training: the scores of evaluations, and the metrics of the players."""

import math
from collections.abc import Collection, Iterable, Sequence

from palestra.recording.results import PairResult, Seat, label, metric_text, score_text, thinned
from palestra.report.blocks import Block, Captioned, Cell, FigureGrid, Heading, Legend, Note, Section, Table, scored
from palestra.report.evaluation_tables import counted_in_runs, evaluation_names, pairing_text, pairings
from palestra.report.figures import MOST_POINTS, Figures, Level, paint_curves
from palestra.report.groups import FEWEST_OF_A_BAND, Curve, Group, metric_curve, score_curve, step_unit

MOST_FIGURES = 24  # of metrics


def curves_section(groups: Sequence[Group], figures: Figures) -> Section:
    blocks: list[Block] = []
    unit = step_unit(groups)
    for name in evaluation_names(groups):
        grid = [_score_figure(groups, name, seats, pair, unit, figures) for seats, pair in pairings(groups, name)]
        if grid:
            blocks += [Heading(f"Evaluation {name}"), FigureGrid(grid)]
    note = _what_bands_are(groups) if blocks else "There is no evaluation of a learning player."
    return Section("curves", "Learning curves", [*legend(groups), *blocks, Note(note)])


def metrics_section(groups: Sequence[Group], figures: Figures) -> Section:
    runs = [run for group in groups for run in group.runs]
    names = dict.fromkeys(name for run in runs for name in run.metrics)
    counters = tuple(f"/{name}" for run in runs for name in run.kind.axes)
    kinds = ("players/", "dialogues/", "notes/")
    wanted = [name for name in names if name.startswith(kinds) and not name.endswith(counters)]
    wanted.sort(key=lambda name: (name.split("/")[:2], "/episodes/" not in name))
    constant = {name: value for name in wanted if (value := _constant(groups, name)) is not None}
    drawn = [name for name in wanted if name not in constant]
    if not wanted:
        return Section("metrics", "Training metrics", [Note("There is no training record with metrics.")])
    section = Section("metrics", "Training metrics", legend(groups))
    unit = step_unit(groups)
    players = {name for group in groups for run in group.runs for name in run.players}
    for owner in dict.fromkeys(_owner(name, players) for name in drawn[:MOST_FIGURES]):
        mine = [name for name in drawn[:MOST_FIGURES] if _owner(name, players) == owner]
        grid = FigureGrid([_metric_figure(groups, name, unit, figures) for name in mine])
        section.blocks += [Heading(owner), grid]
    if constant:
        rows = [[Cell(label(name)), Cell(metric_text(value), value)] for name, value in constant.items()]
        section.blocks.append(Table("Metrics that never changed.", ["metric", "value"], rows))
    if len(drawn) > MOST_FIGURES:
        section.blocks.append(Note(f"Not drawn, but in records.jsonl: {', '.join(drawn[MOST_FIGURES:])}."))
    return section


def legend(groups: Sequence[Group]) -> list[Block]:
    """Return the colours of the groups, if there are several."""
    return [Legend([(number, group.label) for number, group in enumerate(groups)])] if len(groups) > 1 else []


def _what_bands_are(groups: Sequence[Group]) -> str:
    sizes = [len(group.runs) for group in groups]
    sentences = []
    if any(size > 1 for size in sizes):
        sentences.append(
            "Bold lines are means over the runs of a group, at the steps that all of them have; thin lines are single "
            "runs."
        )
    if any(size >= FEWEST_OF_A_BAND for size in sizes):
        sentences.append("Bands are 95% t intervals of that mean.")
    if any(1 < size < FEWEST_OF_A_BAND for size in sizes):
        sentences.append(
            "A group of two or three runs has no band: so few runs do not show how far the mean may be off."
        )
    if any(size == 1 for size in sizes):
        what = "The bands of a run alone" if sentences else "Bands"
        sentences.append(f"{what} are the 95% intervals of the evaluation's {counted_in_runs(groups)}.")
    return " ".join(sentences)


def _score_figure(
    groups: Sequence[Group], name: str, seats: tuple[Seat, ...], pair: PairResult, unit: str, figures: Figures
) -> Captioned:
    learner = next(seat for seat in seats if seat.learns)
    measure, title = pair.measure_of(learner), pairing_text(seats)
    curves = [score_curve(group, name, seats, measure, unit) for group in groups]
    levels = _levels(groups, name, seats, learner, measure)
    return _figure(title, f"{measure} of {title}", measure, curves, levels, unit, figures)


def _figure(
    title: str, what: str, measure: str, curves: Sequence[Curve], levels: Sequence[Level], unit: str, figures: Figures
) -> Captioned:
    shown, colours = present(curves)
    text = f"{what} over {label(unit)}. {_in_words(shown)}"
    drawn = figures.draw(title, text, lambda figure: paint_curves(figure, shown, colours, levels, unit, measure))
    return Captioned(drawn, _numbers(shown, measure, unit))


def _levels(groups: Sequence[Group], name: str, seats: tuple[Seat, ...], learner: Seat, measure: str) -> list[Level]:
    """Return the scripted players that sit in the learner's role against the same opponents.

    Their scores are those of the last evaluation of the first run.
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
    kind, *words = name.split("/")
    title = label("/".join(words if kind == "dialogues" else words[1:]) or name)
    curves = [metric_curve(group, name, unit) for group in groups]
    return _figure(title, label(name), title, curves, [], unit, figures)


def present(curves: Iterable[Curve]) -> tuple[list[Curve], list[int]]:
    """Return the curves that have a point, with the numbers of their groups."""
    found = [(number, curve) for number, curve in enumerate(curves) if curve.points or curve.each]
    return [curve for _, curve in found], [number for number, _ in found]


def _in_words(curves: Sequence[Curve]) -> str:
    """Say where each curve begins and ends."""
    return " ".join(
        f"{curve.group.label}: from {score_text(curve.points[0].score.value)} at {curve.points[0].step:,} to "
        f"{score_text(curve.points[-1].score.value)} at {curve.points[-1].step:,}."
        for curve in curves
        if curve.points
    )


def _numbers(curves: Sequence[Curve], measure: str, unit: str) -> Table | None:
    """Make a table of the points of the bold lines."""
    rows = [
        [
            Cell(f"{point.step:,}", point.step),
            *([Cell(curve.group.label)] if len(curves) > 1 else []),
            scored(point.score),
        ]
        for curve in curves
        for point in thinned(curve.points, MOST_POINTS)
    ]
    head = [label(unit), *(["group"] if len(curves) > 1 else []), measure]
    return Table(f"{measure} over {label(unit)}", head, rows) if rows else None


def _constant(groups: Sequence[Group], name: str) -> float | None:
    """Return the value of a metric if it is the same in all records of all runs; else None."""
    values = {value for group in groups for run in group.runs for _, value in run.metrics.get(name, [])}
    return values.pop() if len(values) == 1 else None


def _owner(name: str, players: Collection[str]) -> str:
    """Say whose metric it is. players: those of the configs; what learns besides is a model."""
    kind, _, rest = name.partition("/")
    learner = rest.partition("/")[0]
    if kind != "players":
        return kind.capitalize()
    return f"Player {learner}" if learner in players else label(learner).capitalize()
