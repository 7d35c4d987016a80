"""Tables of evaluations: the scores of every pairing, a coloured table of who meets whom, ratings."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from palestra.config import under
from palestra.recording import results
from palestra.report.blocks import Block, Cell, Heading, Note, Section, Table, count, number, scored
from palestra.report.groups import Group, Standing, cut, mean_score, standings_of
from palestra.report.reading import count_in
from palestra.runtime.scores import Estimate

Seats = tuple[results.Seat, ...]


def evaluations_section(groups: Sequence[Group]) -> Section:
    blocks: list[Block] = []
    names = evaluation_names(groups)
    for name in names:
        for group in groups:
            titles = [f"Evaluation {name}"] if len(names) > 1 else []
            titles += [group.label] if len(groups) > 1 else []
            if standings := _standings(group, name):
                blocks += [Heading(": ".join(titles))] if titles else []
                blocks += _evaluation(group, name, standings)
    for name, found in [(run.name, found) for group in groups for run in group.runs for found in run.again]:
        what = f"{name}, {found.evaluation.name}, at opt step {found.evaluation.opt_steps:,}"
        changes = f", with {', '.join(found.changes)}" if found.changes else ""
        caption = f"Evaluated afterwards: {what}{changes}."
        rows = [_row_of_one(pair, raw) for pair, raw in found.pairs]
        blocks.append(Table(caption, _head_of_one(found.evaluation.pairs[:1], before=False), rows))
    return Section("evaluations", "Evaluations", blocks or [Note("There is none.")])


def counted_in_runs(groups: Sequence[Group]) -> str:
    """Say what the evaluations of runs count: games, items, or both."""
    evaluations = (each.evaluation for group in groups for run in group.runs for each in run.evaluated)
    return results.counted_by(pair for evaluation in evaluations for pair in evaluation.pairs)


def evaluation_names(groups: Sequence[Group]) -> list[str]:
    return list(dict.fromkeys(each.evaluation.name for group in groups for run in group.runs for each in run.evaluated))


def pairings(groups: Sequence[Group], name: str, learned: bool = True) -> Iterator[tuple[Seats, results.PairResult]]:
    """Yield the pairings of an evaluation, each with its last result in the first run that has one.

    learned: those in which a player learns; False: those in which none does.
    """
    found: dict[Seats, results.PairResult] = {}
    for group in groups:
        for seats, standings in _standings(group, name).items():
            found.setdefault(seats, standings[0].last)
    yield from ((seats, pair) for seats, pair in found.items() if bool(pair.learned) == learned)


def _standings(group: Group, name: str) -> dict[Seats, list[Standing]]:
    """Return every pairing's standing in each of the group's runs that have played it."""
    found: dict[Seats, list[Standing]] = {}
    for run in group.runs:
        for seats, standing in standings_of(run.evaluated, name).items():
            found.setdefault(seats, []).append(standing)
    return found


def _evaluation(group: Group, name: str, standings: Mapping[Seats, list[Standing]]) -> Iterator[Block]:
    example = next(iter(standings.values()))[0].last
    steps = sorted({each.opt_steps for found in standings.values() for each in found if each.last.learned})
    at = f", at opt step {' or '.join(f'{step:,}' for step in steps)}" if len(steps) <= 3 else ", at the last opt steps"
    at = at if steps else ""  # where nobody learns
    changed = [each for found in standings.values() for each in found if each.first is not each.last]
    then, now = results.num_text(each.first for each in changed), results.num_text(each.last for each in changed)
    of_first = "" if then == now else f", of {then} a pairing where the last one has {now}"
    if len(group.runs) == 1:
        before = f", before is the first evaluation{of_first}" if steps else ""
        caption = f"{name}{at}; brackets are 95% intervals over {example.counted}{before}."
        rows = [
            _row_of_one(found[0].last, found[0].raw, found[0].first if steps else None) for found in standings.values()
        ]
        yield Table(caption, _head_of_one([example], before=bool(steps)), rows)
    else:
        means = f"means over {len(group.runs)} runs, with their 95% t intervals"
        caption = f"{name}{at}: {means}; before is the first evaluation{of_first}."
        rows = [row for found in standings.values() for row in _rows_of_several(found)]
        yield Table(caption, ["pairing", "mean", "runs", "before", "least", "most"], rows)
    counts = {seats: sum(count_in(each.raw, "overflow") for each in found) for seats, found in standings.items()}
    if overflown := ", ".join(f"{n:,} games of {pairing_text(seats)}" for seats, n in counts.items() if n):
        yield Note(f"Cut off because numbers grew too large for exact play: {overflown}.")
    yield from filter(None, (_cross_table(standings), _ratings(group, name)))


def _head_of_one(examples: Sequence[results.PairResult], before: bool) -> list[str]:
    measures = _wanted(examples[0]) if examples else []
    figures = [f"{measure} before" for measure in measures] if before else []
    counted = {pair.counted for pair in examples} - {"games"} or ("IQM of returns", "length", "games", "cut off")
    return ["pairing", *measures, *figures, *counted]


def _row_of_one(
    pair: results.PairResult, raw: Mapping[str, Any], first: results.PairResult | None = None
) -> list[Cell]:
    measures = _wanted(pair)
    before = []
    if first is not None:
        known = {} if first is pair else first.scores
        before = [number(known[measure].value) if measure in known else Cell("-") for measure in measures]
    iqms = [under(raw, "statistics", "episode_return", role, "iqm") for role in pair.players]
    scores = [Cell(pairing_text(pair.seats)), *(scored(pair.scores[measure]) for measure in measures), *before]
    if pair.counted != "games":
        return [*scores, count(pair.num)]
    return [
        *scores,
        Cell("-" if None in iqms else ", ".join(map(results.score_text, iqms))),
        number(results.as_float(under(raw, "statistics", "episode_length", "mean"))),
        Cell(results.num_text([pair])) if pair.distinct else count(pair.num),
        count(pair.truncated),
    ]


def _wanted(pair: results.PairResult) -> list[str]:
    """Return the scores that mean something to some role, each a column; the section on scores has the others."""
    return [name for name in pair.scores if pair.declared[name].high_for or pair.declared[name].low_for]


def _rows_of_several(found: Sequence[Standing]) -> Iterator[list[Cell]]:
    for measure in found[0].last.scores:
        scores = [each.last.scores[measure] for each in found if measure in each.last.scores]
        values = [score.value for score in scores]
        before = [each.first.scores[measure].value for each in found if measure in each.first.scores]
        yield [
            Cell(pairing_text(found[0].seats), detail=measure),
            scored(cut(mean_score(scores), measure, found[0].last.is_share(measure))),
            count(len(scores)),
            number(fmean(before)) if found[0].first is not found[0].last else Cell("-"),
            number(min(values)),
            number(max(values)),
        ]


def pairing_text(seats: Seats) -> str:
    """Return the players of a pairing, as "host vs random".

    If there are several players, a star marks those that learn.
    """
    return results.names_of_pairing(f"{seat.player}{'*' if seat.learns and len(seats) > 1 else ''}" for seat in seats)


# ---- who meets whom ------------------------------------------------------------------------------------


def _cross_table(standings: Mapping[Seats, Sequence[Standing]]) -> Table | None:
    """Make a table of the first score of every pairing of two roles; None if it would have only one row or column."""
    scores = {
        seats: mean_score([each.last.score for each in found]) for seats, found in standings.items() if len(seats) == 2
    }
    first, second = (list(dict.fromkeys(seats[place] for seats in scores)) for place in (0, 1))
    if len(first) < 2 or len(second) < 2:
        return None
    low, high = ends_of_colours(score.value for score in scores.values())
    rows = [
        [
            Cell(_player_text(row)),
            *(heat_cell(scores.get((row, column), results.UNKNOWN).value, low, high) for column in second),
        ]
        for row in first
    ]
    measure = next(iter(standings.values()))[0].last.measure
    colours = f"from {results.score_text(low)} (pale) to {results.score_text(high)} (full)"
    caption = f"Who meets whom: {measure}, {colours}; {first[0].role} in rows, {second[0].role} in columns."
    if any(seat.learns for seat in (*first, *second)):
        caption += " * trained in the run."
    return Table(caption, [f"{first[0].role} \\ {second[0].role}", *map(_player_text, second)], rows, is_heat=True)


def ends_of_colours(values: Iterable[float], is_share: bool = False) -> tuple[float, float]:
    """Return the values with the palest and the fullest colour among those of one score, which may be a share."""
    known = [*filter(math.isfinite, values), *((0.0, 1.0) if is_share else ())]
    return min(known, default=0.0), max(known, default=0.0)


def heat_cell(value: float, low: float, high: float) -> Cell:
    """Make the cell of a score, coloured by its place between the ends of colours; "-" for one that is not finite."""
    if not math.isfinite(value):
        return Cell("-")
    return Cell(results.score_text(value), value, heat=(value - low) / (high - low) if high > low else 0.5)


def _player_text(seat: results.Seat) -> str:
    return f"{seat.player}*" if seat.learns else seat.player


def _ratings(group: Group, name: str) -> Table | None:
    """Make a table of the ratings in each run's last evaluation that has them, as means over the runs."""
    found: dict[tuple[str, str], list[Estimate]] = {}
    for run in group.runs:
        by_time = [ratings for each in run.results(name) if (ratings := results.ratings_of(each.record))]
        for seat, rating in by_time[-1].items() if by_time else ():
            found.setdefault(seat, []).append(rating)
    if not found:
        return None
    scores = {seat: mean_score(ratings) for seat, ratings in found.items()}
    roles = list(dict.fromkeys(role for role, _ in scores))
    rows = [
        [Cell(player), Cell(role), Cell(f"{each.value:+.0f}", each.value, results.rating_interval_text(each))]
        for (role, player), each in sorted(scores.items(), key=lambda item: (roles.index(item[0][0]), -item[1].value))
    ]
    caption = "Ratings on the scale of Elo, the mean of all being 0: 400 points are odds of ten to one."
    if "lead" in roles:
        caption += " Both: over both roles; lead: what the first role gives to whoever plays it."
    return Table(caption, ["player", "role", "rating"], rows)
