"""Scores of evaluations as people read them: a table of the present ones, and curves."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rich.console import Console, Group, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from palestra.recording.results import (
    UNKNOWN,
    Evaluation,
    PairResult,
    Seat,
    as_float,
    histories,
    num_text,
    pair_label,
    printable,
    rating_interval_text,
    score_text,
    sparkline,
    standings,
)
from palestra.runtime.scores import Estimate


def score_table(evaluations: Sequence[Evaluation], width: int, num_rows: int) -> RenderableType:
    """Draw the present scores with the first role in rows, the second in columns, and learning players in bold.

    Half the 95% interval and the change since the first evaluation are added where `width` has room. Games of one role,
    or of more than two, are a list with all scores.
    """
    pairs, results = standings(evaluations), histories(evaluations)
    if not pairs:
        return Text("no pairings evaluated", style="dim")
    console = Console(width=10_000)  # to measure with
    for details in (("interval", "change"), ("change",), ()):
        table, num_left_out = _score_grid(pairs, results, width, num_rows, details)
        if Measurement.get(console, console.options, table).maximum <= width:
            break
    title = printable(pairs[0].measure) if len(pairs[0].seats) == 2 else "scores"
    if any(pair.learned for pair in pairs):
        title += f" at opt step {evaluations[-1].opt_steps:,}"
    if "change" in details and len(evaluations) > 1:
        title += " and change since the first evaluation"
        learned = [pair for pair in pairs if pair.learned]
        then = num_text(results[pair.seats][0] for pair in learned)
        title += f" of {then}" if then != num_text(learned) else ""
    if num_left_out:
        title += f" ({num_left_out} more rows or columns)"
    return Group(Text(title, style="dim", no_wrap=True, overflow="ellipsis"), table)


def ratings_table(ratings: Mapping[tuple[str, str], Estimate]) -> RenderableType:
    """Draw the ratings of an evaluation, by role and player, in their order."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for heading in ("player", "role", "rating", "95% interval"):
        table.add_column(heading, justify="left" if heading in ("player", "role") else "right", no_wrap=True)
    for (role, player), each in ratings.items():
        table.add_row(Text(printable(player)), Text(printable(role)), f"{each.value:+.0f}", rating_interval_text(each))
    return Group(Text("ratings on the scale of Elo: 400 points are odds of ten to one", style="dim"), table)


def _score_grid(
    pairs: Sequence[PairResult],
    results: Mapping[tuple[Seat, ...], Sequence[PairResult]],
    width: int,
    num_rows: int,
    details: Sequence[str],
) -> tuple[Table, int]:
    """Return the table, and the number of rows and columns for which there was no room."""
    num_heads = 1 if all(len(pair.seats) == 2 for pair in pairs) else max(len(pair.seats) for pair in pairs)
    rows: dict[tuple[Seat, ...], dict[tuple[Seat, ...], PairResult]] = {}
    for pair in pairs:
        rows.setdefault(pair.seats[:num_heads], {})[pair.seats[num_heads:]] = pair
    heads = sorted(rows, key=_is_scripted)
    columns = sorted(dict.fromkeys(column for row in rows.values() for column in row), key=_is_scripted)
    num_columns = max(1, (width - 17) // 8)

    roles = [printable(seat.role) for seat in pairs[0].seats]
    table = Table(box=None, padding=(0, 2 if width >= 96 else 1, 0, 0), header_style="")
    corner = Text((" \\ " if num_heads == 1 else ", ").join(roles), style="dim")
    table.add_column(corner, no_wrap=True, max_width=max(8, width // 3))
    cells = [(column, pairs[0].measure) for column in columns]  # what each column shows: opponents, and a score
    if columns == [()]:
        cells = [((), measure) for measure in pairs[0].scores]
    for column, measure in cells[:num_columns]:
        if column:
            table.add_column(_seats_text(column), justify="right", no_wrap=True)
        else:
            table.add_column(Text(printable(measure)), justify="right", min_width=8)
    for head in heads[:num_rows]:
        shown = [(rows[head].get(column), measure) for column, measure in cells[:num_columns]]
        texts = [_cell(pair, measure, results[pair.seats], details) if pair else Text("") for pair, measure in shown]
        table.add_row(_seats_text(head), *texts)
    return table, max(0, len(heads) - num_rows) + max(0, len(cells) - num_columns)


def _is_scripted(seats: tuple[Seat, ...]) -> bool:
    return not any(seat.learns for seat in seats)


def _seats_text(seats: tuple[Seat, ...]) -> Text:
    return Text(", ").join(Text(printable(seat.player), style="bold" if seat.learns else "") for seat in seats)


def _cell(pair: PairResult, measure: str, results: Sequence[PairResult], details: Sequence[str]) -> Text:
    score = pair.scores.get(measure, UNKNOWN)
    cell = Text(score_text(score.value))
    half = (as_float(score.high) - as_float(score.low)) / 2
    if "interval" in details and math.isfinite(half):
        cell.append(f" ±{score_text(half)}", style="dim")
    if "change" in details and pair.learned and len(results) > 1:
        change = as_float(score.value) - as_float(results[0].scores.get(measure, UNKNOWN).value)
        is_high_good, style = pair.is_high_good(measure), "dim"  # where gain and loss cannot be said of all that learn
        if is_high_good is not None and abs(change) > 0 and not pair.past:
            style = "green" if (change > 0) == is_high_good else "red"
        cell.append(f" {score_text(change, '+')}", style=style)
    return cell


# ---- curves ------------------------------------------------------------------------------------------


class ScoreCurve(NamedTuple):
    """A curve of the scores of a pairing over a run's evaluations. first, last: its ends as text."""

    label: str
    first: str
    bars: str
    last: str


def learning_curves(named: Mapping[str, Sequence[Evaluation]], width: int) -> list[ScoreCurve]:
    """Return at most two curves of the first evaluation, and one of each of at most two others, with its name.

    width: of the bars.
    """
    (_, first), *others = named.items() or [("", [])]
    found = _curves_of(first, width)
    for name, evaluations in others[:2]:
        found += [curve._replace(label=f"{name}: {curve.label}") for curve in _curves_of(evaluations, width)[:1]]
    return found


def _curves_of(evaluations: Sequence[Evaluation], width: int) -> list[ScoreCurve]:
    """Return the curves of at most two learning seats.

    A seat is shown in its first pairing with a player that does not learn or, if there is none, in its first pairing.
    """
    chosen: dict[Seat, PairResult] = {}
    for pair in sorted(standings(evaluations), key=lambda pair: len(pair.learned)):
        for seat in pair.seats:
            if seat.learns:
                chosen.setdefault(seat, pair)
    results, found = histories(evaluations), []
    for pair in list({pair.seats: pair for pair in chosen.values()}.values())[:2]:
        scores = [as_float(earlier.score.value) for earlier in results[pair.seats]]
        bars = sparkline(scores, max(1, width))
        found.append(ScoreCurve(pair_label(pair), score_text(scores[0]), bars, score_text(scores[-1])))
    return found
