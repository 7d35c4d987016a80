"""Measures: which number of an evaluation's record decides, for the best checkpoint and for callbacks.

A measure is one of the statistics of a pairing, or a function of one's own, named as package.module:function.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, Protocol

from pydantic import AfterValidator

from palestra.config import Config, ConfigErrorItem, NonEmptyStr, NonNegativeInt, admitted_function, load_function
from palestra.config.errors import listed, nearest_hint
from palestra.evaluation.config import AnyEvaluationConfig
from palestra.runtime.intervals import Interval
from palestra.runtime.scores import DeclaredScore, return_of

STATISTICS = ("std", "min", "max", "median", "iqm")  # of palestra.runtime.statistics.describe, besides the mean


def _check_function(measure: str) -> str:
    if ":" in measure:
        admitted_function(measure)
    return measure


MeasureName = Annotated[str, AfterValidator(_check_function)]


class MeasureKeys(Protocol):
    """The keys with which a config says what is measured."""

    evaluation: str
    pairing: int | None
    measure: str


class BestConfig(Config):
    evaluation: NonEmptyStr
    """which of the evaluations, by name"""
    pairing: NonNegativeInt | None
    """which of its pairings, counted from 0; null: an evaluation of your own or of a model, which has none, or a
    function of your own, which gets the record of all pairings"""
    measure: MeasureName
    """a score that the game or the model declares (return/ROLE in every game, rho in polyhedra, accuracy in dialogues),
    a metric of a model, length, won/ROLE, info/FIELD or final_info/FIELD; after return/ROLE, length and fields of info
    with /iqm, /median, /std, /min or /max another statistic than the mean; or a function of your own,
    package.module:function"""
    goal: Literal["max", "min"]
    """whether a higher (max) or a lower (min) value is better"""

    def user_names(self) -> list[str]:
        return [self.measure] if ":" in self.measure else []


class GoalKeys(MeasureKeys, Protocol):
    """The keys with which a config says what is measured, and whether more or less of it is better."""

    goal: Literal["max", "min"]


class GameMeasures(NamedTuple):
    """What a game adds to the record of an evaluation.

    scores: those that it declares. info: the recorded fields of the environments' info.
    """

    scores: Sequence[DeclaredScore]
    info: Sequence[str]


def paths_of_measures(roles: Sequence[str], of_game: GameMeasures) -> dict[str, tuple[str, ...]]:
    """Return the measures of a pairing, each with its keys in the record of the pairing.

    roles: of the game. The bare name of what has a distribution is the mean.
    """
    found: dict[str, tuple[str, ...]] = {score.name: ("scores", score.name) for score in of_game.scores}
    found["length"] = ("statistics", "episode_length", "mean")
    if len(roles) == 2:
        found |= {f"won/{role}": ("won", role) for role in roles}
    fields = [f"{kind}/{name}" for kind in ("info", "final_info") for name in of_game.info]
    found |= {name: ("statistics", name, "mean") for name in fields}
    described = {"length": "episode_length"} | {name: name for name in fields}
    for statistic in STATISTICS:
        found |= {f"{return_of(role)}/{statistic}": ("statistics", "episode_return", role, statistic) for role in roles}
        found |= {f"{name}/{statistic}": ("statistics", key, statistic) for name, key in described.items()}
    return found


class Measure:
    """Reads a measure out of the records of an evaluation."""

    def __init__(
        self, keys: MeasureKeys, evaluations: Sequence[AnyEvaluationConfig], of_games: Mapping[str, GameMeasures]
    ) -> None:
        """Find the measure.

        of_games: what the game of each evaluation adds to its record, by the evaluation's name.
        """
        [evaluation] = [each for each in evaluations if each.name == keys.evaluation]
        self.keys = keys
        self.pairing = None if keys.pairing is None else evaluation.pairings[keys.pairing]
        self.function = load_function(keys.measure) if ":" in keys.measure else None
        self.paths = _known(evaluation, list(self.pairing or ()), of_games[evaluation.name])

    def of(self, record: Mapping[str, Any]) -> float | None:
        """Read the measure in the record of an evaluation; nan if it is not known.

        None if the record is that of another evaluation, or of one without this pairing: pairings in which nobody
        learns are not played every time.
        """
        if record["evaluation"] != self.keys.evaluation:
            return None
        result: Any = record
        if self.pairing is not None:
            result = next((pair for pair in record["pairs"] if pair["players"] == self.pairing), None)
        if result is None:
            return None
        if self.function is not None:
            return _number(self.function(result), self.keys.measure)
        for key in self.paths[self.keys.measure]:
            result = result[key]
        return math.nan if result is None else float(result)


def _known(evaluation: AnyEvaluationConfig, roles: Sequence[str], of_game: GameMeasures) -> dict[str, tuple[Any, ...]]:
    """Return the measures of an evaluation, each with its keys in the entry of its pairing.

    For an evaluation of the user's own, which has no pairings, the keys are those in its record.
    """
    if evaluation.own_scores is None:
        return {**paths_of_measures(roles, of_game)}
    return {name: ("pairs", 0, "scores", name) for name in evaluation.own_scores}


def _number(found: Any, name: str) -> float:
    try:
        return float(found)
    except (TypeError, ValueError) as error:
        raise TypeError(f"expected a number from {name}, got {found!r}") from error


def measure_errors(
    keys: MeasureKeys,
    evaluations: Sequence[AnyEvaluationConfig],
    roles: Sequence[str],
    of_games: Mapping[str, GameMeasures],
    learners: Collection[str],
) -> list[ConfigErrorItem]:
    """Find the errors in what a config wants measured.

    roles: of the game. of_games: what the game of each evaluation adds to its record, by the evaluation's name.
    learners: the players that learn, and their past selves.
    """
    by_name = {evaluation.name: evaluation for evaluation in evaluations}
    if keys.evaluation not in by_name:
        expected = f"one of {', '.join(by_name)}" if by_name else "a run with evaluations"
        return [ConfigErrorItem("evaluation", f"expected {expected}, got {keys.evaluation!r}")]
    evaluation = by_name[keys.evaluation]
    measure_fault = _measure_fault(keys, evaluation, _known(evaluation, roles, of_games[keys.evaluation]))
    faults = {"measure": measure_fault, "pairing": _pairing_fault(keys, evaluation, learners)}
    return [ConfigErrorItem(key, fault) for key, fault in faults.items() if fault is not None]


def _pairing_fault(keys: MeasureKeys, evaluation: AnyEvaluationConfig, learners: Collection[str]) -> str | None:
    if evaluation.own_scores is not None:
        message = f"expected null, because the evaluation {evaluation.name!r} has no pairings"
        return None if keys.pairing is None else f"{message}, got {keys.pairing}"
    pairings = evaluation.pairings
    learning = [index for index, pairing in enumerate(pairings) if any(name in learners for name in pairing.values())]
    if keys.pairing in learning or (keys.pairing is None and ":" in keys.measure):
        return None
    numbers = f" ({', '.join(map(str, learning))})" if learning else ", of which there is none"
    got = "null, which only a function of your own may have" if keys.pairing is None else keys.pairing
    return f"expected a pairing with a player that learns{numbers}, got {got}"


def _measure_fault(keys: MeasureKeys, evaluation: AnyEvaluationConfig, known: Collection[str]) -> str | None:
    """Say why the measure is none of those known, or return None. Functions were checked when the file was read."""
    if ":" in keys.measure or keys.measure in known:
        return None
    hint = nearest_hint(keys.measure, known)
    own = "or a function of your own as 'package.module:function'"
    if evaluation.own_scores is not None:
        names = f"one of {listed(known)}, {own}" if known else own.removeprefix("or ")
        return f"expected {names}, got {keys.measure!r}{hint}"
    bare = [name for name in known if name.rpartition("/")[2] not in STATISTICS]
    if keys.measure.startswith(("info/", "final_info/")):
        hint = "; output.info names the fields of the environments' info that are recorded"
    statistics = f"with one of /{', /'.join(STATISTICS)} after return/ROLE, length and fields of info"
    return f"expected one of {listed(bare)} ({statistics}), {own}, got {keys.measure!r}{hint}"


def contrary_note(
    path: str,
    keys: GoalKeys,
    evaluations: Sequence[AnyEvaluationConfig],
    of_games: Mapping[str, GameMeasures],
    learners: Collection[str],
) -> str | None:
    """Return a line for the user if a goal is the contrary of what the players that learn want; else None.

    path: the dotted key of `keys`. of_games, learners: as in `measure_errors`.
    """
    if keys.pairing is None:
        return None
    [evaluation] = [each for each in evaluations if each.name == keys.evaluation]
    name, _, statistic = keys.measure.rpartition("/")
    of_name = name if statistic in STATISTICS and statistic != "std" else keys.measure
    wishes = [
        (player, score.wish_of(role))
        for score in of_games[keys.evaluation].scores
        if score.name == of_name
        for role, player in evaluation.pairings[keys.pairing].items()
        if player in learners and score.wish_of(role)
    ]
    contrary, superlative = ("low", "highest") if keys.goal == "max" else ("high", "lowest")
    if {wish for _, wish in wishes} != {contrary}:
        return None
    players = list(dict.fromkeys(player for player, _ in wishes))
    want = f"{' and '.join(players)} {'want' if players[1:] else 'wants'} {contrary}"
    return f"{path}.goal={keys.goal} looks for the {superlative} {keys.measure}, which {want}"


def best_errors(
    best: BestConfig | None, evaluations: Sequence[Any], errors_of: Callable[[MeasureKeys], Sequence[ConfigErrorItem]]
) -> Iterator[ConfigErrorItem]:
    """Find the errors in `best`, which says what makes a checkpoint the best one.

    errors_of: finds those in what is measured.
    """
    if best is not None and not evaluations:
        yield ConfigErrorItem("best", "expected null, because there are no evaluations, got a mapping")
    elif best is not None:
        yield from (ConfigErrorItem(f"best.{item.path}", item.message) for item in errors_of(best))


class MeasuredSet(NamedTuple):
    """An evaluation by a data set, as whoever measures by it knows it. own_scores: those that the model declares."""

    name: str
    interval: Interval | None
    own_scores: Sequence[str]
    pairings: Sequence[dict[str, str]] = ()
