"""Scores: numbers that say how well the games of a pairing went, and who wants them high."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Self

Wish = Literal["high", "low"]
SEAT = "model"  # the role of a model in records, and the name by which callbacks know it


class Estimate(NamedTuple):
    """A value and its 95% confidence interval. A number that is not known is nan."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, value: float | None, low: float | None = None, high: float | None = None) -> Self:
        """Make an estimate of numbers of which some may be unknown."""
        return cls(*(math.nan if number is None else number for number in (value, low, high)))

    @property
    def half(self) -> float:
        """Half of the interval's length; nan without an interval."""
        return (self.high - self.low) / 2


@dataclass(frozen=True)
class DeclaredScore:
    """A score that a game declares, or an evaluation of one's own.

    name: in records, in `best`, and wherever people see it. meaning: what it is, in a few words. unit: what it is
    counted in; a "share" lies between 0 and 1. high_for, low_for: the roles that want it high, and those that want it
    low; to all others it means nothing. shown: whether tables of results show it.
    """

    name: str
    meaning: str
    unit: str
    high_for: tuple[str, ...]
    low_for: tuple[str, ...]
    shown: bool

    @property
    def is_share(self) -> bool:
        return self.unit == "share"

    def wish_of(self, role: str) -> Wish | None:
        """Return whether a role wants the score high or low; None if it means nothing to the role."""
        return "high" if role in self.high_for else "low" if role in self.low_for else None


def declared_in(record: Mapping[str, Any]) -> dict[str, DeclaredScore]:
    """Return the scores that the record of an evaluation declares, by name."""
    return {
        each["name"]: DeclaredScore(
            each["name"], each["meaning"], each["unit"], tuple(each["high_for"]), tuple(each["low_for"]), each["shown"]
        )
        for each in record["declared_scores"]
    }


def return_of(role: str) -> str:
    """Return the name of the score that is the mean return of a role."""
    return f"return/{role}"


def normalized_of(role: str) -> str:
    """Return the name of the score that measures the returns of a role by those of random play and of an expert."""
    return f"normalized/{role}"


def declared_returns(roles: Sequence[str], zero_sum: bool, shown: bool) -> tuple[DeclaredScore, ...]:
    """Declare the mean return of each role as a score. zero_sum: whether the others lose what one role gains."""
    return tuple(
        DeclaredScore(
            name=return_of(role),
            meaning=f"mean return of {role} in a game",
            unit="reward",
            high_for=(role,),
            low_for=tuple(other for other in roles if other != role) if zero_sum else (),
            shown=shown,
        )
        for role in roles
    )
