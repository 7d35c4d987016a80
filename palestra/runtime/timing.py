"""The time of a run: the seconds of training over all its processes, and by phase, without waiting for a GPU."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from time import perf_counter
from typing import Any, Literal, NamedTuple

import torch


class TrainingClock:
    """Counts seconds while it is `running` and not `paused`.

    seconds: the sum over all processes of the run.
    """

    def __init__(self) -> None:
        self._before = self._counted = 0.0
        self._started: float | None = None

    @property
    def seconds(self) -> float:
        return self._counted + (0.0 if self._started is None else perf_counter() - self._started)

    def set_before(self, seconds: float) -> None:
        """Set the seconds that earlier processes of the run have counted."""
        self._counted, self._before = self._counted + seconds - self._before, seconds

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count inside the block."""
        self._started = perf_counter()
        try:
            yield
        finally:
            self._counted, self._started = self.seconds, None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Do not count inside the block; has no effect on a clock that is not running."""
        was_running = self._started is not None
        self._counted, self._started = self.seconds, None
        try:
            yield
        finally:
            self._started = perf_counter() if was_running else None


class Mark(NamedTuple):
    """A moment from which rates are measured. seconds: of training so far. counts: the counters at that moment."""

    seconds: float
    counts: Mapping[str, int]

    def rates(self, now: "Mark") -> dict[str, float]:
        """Return the increase of each counter per second of training, from this moment to `now`."""
        seconds = max(now.seconds - self.seconds, 1e-9)
        return {name: (now.counts[name] - count) / seconds for name, count in self.counts.items()}


Phase = Literal["play", "memory", "data", "update", "evaluation", "saving", "waiting", "other"]
PHASES: tuple[Phase, ...] = ("play", "memory", "data", "update", "evaluation", "saving", "waiting", "other")
MOST_UNREAD = 1024  # events


class TimeLog:
    """Measures the seconds of every phase. At any moment exactly one phase is on; `other` if none of the others is.

    play: roll-outs. memory: storing them (replay buffers), computing advantages, and sampling batches. data:
    waiting for a batch of a data set. update: opt steps. evaluation. saving. waiting: for other processes of the run.
    other: records, the display, callbacks.

    On a CPU a change of phase reads the clock. On CUDA it records an event, which is read after the GPU has passed it:
    the seconds are those of the GPU's stream, including the time in which it is idle.
    """

    def __init__(self, device: torch.device) -> None:
        self.phase: Phase = "other"
        self._stream = torch.cuda.current_stream(device) if device.type == "cuda" else None
        self._is_running = False
        self._since = perf_counter()
        self._events: deque[tuple[Phase, torch.cuda.Event]] = deque()  # each with the phase that it ends
        self._free: list[torch.cuda.Event] = []
        self._seconds: dict[str, float] = dict.fromkeys(PHASES, 0.0)
        self._taken: dict[str, float] = dict.fromkeys(PHASES, 0.0)

    def switch(self, phase: Phase) -> None:
        """End the current phase, and begin another."""
        if self._stream is None:
            now = perf_counter()
            self._seconds[self.phase] += now - self._since
            self._since = now
        else:
            event = self._free.pop() if self._free else torch.cuda.Event(enable_timing=True)
            event.record(self._stream)
            self._events.append((self.phase, event))
            if len(self._events) > MOST_UNREAD:
                self._read()
        self.phase = phase

    def during(self, phase: Phase) -> "_During":
        """Count the time inside the block for `phase`."""
        return _During(self, phase)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Measure inside the block alone."""
        self.phase, self._since = "other", perf_counter()
        self._events.clear()
        self.switch("other")
        self._is_running = True
        try:
            yield
        finally:
            self.switch("other")
            self._is_running = False

    def _read(self) -> None:
        """Add up the seconds between the events that the GPU has passed."""
        while len(self._events) > 1 and self._events[1][1].query():
            _, start = self._events.popleft()
            phase, end = self._events[0]
            self._seconds[phase] += start.elapsed_time(end) / 1000
            self._free.append(start)

    def take(self) -> dict[str, float]:
        """Return the seconds by phase since the last call. What the GPU has yet to finish counts at the next call."""
        self.switch(self.phase)
        self._read()
        seconds, self._seconds = self._seconds, dict.fromkeys(PHASES, 0.0)
        self._taken = {phase: self._taken[phase] + seconds[phase] for phase in PHASES}
        return seconds

    def total(self) -> dict[str, float]:
        """Return the seconds by phase, including those of earlier processes of the run."""
        seconds: dict[str, float] = {phase: self._taken[phase] + self._seconds[phase] for phase in PHASES}
        if self._is_running and self._stream is None:
            seconds[self.phase] += perf_counter() - self._since
        return seconds

    def set_before(self, seconds: Mapping[str, float], recorded: Mapping[str, float]) -> None:
        """Set the seconds that earlier processes of the run have counted; `take` gives those that were not recorded."""
        self._taken = {phase: recorded[phase] for phase in PHASES}
        for phase in PHASES:
            self._seconds[phase] += max(seconds[phase] - recorded[phase], 0.0)


class _During:
    """The context of `during`; a generator would take longer, and replay buffers enter it at every sample."""

    __slots__ = ("before", "log", "phase")

    def __init__(self, log: TimeLog, phase: Phase) -> None:
        self.log, self.phase, self.before = log, phase, log.phase

    def __enter__(self) -> None:
        if self.log.phase != self.phase:
            self.log.switch(self.phase)

    def __exit__(self, *error: object) -> None:
        if self.log.phase != self.before:
            self.log.switch(self.before)


def summed_times(records: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return the seconds by phase, summed over records."""
    times = [record.get("clock", {}).get("time", {}) for record in records]
    return {phase: sum(time.get(phase, 0.0) for time in times) for phase in PHASES}
