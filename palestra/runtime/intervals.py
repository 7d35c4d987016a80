"""When something is due: intervals and limits. Their units are what a trainer counts, and minutes of training: each
kind of run says which (`palestra.runs.config.BaseRunConfig.units`)."""

import math
from collections.abc import Mapping, Sequence

from palestra.config import Config, NonEmptyStr, PositiveFloat
from palestra.runtime.clock import TrainingClock

Counters = Mapping[str, float]


class Interval(Config):
    every: PositiveFloat
    """how much lies between"""
    unit: NonEmptyStr
    """opt_steps, env_steps, epochs or minutes (of training alone)"""

    def next(self, after: Counters) -> float:
        """The first multiple above `after`."""
        return (after[self.unit] // self.every + 1) * self.every

    def due(self, before: Counters, now: Counters) -> bool:
        """Whether a multiple of the interval was reached after `before`, up to `now`."""
        return now[self.unit] // self.every > before[self.unit] // self.every


class Limit(Config):
    after: PositiveFloat
    """how much is enough"""
    unit: NonEmptyStr
    """opt_steps, env_steps, epochs or minutes (of training alone)"""

    def share(self, now: Counters) -> float:
        """How much of the way lies behind, 0..1."""
        return min(now[self.unit] / self.after, 1.0)


def is_due(interval: Interval | None, before: Counters, now: Counters) -> bool:
    """Whether a multiple of an interval was reached after `before`, up to `now`; never where there is none."""
    return interval is not None and interval.due(before, now)


class Agenda:
    """Up to which counts nothing is due: a loop that asks at every opt step has a few numbers to compare."""

    def __init__(self, limit: Limit, intervals: Sequence[Interval | None]) -> None:
        self.limit = limit
        self.intervals = [interval for interval in intervals if interval is not None]
        self._next: list[tuple[str, float]] = []
        self._minutes = math.inf

    def set(self, checked: Counters, once: Mapping[str, float]) -> None:
        """All that was due up to these counters is done. once: what is due at some counts, and then no more."""
        due = dict(once)
        for unit, count in [(self.limit.unit, self.limit.after), *((i.unit, i.next(checked)) for i in self.intervals)]:
            due[unit] = min(due.get(unit, math.inf), count)
        self._minutes = due.pop("minutes", math.inf)
        self._next = list(due.items())

    def waits(self, counts: Mapping[str, int], clock: TrainingClock) -> bool:
        """Whether nothing is due yet."""
        for unit, count in self._next:
            if counts[unit] >= count:
                return False
        return self._minutes == math.inf or clock.seconds / 60 < self._minutes
