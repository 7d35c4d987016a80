"""Curves over training: the scores of evaluations, those that a game finds itself, and the metrics of the players."""

import math
from collections.abc import Iterable, Sequence
from functools import partial

from matplotlib.figure import Figure

from palestra.recording.results import PairResult, Seat, label, metric_text, score_text, thinned
from palestra.report.blocks import Block, Cell, Drawn, FigureGrid, Heading, Legend, Note, Section, Table, scored
from palestra.report.evaluation_tables import (
    counted_in_runs,
    ends_of_colours,
    evaluation_names,
    heat_cell,
    pairing_text,
    pairings,
)
from palestra.report.figures import MOST_POINTS, Figures, Level, paint_curves
from palestra.report.groups import FEWEST_OF_A_BAND, Curve, Group, metric_curve, score_curve, step_unit
from palestra.runtime.scores import return_of

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
    wanted = [
        name for name in names if name.startswith(kinds) and not name.endswith(counters) and "/meets/" not in name
    ]
    wanted.sort(key=lambda name: (name.split("/")[:2], "/episodes/" not in name))
    values = {name: {value for run in runs for _, value in run.metrics.get(name, [])} for name in wanted}
    constant = {name: own.pop() for name, own in values.items() if len(own) == 1}
    drawn = [name for name in wanted if name not in constant]
    if not wanted:
        return Section("metrics", "Training metrics", [Note("There is no training record with metrics.")])
    section = Section("metrics", "Training metrics", legend(groups))
    section.blocks += metric_grids(groups, drawn[:MOST_FIGURES], figures)
    if constant:
        rows = [[Cell(label(name)), Cell(metric_text(value), value)] for name, value in constant.items()]
        section.blocks.append(Table("Metrics that never changed.", ["metric", "value"], rows))
    if len(drawn) > MOST_FIGURES:
        section.blocks.append(Note(f"Not drawn, but in records.jsonl: {', '.join(drawn[MOST_FIGURES:])}."))
    return section


def metric_grids(groups: Sequence[Group], names: Sequence[str], figures: Figures) -> list[Block]:
    """Draw metrics over training, below the name of whose they are. names: as recorders have them."""
    unit, players = step_unit(groups), {name for group in groups for run in group.runs for name in run.players}
    grids: dict[str, list[Drawn]] = {}
    for name in names:
        kind, *words = name.split("/")
        title = label("/".join(words if kind == "dialogues" else words[1:]) or name)
        curves = [metric_curve(group, name, unit) for group in groups]
        drawn = _figure(title, label(name), title, curves, [], unit, figures)
        owner = kind.capitalize()
        if kind == "players":  # what learns besides those of the configs is a model
            owner = f"Player {words[0]}" if words[0] in players else label(words[0]).capitalize()
        grids.setdefault(owner, []).append(drawn)
    return [block for owner, grid in grids.items() for block in (Heading(owner), FigureGrid(grid))]


def legend(groups: Sequence[Group]) -> list[Block]:
    """Return the colours of the groups, if there are several."""
    return [Legend([(number, group.label) for number, group in enumerate(groups)])] if len(groups) > 1 else []


def _what_bands_are(groups: Sequence[Group]) -> str:
    sizes = [len(group.runs) for group in groups]
    few = "A group of two or three runs has no band: so few runs do not show how far the mean may be off."
    told = {
        "Bold lines are means over the runs of a group, at the steps that all of them have; thin lines are single "
        "runs.": max(sizes) > 1,
        "Bands are 95% t intervals of that mean.": max(sizes) >= FEWEST_OF_A_BAND,
        few: any(1 < size < FEWEST_OF_A_BAND for size in sizes),
    }
    sentences = [sentence for sentence, holds in told.items() if holds]
    if 1 in sizes:
        what = "The bands of a run alone" if sentences else "Bands"
        sentences.append(f"{what} are the 95% intervals of the evaluation's {counted_in_runs(groups)}.")
    return " ".join(sentences)


def _score_figure(
    groups: Sequence[Group], name: str, seats: tuple[Seat, ...], pair: PairResult, unit: str, figures: Figures
) -> Drawn:
    learner = next(seat for seat in seats if seat.learns)
    measure, title = pair.measure_of(learner), pairing_text(seats)
    curves = [score_curve(group, name, seats, measure, unit) for group in groups]
    # the scripted players that sit in the learner's role against the same opponents
    others = [seat for seat in seats if seat != learner]
    levels = [
        Level(rival.player, pair.scores[measure].value)
        for found, pair in pairings(groups, name, learned=False)
        for rival in found
        if rival.role == learner.role
        and [seat for seat in found if seat != rival] == others
        and measure in pair.scores
        and math.isfinite(pair.scores[measure].value)
    ]
    if measure == return_of(learner.role):
        played = (each for group in groups for run in group.runs for each in run.recorded)
        own = [each for each in played if each["player"] == learner.player]
        levels += [Level(*each) for each in dict.fromkeys((f"play in {d['file']}", d["returns"]["mean"]) for d in own)]
    return _figure(title, f"{measure} of {title}", measure, curves, levels, unit, figures)


def _figure(
    title: str, what: str, measure: str, curves: Sequence[Curve], levels: Sequence[Level], unit: str, figures: Figures
) -> Drawn:
    shown, colours = present(curves)
    where = [  # each curve begins and ends
        f"{curve.group.label}: from {score_text(curve.points[0].score.value)} at {curve.points[0].step:,} to "
        f"{score_text(curve.points[-1].score.value)} at {curve.points[-1].step:,}."
        for curve in shown
        if curve.points
    ]
    text = f"{what} over {label(unit)}. {' '.join(where)}"
    paint = partial(paint_curves, curves=shown, colours=colours, levels=levels, unit=unit, y_label=measure)
    return figures.draw(title, text, paint, numbers=_numbers(shown, measure, unit))


def present(curves: Iterable[Curve]) -> tuple[list[Curve], list[int]]:
    """Return the curves that have a point, with the numbers of their groups."""
    found = [(number, curve) for number, curve in enumerate(curves) if curve.points or curve.each]
    return [curve for _, curve in found], [number for number, _ in found]


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


# ---- scores that a game finds itself --------------------------------------------------------------------------


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
        if pairs := [pair for seats, pair in pairings(groups, name) if _known_scores(groups, name, seats)]:
            grid = FigureGrid([_game_figure(groups, name, pair.seats, unit, figures) for pair in pairs])
            blocks += [Heading(f"Evaluation {name}")] if len(names) > 1 else []
            blocks += [*_meanings(pairs[0]), grid, Note(COLOURS)]
            blocks += [_moments_table(group, name, pair, unit, len(groups) > 1) for pair in pairs for group in groups]
    of_what = "game" if counted_in_runs(groups) == "games" else "model"
    return [Section("scores", f"Scores of the {of_what}", [*legend(groups), *blocks])] if blocks else []


def _meanings(pair: PairResult) -> list[Block]:
    """Make a table of what the scores are; those that are the same but for a channel or a round share a line."""
    found: dict[tuple[str, str], list[str]] = {}
    for name in own_scores(pair):
        if (score := pair.declared[name]).meaning:  # of an evaluation of one's own it is not known
            found.setdefault((score.unit, score.meaning), []).append(name)
    rows = [[Cell(", ".join(names)), Cell(unit), Cell(meaning)] for (unit, meaning), names in found.items()]
    return [Table("What the scores are.", ["score", "unit", "meaning"], rows)] if rows else []


def own_scores(pair: PairResult) -> list[str]:
    """Return the scores without returns and without those that the learning curves show."""
    shown = {pair.measure_of(seat) for seat in pair.seats} | {return_of(role) for role in pair.players}
    return [name for name in pair.declared if name not in shown]


def _known_scores(groups: Sequence[Group], evaluation: str, seats: tuple[Seat, ...]) -> list[str]:
    """Return the scores that are known at some moment, in their order."""
    found = [
        (name, pair.every_score[name].value)
        for group in groups
        for run in group.runs
        for each in run.results(evaluation)
        for pair in each.evaluation.pairs
        if pair.seats == seats
        for name in own_scores(pair)
    ]
    known = {name for name, value in found if math.isfinite(value)}
    return [name for name in dict.fromkeys(name for name, _ in found) if name in known]


def _game_figure(
    groups: Sequence[Group], evaluation: str, seats: tuple[Seat, ...], unit: str, figures: Figures
) -> Drawn:
    score, title = _known_scores(groups, evaluation, seats)[0], pairing_text(seats)
    found = [(number, score_curve(group, evaluation, seats, score, unit)) for number, group in enumerate(groups)]
    colours, curves = [n for n, curve in found if curve.points], [curve for _, curve in found if curve.points]
    ends = " ".join(f"{curve.group.label}: {score_text(curve.points[-1].score.value)} at the end." for curve in curves)
    is_share = all(0.0 <= point.score.value <= 1.0 for curve in curves for point in curve.points)

    def paint(figure: Figure) -> None:
        paint_curves(figure, curves, colours, [], unit, score)
        if is_share:
            figure.axes[0].set_ylim(-0.03, 1.03)

    return figures.draw(title, f"{score} of {title} over {label(unit)}. {ends}", paint)


def _moments_table(group: Group, evaluation: str, pair: PairResult, unit: str, has_others: bool) -> Table:
    """Make a table of a pairing with a row for each score and a column for some of the moments."""
    names = _known_scores([group], evaluation, pair.seats)
    curves = {name: score_curve(group, evaluation, pair.seats, name, unit) for name in names}
    by_step = {name: {point.step: point.score.value for point in curve.points} for name, curve in curves.items()}
    steps = thinned(sorted({step for track in by_step.values() for step in track}), MOST_COLUMNS)
    rows = [
        [
            Cell(name),
            *(heat_cell(track.get(s, math.nan), *ends_of_colours(track.values(), pair.is_share(name))) for s in steps),
        ]
        for name, track in by_step.items()
    ]
    means = f", means over {len(group.runs)} runs" if len(group.runs) > 1 else ""
    of_group = f"{group.label}, " if has_others else ""
    caption = f"{of_group}{pairing_text(pair.seats)}: scores over {label(unit)}{means}."
    return Table(caption, ["score", *(f"{step:,}" for step in steps)], rows, is_heat=True)
