"""The clock of a run: seconds of training alone, over all its processes."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple


class TrainingClock:
    """Counts while it runs. `seconds`: over all processes of the run; `seconds_here`: in this one."""

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
        """Seconds that earlier processes of the run have trained."""
        self._before = seconds

    @contextmanager
    def running(self) -> Iterator[None]:
        self._started = time.perf_counter()
        try:
            yield
        finally:
            self._here, self._started = self.seconds_here, None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Not counting; changes nothing where the clock does not run."""
        was_running = self._started is not None
        self._here, self._started = self.seconds_here, None
        try:
            yield
        finally:
            self._started = time.perf_counter() if was_running else None


class Mark(NamedTuple):
    """A moment to count from. seconds: of training. counts: what had been counted by then."""

    seconds: float
    counts: Mapping[str, int]

    def rates(self, now: "Mark") -> dict[str, float]:
        """What was counted per second of training since this moment."""
        seconds = max(now.seconds - self.seconds, 1e-9)
        return {name: (now.counts[name] - count) / seconds for name, count in self.counts.items()}
