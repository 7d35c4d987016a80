"""The section of analyses of dialogues: their means over epochs, and decisions with small and large values.

They come from the files that `palestra analyse` has written. Their texts are untrusted.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from palestra.recording.results import estimate_text, score_text, thinned
from palestra.report.blocks import Block, Captioned, Cell, FigureGrid, Heading, Legend, Note, Section, Table, count
from palestra.report.blocks import number as number_cell
from palestra.report.figures import MOST_POINTS, Figures, paint_curves
from palestra.report.groups import Curve, Group, Point
from palestra.report.reading import RunData
from palestra.storage.run_folder import RunFolder
from palestra.text.analyses.stored import (
    JudgedDecision,
    JudgedDialogue,
    Mean,
    means_of,
    seat_of,
    stored_analyses,
)

NUM_EXAMPLES = 3  # of each end
MOST_CHARACTERS = 300  # of a message, and of what is said of it
MOST_SEATS = 8  # that have a curve: a role, or a player in a role


def analyses_section(groups: Sequence[Group], figures: Figures) -> list[Section]:
    """Make the section of analyses, of the first run of each group; none if there are no analyses."""
    section = Section("analyses", "Analyses")
    for group in groups:
        run = group.runs[0]
        try:
            blocks = _of_run(run, figures)
        except Exception as error:  # a damaged file, or anything else
            blocks = [Note(f"No analysis can be shown: {error}")]
        several = len(groups) > 1 or len(group.runs) > 1
        section.blocks += [Heading(run.name), *blocks] if blocks and several else blocks
    return [section] if section.blocks else []


def _of_run(run: RunData, figures: Figures) -> list[Block]:
    blocks: list[Block] = []
    for name, results in stored_analyses(RunFolder.open(run.path).root.below("analyses")):
        judged = [Judged(dialogue, each) for dialogue in results.dialogues for each in dialogue.judged]
        known = [each for each in judged if each.decision.value is not None]
        lines = f"{len(known):,} decisions of {len(results.dialogues):,} dialogues have a value"
        without = f", and {len(judged) - len(known):,} have none" if len(known) < len(judged) else ""
        blocks += [Heading(name), Note(f"{lines}{without}.")]
        if known:
            seats = sorted({seat_of(each.decision) for each in known})
            blocks += [
                Legend(list(enumerate(seats[:MOST_SEATS]))),
                FigureGrid(_figures(name, results.dialogues, seats, figures)),
                _examples(known),
            ]
    return blocks


# ---- means --------------------------------------------------------------------------------------------------


def _figures(name: str, dialogues: Sequence[JudgedDialogue], seats: Sequence[str], figures: Figures) -> list[Captioned]:
    found = []
    for evaluation, by_epoch in means_of(dialogues).items():
        where = "training" if evaluation is None else f"evaluation {evaluation}"
        of_seats = [
            {epoch: means[seat] for epoch, means in by_epoch.items() if seat in means} for seat in seats[:MOST_SEATS]
        ]
        numbered = [(number, of_seat) for number, of_seat in enumerate(of_seats) if of_seat]
        curves = [Curve(Group(seats[number], ()), _points(of_seat), ()) for number, of_seat in numbered]
        colours = [number for number, _ in numbered]
        title = f"{name}, {where}"
        told = "; ".join(
            f"{curve.group.label}: from {score_text(curve.points[0].score.value)} in epoch {curve.points[0].step:,} to "
            f"{score_text(curve.points[-1].score.value)} in epoch {curve.points[-1].step:,}"
            for curve in curves
        )
        drawn = figures.draw(
            title,
            f"Mean of {name} over epochs. {told}.",
            partial(paint_curves, curves=curves, colours=colours, levels=[], unit="epochs", y_label=name),
        )
        rows = [
            [
                count(epoch),
                Cell(seats[number]),
                Cell(estimate_text(mean.score)),
                count(mean.num),
                count(mean.num_questions),
            ]
            for number, of_seat in numbered
            for epoch, mean in thinned(list(of_seat.items()), MOST_POINTS)
        ]
        found.append(
            Captioned(
                drawn,
                Table(
                    f"{title}: means over epochs",
                    ["epoch", "of", f"{name} [95% interval]", "decisions", "questions"],
                    rows,
                ),
            )
        )
    return found


def _points(means: dict[int, Mean]) -> tuple[Point, ...]:
    return tuple(Point(epoch, mean.score) for epoch, mean in means.items())


# ---- examples -----------------------------------------------------------------------------------------------


class Judged(NamedTuple):
    """A decision that was judged, in its dialogue."""

    dialogue: JudgedDialogue
    decision: JudgedDecision


def _examples(known: Sequence[Judged]) -> Table:
    """Return a table of decisions of the last epoch: those with the smallest and those with the largest values."""
    last = max(each.dialogue.epoch for each in known)
    ranked = sorted(
        (each for each in known if each.dialogue.epoch == last), key=lambda each: each.decision.value or 0.0
    )
    chosen = ranked if len(ranked) <= 2 * NUM_EXAMPLES else [*ranked[:NUM_EXAMPLES], *ranked[-NUM_EXAMPLES:]]
    rows = [
        [
            Cell(_cut(each.dialogue.about)),
            Cell(f"{seat_of(each.decision)}, round {each.decision.round}"),
            Cell(_cut(each.decision.answer)),
            number_cell(each.decision.value),
            Cell(_cut(each.decision.words or "-")),
        ]
        for each in chosen
    ]
    head = ["question", "who", "message", "value", "what is said of it"]
    return Table(f"Messages of epoch {last:,} with the smallest and the largest values.", head, rows)


def _cut(text: str) -> str:
    more = len(text) - MOST_CHARACTERS
    return text if more <= 0 else f"{text[:MOST_CHARACTERS]} ... and {more:,} more characters"
