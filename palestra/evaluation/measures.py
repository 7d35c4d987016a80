"""Measures: which number of an evaluation's record decides, for the best checkpoint and for callbacks.

A measure is one of the statistics of a pairing, or a function of one's own, named as package.module:function.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, Protocol

from pydantic import AfterValidator

from palestra.config import ConfigErrorItem, admitted_function, load_function
from palestra.config.errors import listed, nearest

STATISTICS = ("std", "min", "max", "median", "iqm")  # of palestra.runtime.statistics.describe, besides the mean


def _check_function(measure: str) -> str:
    if ":" in measure:
        admitted_function(measure)
    return measure


MeasureName = Annotated[str, AfterValidator(_check_function)]


class MeasureKeys(Protocol):
    """The keys with which a config says what is measured."""

    @property
    def evaluation(self) -> str: ...

    @property
    def pairing(self) -> int | None: ...

    @property
    def measure(self) -> str: ...


class MeasurableEvaluation(Protocol):
    """What measures need of the config of an evaluation."""

    @property
    def name(self) -> str: ...

    @property
    def pairings(self) -> list[dict[str, str]]: ...


def paths_of_measures(roles: Sequence[str], info: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The measures of a pairing, each with its keys in the record of the pairing.

    roles: of the game. info: the recorded fields of the environments' info. The bare name is the mean.
    """
    found: dict[str, tuple[str, ...]] = {"rho": ("rho",)}
    found |= {f"return/{role}": ("returns", role) for role in roles}
    found["length"] = ("statistics", "episode_length", "mean")
    if len(roles) == 2:
        found |= {f"won/{role}": ("won", role) for role in roles}
    fields = [f"{kind}/{name}" for kind in ("info", "final_info") for name in info]
    found |= {name: ("statistics", name, "mean") for name in fields}
    described = {"length": "episode_length"} | {name: name for name in fields}
    for statistic in STATISTICS:
        found |= {f"return/{role}/{statistic}": ("statistics", "episode_return", role, statistic) for role in roles}
        found |= {f"{name}/{statistic}": ("statistics", key, statistic) for name, key in described.items()}
    return found


class Measure:
    """Reads a measure out of the records of an evaluation."""

    def __init__(self, keys: MeasureKeys, evaluations: Sequence[MeasurableEvaluation], info: Sequence[str]) -> None:
        """info: the recorded fields of the environments' info."""
        [evaluation] = [each for each in evaluations if each.name == keys.evaluation]
        self.keys = keys
        self.pairing = None if keys.pairing is None else evaluation.pairings[keys.pairing]
        self.function = load_function(keys.measure) if ":" in keys.measure else None
        self.paths = paths_of_measures(list(self.pairing or ()), info)

    def of(self, record: Mapping[str, Any]) -> float | None:
        """The measure in the record of an evaluation; nan if it is not known. None if the record is that of another
        evaluation, or of one without this pairing: pairings in which nobody learns are not played every time."""
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


def _number(found: Any, name: str) -> float:
    try:
        return float(found)
    except (TypeError, ValueError) as error:
        raise TypeError(f"expected a number from {name}, got {found!r}") from error


def measure_errors(
    keys: MeasureKeys,
    evaluations: Sequence[MeasurableEvaluation],
    roles: Sequence[str],
    info: Mapping[str, Sequence[str]],
    learners: Collection[str],
) -> list[ConfigErrorItem]:
    """The errors in what a config wants measured. roles: of the game. info: the recorded fields of the environments'
    info, by evaluation. learners: the players that learn."""
    by_name = {evaluation.name: evaluation for evaluation in evaluations}
    errors = []
    fault = _measure_fault(keys, roles, info.get(keys.evaluation, []))
    if fault is not None:
        errors.append(ConfigErrorItem("measure", fault))
    if keys.evaluation not in by_name:
        expected = f"one of {', '.join(by_name)}" if by_name else "a run with evaluations"
        errors.append(ConfigErrorItem("evaluation", f"expected {expected}, got {keys.evaluation!r}"))
        return errors
    pairings = by_name[keys.evaluation].pairings
    learning = [index for index, pairing in enumerate(pairings) if any(name in learners for name in pairing.values())]
    if keys.pairing not in learning and not (keys.pairing is None and ":" in keys.measure):
        numbers = f" ({', '.join(map(str, learning))})" if learning else ", of which there is none"
        got = "null, which only a function of your own may have" if keys.pairing is None else keys.pairing
        errors.append(ConfigErrorItem("pairing", f"expected a pairing with a player that learns{numbers}, got {got}"))
    return errors


def _measure_fault(keys: MeasureKeys, roles: Sequence[str], info: Sequence[str]) -> str | None:
    """Why the measure is none, or None. Functions were checked when the file was read."""
    known = paths_of_measures(roles, info)
    if ":" in keys.measure or keys.measure in known:
        return None
    bare = [name for name in known if name.rpartition("/")[2] not in STATISTICS]
    near = nearest(keys.measure, known)
    hint = f"; did you mean {near!r}?" if near else ""
    if keys.measure.startswith(("info/", "final_info/")):
        hint = "; output.info names the fields of the environments' info that are recorded"
    statistics = f"with one of /{', /'.join(STATISTICS)} after all but rho and won"
    own = "or a function of your own as 'package.module:function'"
    return f"expected one of {listed(bare)} ({statistics}), {own}, got {keys.measure!r}{hint}"
