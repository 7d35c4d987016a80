"""When something is due: intervals and limits, counted in opt steps, env steps, epochs or minutes of training."""

from typing import Literal

from palestra.config import Config, PositiveFloat

Unit = Literal["opt_steps", "env_steps", "epochs", "minutes"]
Counters = dict[Unit, float]


class Interval(Config):
    every: PositiveFloat
    """how much lies between"""
    unit: Unit
    """opt_steps, env_steps, epochs or minutes (of training alone)"""

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
