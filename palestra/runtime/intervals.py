"""Counters that only the code that counts may change, and intervals and limits, which say when something is due.

Units are the counters of a trainer, and minutes of training; each kind of run lists its units
(`palestra.run.base.BaseRunConfig.units`).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, overload

from palestra.config import Config, NonEmptyStr, PositiveFloat


class Counter:
    """An attribute that raises AttributeError when it is assigned, and names the call that counts it: `by`.

    Its owner counts by `count`. If the owner's attribute `is_counted` is false, the counter may be assigned.
    """

    def __init__(self, by: str) -> None:
        self.by = by

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, owner: None, kind: type) -> "Counter": ...

    @overload
    def __get__(self, owner: object, kind: type) -> int: ...

    def __get__(self, owner: object | None, kind: type) -> Any:
        return self if owner is None else vars(owner)[self.name]

    def __set__(self, owner: Any, value: int) -> None:
        if owner.is_counted:
            raise AttributeError(f"{self.name}: expected no assignment, because {self.by} counts it; call that instead")
        vars(owner)[self.name] = value


def count(owner: object, **numbers: int) -> None:
    """Add to counters of an object, whether or not they are `Counter`s."""
    counters = vars(owner)
    for name, number in numbers.items():
        counters[name] += number


def set_counts(owner: object, **numbers: int) -> None:
    """Set counters of an object, as when its state is restored."""
    vars(owner).update(numbers)


Counters = Mapping[str, float]


class Interval(Config):
    every: PositiveFloat
    """the length of the interval"""
    unit: NonEmptyStr
    """opt_steps, epochs, minutes (of training alone), env_steps where players play, tokens and stages where
    they talk, items where a model learns"""

    def next(self, after: Counters) -> float:
        """Return the first multiple above `after`."""
        return (after[self.unit] // self.every + 1) * self.every

    def due(self, before: Counters, now: Counters) -> bool:
        """Return whether a multiple of the interval lies between `before` (exclusive) and `now` (inclusive)."""
        return now[self.unit] // self.every > before[self.unit] // self.every


class Limit(Config):
    after: PositiveFloat
    """the limit, as a count of `unit`"""
    unit: NonEmptyStr
    """opt_steps, epochs, minutes (of training alone), env_steps where players play, tokens and stages where
    they talk, items where a model learns"""

    def share(self, now: Counters) -> float:
        """Return the fraction of the limit that has been reached, 0 to 1."""
        return min(now[self.unit] / self.after, 1.0)

    def counted_from(self, start: Counters) -> "Limit":
        """Return the limit that counts from `start` on."""
        return Limit(after=start[self.unit] + self.after, unit=self.unit)


def read_limit(
    num_steps: float | None, max_steps: float | None, unit: str | None, units: Sequence[str]
) -> Callable[[Counters], Limit] | None:
    """Read the arguments of `fit`: returns the limit that they set from some counters on; None if all are None.

    units: those that it may have. The unit may be left out: it is then opt steps. Raises
    ValueError for any other number than a positive one, for another unit, and for both numbers.
    """
    given = {name: n for name, n in (("num_steps", num_steps), ("max_steps", max_steps)) if n is not None}
    if not given and unit is None:
        return None
    if len(given) > 1:
        raise ValueError(f"expected num_steps or max_steps, got both ({num_steps!r} and {max_steps!r})")
    name, number = next(iter(given.items()), ("num_steps", None))
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0 < number < math.inf:
        raise ValueError(f"{name}: expected a positive number, got {number!r}")
    unit = unit or "opt_steps"
    if unit not in units:
        raise ValueError(f"unit: expected one of {', '.join(map(repr, units))}, got {unit!r}")
    limit = Limit(after=float(number), unit=unit)
    return limit.counted_from if name == "num_steps" else lambda counters: limit


def is_due(interval: Interval | None, before: Counters, now: Counters) -> bool:
    """Return `interval.due(before, now)`, or False for None."""
    return interval is not None and interval.due(before, now)


class Agenda:
    """The counts at which something is due next, so that a check at every opt step compares only a few numbers."""

    def __init__(self, limits: Sequence[Limit | None], intervals: Sequence[Interval | None]) -> None:
        self.limits = [limit for limit in limits if limit is not None]
        self.intervals = [interval for interval in intervals if interval is not None]
        self._next: list[tuple[str, float]] = []
        self._minutes = math.inf

    def set(self, checked: Counters, once: Mapping[str, float]) -> None:
        """Find the next counts, after everything that was due up to `checked` is done.

        once: counts, by unit, at which something is due that does not recur.
        """
        due = dict(once)
        limits = ((limit.unit, limit.after) for limit in self.limits)
        for unit, count in [*limits, *((i.unit, i.next(checked)) for i in self.intervals)]:
            due[unit] = min(due.get(unit, math.inf), count)
        self._minutes = due.pop("minutes", math.inf)
        self._next = list(due.items())

    def waits(self, counter: object, minutes: Callable[[], float]) -> bool:
        """Return whether nothing is due yet. counter: an object with the counters as attributes."""
        for unit, count in self._next:
            if getattr(counter, unit) >= count:
                return False
        return self._minutes == math.inf or minutes() < self._minutes
