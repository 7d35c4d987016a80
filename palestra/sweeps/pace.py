"""Measures how fast a run of a trial goes on, and when it will end at that pace.

Times are seconds of one monotonic clock.
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Moment:
    """How far a run was.

    share: of its training, 0 to 1. count: in the unit of the sweep. train_s: its seconds of training, in all its
    processes.
    """

    at_s: float
    share: float
    count: float
    train_s: float


class Pace:
    """The pace of one run. Its process may be started several times, and only time in which one works counts."""

    def __init__(self) -> None:
        self._before_s = 0.0  # of processes that have ended
        self._began_s: float | None = None
        self._start = self._first = self._last = Moment(0.0, 0.0, 0.0, 0.0)

    def begin(self, now_s: float, share: float, count: float, train_s: float) -> None:
        """Note that a process starts. What an earlier process of this sweep trained counts as training alone."""
        self._before_s = max(self._before_s, train_s)
        self._began_s = now_s
        self._start = self._first = self._last = Moment(now_s, share, count, train_s)

    def note(self, now_s: float, share: float, count: float, train_s: float) -> None:
        """Note how far the run is; nothing happens where it has not gone on."""
        if share <= self._last.share and count <= self._last.count:
            return
        self._last = Moment(now_s, share, count, train_s)
        if self._first is self._start:  # what came before is importing, too
            self._first = self._last

    def end(self, now_s: float) -> None:
        """Note that the process has ended."""
        self._before_s = self.seconds(now_s)
        self._began_s = None

    def seconds(self, now_s: float) -> float:
        """Return how long the run's processes have worked."""
        return self._before_s + (0.0 if self._began_s is None else now_s - self._began_s)

    def seconds_left(self, now_s: float) -> float:
        """Return the seconds until the run's training ends; nan if that cannot be known."""
        first, last = self._first, self._last
        if last.share >= 1.0:
            return 0.0
        if last.share > first.share:
            left = (1.0 - last.share) * (last.at_s - first.at_s) / (last.share - first.share)
        elif last is not self._start and last.share > 0.0 and last.train_s > 0.0:
            left = (1.0 - last.share) * last.train_s / last.share
        else:
            return math.nan
        return max(left - (now_s - last.at_s), 0.0)

    def per_s(self) -> float:
        """Return how many units of the sweep the run counts per second; nan if that cannot be known."""
        seconds = self._last.at_s - self._first.at_s
        return (self._last.count - self._first.count) / seconds if seconds > 0.0 else math.nan
