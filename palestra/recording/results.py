"""Results of a run as plain data, and numbers as text, for displays, summaries and plots."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple, Self, TypeVar

from palestra.runtime.scores import DeclaredScore, Estimate, Wish, declared_in, return_of

K = TypeVar("K")
T = TypeVar("T")
SPARKS = "▁▂▃▄▅▆▇█"


class Seat(NamedTuple):
    """A role of a game and the player that sits in it."""

    role: str
    player: str
    learns: bool


UNKNOWN = Estimate.of(None)
RATINGS = ("overall_ratings", "ratings")  # in the record of an evaluation


@dataclass(frozen=True)
class PairResult:
    """The result of one pairing of players in an evaluation.

    players: role -> player, with the roles in the order of the game. learned: the roles held by players that training
    changes: those that learn, and past selves.
    every_score: the scores that the game or the model declares. declared: what they are, in the order of tables. num:
    how many games or items, as `counted` says. distinct: how many different questions or starts they have, by name, if
    some are equal. started_over: games that were over at their start, which count in
    nothing else. past: the roles held by past selves, who are others at each evaluation.
    """

    players: Mapping[str, str]
    learned: tuple[str, ...]
    every_score: Mapping[str, Estimate]
    declared: Mapping[str, DeclaredScore]
    num: int
    truncated: int
    started_over: int
    counted: str = "games"
    distinct: Mapping[str, int] = field(default_factory=dict)
    past: tuple[str, ...] = ()

    @classmethod
    def from_record(
        cls, pair: Mapping[str, Any], roles: Sequence[str], declared: Mapping[str, DeclaredScore], counted: str
    ) -> Self:
        """Read one of the `pairs` of an evaluation's record, in which null stands for NaN. roles: of the game."""
        return cls(
            players={role: pair["players"][role] for role in roles},
            learned=tuple(pair["learned"]),
            every_score={
                name: Estimate.of(pair["scores"][name], *pair["intervals"].get(name, ())) for name in declared
            },
            declared=declared,
            num=pair[counted],
            truncated=pair.get("truncated", 0),
            started_over=pair.get("started_over", 0),
            counted=counted,
            distinct=pair.get("distinct", {}),
            past=tuple(pair.get("past", ())),
        )

    @cached_property
    def scores(self) -> dict[str, Estimate]:
        """The scores that tables of results show. Where there is room for one, it is the first."""
        return {name: score for name, score in self.every_score.items() if self.declared[name].shown}

    @cached_property
    def seats(self) -> tuple[Seat, ...]:
        """The players by role. Equal seats mean the same pairing."""
        return tuple(Seat(role, player, role in self.learned) for role, player in self.players.items())

    @property
    def measure(self) -> str:
        """The name of the first score."""
        return next(iter(self.scores), "score")

    @property
    def score(self) -> Estimate:
        """The first score."""
        return self.scores.get(self.measure, UNKNOWN)

    @property
    def has_interval(self) -> bool:
        """Whether some score has an interval, or the first one is unknown, so that pairings can be compared.

        The scores of an evaluation of the user's own have no intervals.
        """
        has_any = any(not (math.isnan(low) and math.isnan(high)) for _, low, high in self.scores.values())
        return has_any or math.isnan(self.score.value)

    def measure_of(self, seat: Seat) -> str:
        """Return the name of a seat's score: the return of its role, or the first score where returns are not shown."""
        own = return_of(seat.role)
        return own if own in self.scores else self.measure

    def score_of(self, seat: Seat) -> Estimate:
        """Return the score of a seat."""
        return self.scores.get(self.measure_of(seat), UNKNOWN)

    def wish_of(self, seat: Seat) -> Wish | None:
        """Return how a seat wants its score; None if the score means nothing to it."""
        declared = self.declared.get(self.measure_of(seat))
        return None if declared is None else declared.wish_of(seat.role)

    def is_share(self, measure: str) -> bool:
        """Return whether a score lies between 0 and 1."""
        return measure in self.declared and self.declared[measure].is_share

    def is_high_good(self, measure: str) -> bool | None:
        """Return whether the players that learn want a score high.

        None if it means nothing to any of them, or if they want the contrary of each other.
        """
        wishes = {self.declared[measure].wish_of(role) for role in self.learned} - {None}
        return wishes == {"high"} if len(wishes) == 1 else None


@dataclass(frozen=True)
class Evaluation:
    """The results of one of a run's evaluations, at one moment of training. counters: all of the run."""

    name: str
    opt_steps: int
    pairs: tuple[PairResult, ...]
    counters: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """Read name, steps and `distinct_pairs` of an evaluation's record, in which null stands for NaN."""
        declared, roles, counted = declared_in(record), record["roles"], counted_in(record)
        pairs = tuple(PairResult.from_record(pair, roles, declared, counted) for pair in distinct_pairs(record))
        counters = {name: number for name, number in record.items() if type(number) is int}  # all others are no numbers
        return cls(record["evaluation"], record["opt_steps"], pairs, counters)


def counted_in(record: Mapping[str, Any]) -> str:
    """Return what the pairs of an evaluation's record count: games or items, the key of the number in each."""
    return str(record.get("counted", "games"))


def names_of_pairing(players: Iterable[str]) -> str:
    """Return the players of a pairing, in the order of the game's roles, as "host vs random"."""
    return " vs ".join(players)


def path_of_pairing(evaluation: str, players: Mapping[str, str]) -> str:
    """Return what the names of a pairing's numbers begin with, as evaluation/main/host vs random.

    players: by role, in the order of the game.
    """
    return f"evaluation/{evaluation}/{names_of_pairing(players.values())}"


def path_of_pair(record: Mapping[str, Any], pair: Mapping[str, Any]) -> str:
    """Return `path_of_pairing` of one of the `pairs` of an evaluation's record."""
    return path_of_pairing(record["evaluation"], {role: pair["players"][role] for role in record["roles"]})


def distinct_pairs(record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the `pairs` of an evaluation's record without those that repeat another one under other names."""
    return [pair for pair in record["pairs"] if pair.get("same_as") is None]


@dataclass(eq=False)
class Task:
    """A section of a run with an end of its own, such as an evaluation that is being played; `done` grows meanwhile.

    num_rounds: how many rounds the longest game in play has had. most_rounds: after which it is cut off; None: not
    known.
    """

    name: str
    done: int
    total: int
    unit: str  # what is counted, as "games" or "items"
    most_rounds: int | None = None
    num_rounds: int = 0

    def move(self, done: int, num_rounds: int) -> None:
        """Take note of how far it has come."""
        self.done, self.num_rounds = done, num_rounds


@dataclass(frozen=True)
class Stage:
    """A stage of a run as its config declares it. length: how much is done, counted in `unit`; None: not known before.

    description: what is done, in plain words, without a full stop.
    """

    description: str
    length: float | None
    unit: str


@dataclass(frozen=True)
class Progress:
    """How a run, or an evaluation of a stored run, stands at one moment. Rates are per second of training."""

    name: str
    run_folder: str | None
    device: str
    fraction: float  # of training, 0..1
    elapsed_s: float
    remaining_s: float | None
    counters: Mapping[str, int]  # those that the run counts, in the order of its records
    tasks: Sequence[Task]  # going on at the moment
    phase: Callable[[], str]  # what goes on right now, as "playing"; asked from the display's thread
    stages: Mapping[str, Stage] = field(default_factory=dict)  # all of the run, by name, in their order
    stage: str | None = None  # which of them goes on
    time: Mapping[str, float] = field(default_factory=dict)  # phase -> seconds, see palestra.runtime.timing
    rates: Mapping[str, float] = field(default_factory=dict)  # of the counters that have one, per second
    # learning player -> loss, q_mean, exploration, learning_rate, ...; and the same over the run so far
    players: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    curves: Mapping[str, Mapping[str, Sequence[float]]] = field(default_factory=dict)
    evaluations: Sequence[Evaluation] = ()  # all so far, the oldest first
    end_reason: str | None = None  # why the run ends, or ended, before its `stop`
    decisive: Mapping[tuple[str, int], str] = field(default_factory=dict)  # evaluation, opt step -> what decides `best`


def by_name(evaluations: Sequence[Evaluation]) -> dict[str, list[Evaluation]]:
    """Return the evaluations of each name, in the order in which the names come first."""
    return grouped((each.name, each) for each in evaluations)


def grouped(items: Iterable[tuple[K, T]]) -> dict[K, list[T]]:
    """Return the items of each key, in the order in which the keys come first."""
    found: dict[K, list[T]] = {}
    for key, item in items:
        found.setdefault(key, []).append(item)
    return found


# ---- of evaluations of one name ----------------------------------------------------------------------


def standings(evaluations: Sequence[Evaluation]) -> list[PairResult]:
    """Return the results of the last evaluation, then the earlier ones of pairings without a learner.

    Nobody learns in the latter, so their results do not change.
    """
    found: dict[tuple[Seat, ...], PairResult] = {}
    for evaluation in reversed(evaluations):
        for pair in evaluation.pairs:
            if evaluation is evaluations[-1] or not pair.learned:
                found.setdefault(pair.seats, pair)
    return list(found.values())


def is_after_training(evaluations: Sequence[Evaluation]) -> bool:
    """Return whether the last evaluation came after an opt step: what opt step 0 scored is no result of a training."""
    return evaluations[-1].opt_steps > 0


def histories(evaluations: Sequence[Evaluation]) -> dict[tuple[Seat, ...], list[PairResult]]:
    """Return the results of each pairing, the oldest first."""
    return grouped((pair.seats, pair) for evaluation in evaluations for pair in evaluation.pairs)


# ---- numbers as text: each function accepts any value -------------------------------------------------


def as_float(value: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return math.nan


def ratings_of(record: Mapping[str, Any]) -> dict[tuple[str, str], Estimate]:
    """Read the ratings in the record of an evaluation by role and player, over both roles first, the best ones first.

    Entries that are none are left out.
    """
    overall, by_role = (value if isinstance(value := record.get(key), Mapping) else {} for key in RATINGS)
    found: dict[tuple[str, str], Estimate] = {}
    for role, rated in {"both": overall.get("players"), "lead": overall.get("roles"), **by_role}.items():
        each = {player: _rating(value) for player, value in rated.items()} if isinstance(rated, Mapping) else {}
        best_first = sorted(each.items(), key=lambda item: -item[1].value)
        found |= {(role, player): rating for player, rating in best_first if math.isfinite(rating.value)}
    return found


def _rating(value: object) -> Estimate:
    if isinstance(value, Mapping):
        return Estimate(*(as_float(value.get(key)) for key in ("rating", "low", "high")))
    return Estimate.of(as_float(value))


def count_text(value: object) -> str:
    """Return a number as 1,234 or 1.23M."""
    if not math.isfinite(number := as_float(value)) or abs(number) >= 1e15:
        return f"{number:.3g}"
    if abs(number) < 1e5:
        return f"{number:,.0f}" if abs(number) >= 100 or number == int(number) else f"{number:.3g}"
    exponent = int(f"{number:.2e}".split("e")[1])  # after rounding: 999,999 is 1.00M
    return f"{number / 10 ** (exponent // 3 * 3):.{2 - exponent % 3}f}{' kMGTP'[exponent // 3]}"


def score_text(value: object, sign: Literal["-", "+"] = "-") -> str:
    """Return a score as in a table: .169, -1.250, 475.2; with sign "+" a change: +.087."""
    if math.isnan(number := as_float(value)):
        return "-"
    if abs(number) >= 100:
        return f"{number:{sign}.1f}" if abs(number) < 1e4 else f"{number:{sign}.3g}"
    return f"{number:{sign}.3f}".replace("0.", ".", 1) if abs(number) < 0.9995 else f"{number:{sign}.3f}"


def rating_interval_text(rating: Estimate) -> str:
    """Return the interval of a rating, as "-12 to +30"; "" if it has none."""
    return "" if math.isnan(rating.low) else f"{rating.low:+.0f} to {rating.high:+.0f}"


def interval_text(score: Estimate) -> str:
    """Return the interval of a score, as "[.250, .264]"; "" if it has none."""
    return "" if math.isnan(score.half) else f"[{score_text(score.low)}, {score_text(score.high)}]"


def estimate_text(score: Estimate | None) -> str:
    """Return a score with its interval, as ".257 [.250, .264]", or alone if it has none; "-" for None."""
    return "-" if score is None else f"{score_text(score.value)} {interval_text(score)}".rstrip()


def duration_text(seconds: object) -> str:
    """Return a duration as 0:02:03, 5d 04h, or "?"."""
    if not math.isfinite(number := as_float(seconds)):
        return "?"
    minutes, second = divmod(int(max(number, 0.0)), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours < 100 else f"{count_text(hours // 24)}d {hours % 24:02}h"


def time_text(time: Mapping[str, float]) -> str:
    """Return the phases that take at least 1% of the time, as "play 41%  update 50%"."""
    return "  ".join(f"{phase} {share:.0%}" for phase, share in phase_shares(time))


def phase_shares(time: Mapping[str, float]) -> list[tuple[str, float]]:
    total = sum(time.values()) or 1.0
    return [(phase, seconds / total) for phase, seconds in time.items() if seconds >= 0.01 * total]


def task_text(task: Task) -> str:
    """Return how far a task is: "120 of 300 games"; while a game is played also "round 35 of at most 500"."""
    text = f"{task.done:,} of {task.total:,} {task.unit}"
    if task.most_rounds is None or not task.num_rounds or task.done >= task.total:
        return text
    return f"{text}, round {task.num_rounds:,} of at most {task.most_rounds:,}"


def amount_text(stage: Stage) -> str:
    """Return the length of a stage, as "12,000 opt steps"; "" if it is not known before, or nothing is done."""
    if not stage.length:
        return ""
    length = as_float(stage.length)
    number = f"{length:,.0f}" if length.is_integer() else f"{length:g}"
    return f"{number} {label(stage.unit).removesuffix('s' if length == 1 else '')}"


def stage_text(name: str, stage: Stage) -> str:
    """Return a stage in words, as "train: 12,000 opt steps, host and agent update in turn"."""
    return f"{name}: " + ", ".join(filter(None, (amount_text(stage), stage.description)))


def metric_text(value: object) -> str:
    """Return a metric as 0.0123, and a count as 1,234 or 1.23M."""
    if isinstance(value, int):
        return count_text(value)
    return "-" if value is None else f"{as_float(value):.3g}"


def fraction_of_one(value: object) -> float:
    number = as_float(value)
    return 0.0 if math.isnan(number) else min(max(number, 0.0), 1.0)


def label(key: str) -> str:
    return printable(key.replace("_", " "))


def printable(text: str) -> str:
    return "".join(character if character.isprintable() else "?" for character in text)


def known_text(text: str, encoding: str = "ascii") -> str:
    return printable(text).encode(encoding, "replace").decode(encoding)


def num_text(pairs: Iterable[PairResult]) -> str:
    """Return how many games or items each of the pairings has: "20 games", or "90 to 100 games"."""
    pairs = list(pairs)
    nums, what = [as_float(pair.num) for pair in pairs], counted_by(pairs)
    text = f"{_range(nums)} {what.removesuffix('s') if set(nums) == {1.0} else what}"
    for name in dict.fromkeys(name for pair in pairs for name in pair.distinct):
        numbers = [as_float(pair.distinct.get(name, pair.num)) for pair in pairs]
        text += f" on {_range(numbers)} {name.removesuffix('s') if set(numbers) == {1.0} else name}"
    return text


def _range(numbers: Sequence[float]) -> str:
    least, most = count_text(min(numbers, default=0.0)), count_text(max(numbers, default=0.0))
    return most if least == most else f"{least} to {most}"


def counted_by(pairs: Iterable[PairResult]) -> str:
    """Return what some pairings count, as "games", or "games and items"; "games" where there is none."""
    return " and ".join(dict.fromkeys(pair.counted for pair in pairs)) or "games"


def pair_label(pair: PairResult) -> str:
    """Return the players of a pairing for people, as "zeillinger vs agent"."""
    return names_of_pairing(printable(seat.player) for seat in pair.seats)


def thinned(items: Sequence[T], most: int) -> Sequence[T]:
    """Return at most so many of the items, evenly chosen, with both ends."""
    if len(items) <= most:
        return items
    return [items[round(i * (len(items) - 1) / max(most - 1, 1))] for i in range(most)]


def sparkline(values: Sequence[float], width: int) -> str:
    """Draw one bar per value, scaled from the least to the largest; of more than `width` values an even selection."""
    values = thinned(values, width)
    if not (finite := [value for value in values if math.isfinite(value)]):
        return ""
    low, span = min(finite), max(finite) - min(finite)
    return "".join(
        SPARKS[round((value - low) / span * 7) if 0 < span < math.inf else 3] if math.isfinite(value) else " "
        for value in values
    )
