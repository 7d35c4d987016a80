"""The clock of a run: the seconds spent in training, summed over all processes of the run."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple


class TrainingClock:
    """Counts seconds while it is `running` and not `paused`.

    seconds: the sum over all processes of the run. seconds_here: those of this process.
    """

    def __init__(self) -> None:
        self._before = 0.0
        self._here = 0.0
        self._started: float | None = None

    @property
    def seconds_here(self) -> float:
        return self._here + (0.0 if self._started is None else time.perf_counter() - self._started)

    @property
    def seconds(self) -> float:
        return self._before + self.seconds_here

    def set_before(self, seconds: float) -> None:
        """Set the seconds that earlier processes of the run have counted."""
        self._before = seconds

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count inside the block."""
        self._started = time.perf_counter()
        try:
            yield
        finally:
            self._here, self._started = self.seconds_here, None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Do not count inside the block; has no effect on a clock that is not running."""
        was_running = self._started is not None
        self._here, self._started = self.seconds_here, None
        try:
            yield
        finally:
            self._started = time.perf_counter() if was_running else None


class Mark(NamedTuple):
    """A moment from which rates are measured. seconds: of training so far. counts: the counters at that moment."""

    seconds: float
    counts: Mapping[str, int]

    def rates(self, now: "Mark") -> dict[str, float]:
        """Return the increase of each counter per second of training, from this moment to `now`."""
        seconds = max(now.seconds - self.seconds, 1e-9)
        return {name: (now.counts[name] - count) / seconds for name, count in self.counts.items()}
