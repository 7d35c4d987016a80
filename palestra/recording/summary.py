"""The summary that is printed at a run's end: scores before and after, which player beats which, files, next commands.

Two values are said to differ only if their 95% intervals do not overlap. If the intervals are of unequal numbers of
games, both numbers follow.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from palestra.recording.display.scores import score_table
from palestra.recording.results import (
    Evaluation,
    PairResult,
    Progress,
    Seat,
    by_name,
    count_text,
    duration_text,
    estimate_text,
    histories,
    is_after_training,
    num_text,
    pair_label,
    score_text,
    standings,
    time_text,
)
from palestra.runtime.statistics import estimate_mean_of_few

# ---- one run -----------------------------------------------------------------------------------------


def render_summary(console: Console, progress: Progress, files: Mapping[str, Path], ways: Mapping[str, str]) -> None:
    """Print the summary of a run.

    progress: its last state; if its fraction is below 1, the summary says that the run has stopped. files: paths by
    what they hold: "checkpoints", "plot", "records". ways: commands for what may come next, by what they do.
    """
    counters = ", ".join(f"{count_text(count)} {name.replace('_', ' ')}" for name, count in progress.counters.items())
    end = "finished" if progress.fraction >= 1 else f"stopped at {progress.fraction:.0%}"
    console.print()
    _print_line(console, f"{progress.name}: {end} after {duration_text(progress.elapsed_s)}", "bold")
    if progress.end_reason:
        _print_line(console, f"  {progress.end_reason}")
    _print_line(console, f"  {counters}")
    if progress.fraction >= 1 and progress.counters.get("opt_steps") == 0:
        _print_line(console, "  nothing was learned: the run came to its `stop` without an opt step", "bold")
    if progress.time:
        _print_line(console, f"  {time_text(progress.time)}")
    _print_learned(console, progress.evaluations)
    folder = {"run folder": Path(progress.run_folder)} if progress.run_folder else {}
    _print_lines(console, "Files", {name: str(path) for name, path in (folder | dict(files)).items()})
    _print_lines(console, "Next", ways)


def _print_learned(console: Console, evaluations: Sequence[Evaluation]) -> None:
    of_learners = {
        name: found for name, found in by_name(evaluations).items() if any(pair.learned for pair in standings(found))
    }
    if not (named := {name: found for name, found in of_learners.items() if is_after_training(found)}):
        which = "after opt step 0" if of_learners else "of a learning player"
        _print_line(console, f"  no evaluation {which}, so it is unknown what was learned")
    for name, found in named.items():
        console.print()
        if len(named) > 1:
            _print_line(console, f"Evaluation {name}", "bold")
        _print_evaluation(console, found)


def _print_evaluation(console: Console, evaluations: Sequence[Evaluation]) -> None:
    pairs = standings(evaluations)
    learned = [pair for pair in pairs if pair.learned]
    is_alone = len(learned[0].players) == 1
    console.print(_before_after(evaluations, pairs if is_alone else learned))
    moments = [f"after: opt step {evaluations[-1].opt_steps:,}, {num_text(learned)} each"]
    results = histories(evaluations)
    if firsts := [results[pair.seats][0] for pair in learned if len(results[pair.seats]) > 1]:
        moments.insert(0, f"before: opt step {evaluations[0].opt_steps:,}, {num_text(firsts)} each")
    has_intervals = any(pair.has_interval for pair in learned)
    note = "; ".join([*moments, *(["brackets: 95% intervals"] if has_intervals else [])]) + "."
    _print_line(console, note[0].upper() + note[1:], "dim")
    if truncated := [f"{pair_label(pair)} {pair.truncated:,} of {pair.num:,}" for pair in learned if pair.truncated]:
        _print_line(console, f"Games that a time limit ended, and not the rules: {', '.join(truncated)}.", "dim")
    if not is_alone:
        console.print()
        console.print(score_table(evaluations, console.width, num_rows=100))
    for number, line in enumerate(verdicts(evaluations)):
        _print_line(console, line if number else f"\n{line}")


def _print_line(console: Console, line: str, style: str = "") -> None:
    console.print(Text(line, style=style))


def _print_lines(console: Console, title: str, lines: Mapping[str, str]) -> None:
    if lines:
        console.print()
        _print_line(console, title, "bold")
    width = max((len(name) for name in lines), default=0)
    for name, line in lines.items():
        console.print(Text(f"  {name:{width}}  {line}"), soft_wrap=True)  # unbroken, to be copied


def _before_after(evaluations: Sequence[Evaluation], pairs: Sequence[PairResult]) -> Table:
    table, results = _pairings_table(pairs[0], ("before", "after")), histories(evaluations)
    for pair in pairs:
        first, *later = results[pair.seats]
        rows = [
            (estimate_text(first.scores[measure]) if later else "-", estimate_text(score))
            for measure, score in pair.scores.items()
        ]
        _add_rows(table, pair, rows)
    return table


def _pairings_table(example: PairResult, headings: Sequence[str]) -> Table:
    """Make an empty table for the scores of pairings."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    table.add_column(Text(" vs ".join(seat.role for seat in example.seats)), overflow="fold")
    table.add_column("measure")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _add_rows(table: Table, pair: PairResult, rows: Sequence[Sequence[str]]) -> None:
    players = [Text(seat.player, style="bold" if seat.learns else "") for seat in pair.seats]
    for measure, row in zip(pair.scores, rows, strict=True):
        table.add_row(Text(" vs ").join(players) if measure == pair.measure else "", Text(measure), *row)


def verdicts(evaluations: Sequence[Evaluation]) -> list[str]:
    """Return sentences on each learning player, by the 95% intervals.

    They say which other players of its role it beats against the same opponents, and what has changed since the first
    evaluation.
    """
    results = {pair.seats: pair for pair in standings(evaluations) if pair.has_interval}
    lines: list[str] = []
    past = histories(evaluations)
    learners = dict.fromkeys(
        seat
        for pair in results.values()
        for seat in pair.seats
        if seat.learns and seat.role not in pair.past and pair.wish_of(seat)
    )
    num_seats = Counter(seat.player for seat in learners)
    for seat in learners:
        own = {_others(seats, seat): pair for seats, pair in results.items() if seat in seats}
        facing_rivals = {
            opponents: {
                rival.player: result
                for seats, result in results.items()
                for rival in seats
                if rival.role == seat.role and rival != seat and _others(seats, rival) == opponents
            }
            for opponents in own
        }
        is_compared = any(facing_rivals.values())
        who, found = f"{seat.player} as {seat.role}" if num_seats[seat.player] > 1 else seat.player, list[str]()
        title = f"{who}{f', compared with the other players in the role {seat.role}' * is_compared}:"
        for opponents, pair in own.items():
            rivals = facing_rivals[opponents]
            orders = {name: _order(pair, result, seat) for name, result in rivals.items()}
            facing = f"  facing {_names(opponents)}: " if opponents else "  "
            samples = _unequal_samples([(pair, result) for result in rivals.values()], "beside")
            found += _sentence(facing, ("beats", "no clear difference from", "behind"), orders, samples)
        changes, compared = {}, []
        for opponents, pair in own.items():
            if (before := past[pair.seats][:-1]) and not any(opponent.learns for opponent in opponents):
                changes[_names(opponents)] = _order(pair, before[0], seat)
                compared.append((before[0], pair))
        against = " against" if any(changes) else ""
        words = (f"better{against}", f"no clear change{against}", f"worse{against}")
        found += _sentence("  since the first evaluation: ", words, changes, _unequal_samples(compared, "then, now"))
        lines += [title, *found] if found else []
    return lines


def _others(seats: tuple[Seat, ...], own: Seat) -> tuple[Seat, ...]:
    return tuple(seat for seat in seats if seat != own)


def _names(seats: tuple[Seat, ...]) -> str:
    return ", ".join(seat.player for seat in seats)


def _order(own: PairResult, other: PairResult, seat: Seat) -> int:
    """Return 1 if `own` is better for a seat, -1 if it is worse, 0 if the intervals overlap."""
    mine, theirs = own.score_of(seat), other.score_of(seat)
    higher = int(mine.low > theirs.high) - int(mine.high < theirs.low)
    return higher if own.wish_of(seat) == "high" else -higher


def _unequal_samples(compared: Sequence[tuple[PairResult, PairResult]], between: str) -> str:
    """Return the numbers of games of the intervals that were compared; "" if they are equal in every pair."""
    if all(one.num == other.num for one, other in compared):
        return ""
    ones, others = ([pair[place] for pair in compared] for place in (0, 1))
    return f" ({num_text(ones)} {between} {num_text(others)})"


def _sentence(start: str, words: tuple[str, str, str], orders: Mapping[str, int], end: str) -> list[str]:
    """Return a line such as "  facing random: beats a, b; behind c", in a list; [] if there are no names."""
    groups = [[name for name, order in orders.items() if order == sign] for sign in (1, 0, -1)]
    clauses = [f"{word} {', '.join(group)}".rstrip() for word, group in zip(words, groups, strict=True) if group]
    return [start + "; ".join(clauses) + end] if clauses else []


# ---- several seeds -----------------------------------------------------------------------------------


def render_seeds_summary(console: Console, runs: Mapping[int, Sequence[Evaluation]]) -> None:
    """Print the means over seeds of each pairing's scores at the first and the last evaluation.

    Each mean has its 95% t interval; the smallest and the largest score at the last evaluation follow.

    runs: seed -> the evaluations of its run, the oldest first.
    """
    seeds = ", ".join(map(str, runs))
    console.print()
    _print_line(console, f"Over {len(runs)} seeds ({seeds})", "bold")
    trained = [
        {name: found for name, found in by_name(evaluations).items() if is_after_training(found)}
        for evaluations in runs.values()
    ]
    names = list(dict.fromkeys(name for each in trained for name in each))
    found_tables = {name: _table_of_seeds([each.get(name, []) for each in trained]) for name in names}
    if not (tables := {name: table for name, table in found_tables.items() if table is not None}):
        which = "after opt step 0" if any(runs.values()) else "of a learning player"
        _print_line(console, f"  no evaluation {which}")
        return
    for name, table in tables.items():
        if len(names) > 1:
            _print_line(console, f"Evaluation {name}", "bold")
        console.print(table)
    _print_line(console, "Means over seeds, ± their 95% t interval; least and most: of single seeds, after.", "dim")
    found = (past for each in trained for own in each.values() for past in histories(own).values())
    learned = [past for past in found if past[-1].learned]
    before, after = (num_text(past[place] for past in learned) for place in (0, -1))
    _print_line(console, f"Of each seed and pairing before: {before}; after: {after}.", "dim")


def _table_of_seeds(runs: Sequence[Sequence[Evaluation]]) -> Table | None:
    if not (pairs := {pair.seats: pair for evaluations in runs for pair in standings(evaluations) if pair.learned}):
        return None
    table = _pairings_table(next(iter(pairs.values())), ("before", "after", "least", "most"))
    past = [histories(evaluations) for evaluations in runs]
    for seats, pair in pairs.items():
        found = [results[seats] for results in past if seats in results]
        rows = []
        for name in pair.scores:
            before, after = ([results[place].scores[name].value for results in found] for place in (0, -1))
            rows.append((mean_text(before), mean_text(after), score_text(min(after)), score_text(max(after))))
        _add_rows(table, pair, rows)
    return table


def mean_text(values: Sequence[float]) -> str:
    """Return the mean of independent values and half its 95% t interval, as ".256 ±.006". One value has no interval."""
    mean = estimate_mean_of_few(values)
    return score_text(mean.value) + (f" ±{score_text(mean.half)}" if math.isfinite(mean.half) else "")
