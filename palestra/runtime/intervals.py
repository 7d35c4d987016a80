"""When something is due: intervals and limits, counted in opt steps, env steps, epochs or minutes of training."""

import math
from collections.abc import Mapping, Sequence
from typing import Literal

from palestra.config import Config, PositiveFloat
from palestra.runtime.clock import TrainingClock

Unit = Literal["opt_steps", "env_steps", "epochs", "minutes"]
Counters = dict[Unit, float]


class Interval(Config):
    every: PositiveFloat
    """how much lies between"""
    unit: Unit
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
    unit: Unit
    """opt_steps, env_steps, epochs or minutes (of training alone)"""

    def share(self, now: Counters) -> float:
        """How much of the way lies behind, 0..1."""
        return min(now[self.unit] / self.after, 1.0)


class Agenda:
    """Up to which counts nothing is due: a loop that asks at every opt step has a few numbers to compare."""

    def __init__(self, limit: Limit, intervals: Sequence[Interval | None]) -> None:
        self.limit = limit
        self.intervals = [interval for interval in intervals if interval is not None]
        self.set({"opt_steps": 0, "env_steps": 0, "epochs": 0, "minutes": 0.0}, {})

    def set(self, checked: Counters, once: Mapping[Unit, float]) -> None:
        """All that was due up to these counters is done. once: what is due at some counts, and then no more."""
        next_counts = {unit: once.get(unit, math.inf) for unit in checked}
        next_counts[self.limit.unit] = min(next_counts[self.limit.unit], self.limit.after)
        for interval in self.intervals:
            next_counts[interval.unit] = min(next_counts[interval.unit], interval.next(checked))
        self.opt_steps, self.env_steps = next_counts["opt_steps"], next_counts["env_steps"]
        self.epochs, self.minutes = next_counts["epochs"], next_counts["minutes"]

    def waits(self, opt_steps: int, env_steps: int, epochs: int, clock: TrainingClock) -> bool:
        """Whether nothing is due yet."""
        return (
            opt_steps < self.opt_steps
            and env_steps < self.env_steps
            and epochs < self.epochs
            and (self.minutes == math.inf or clock.seconds / 60 < self.minutes)
        )
