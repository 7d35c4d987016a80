"""Lines on a terminal or in a notebook that a thread of its own draws in place: the screen of a run."""

import logging
import threading
import time
from typing import Self

from rich.console import Console

from palestra.recording.display.display import Closing, Display
from palestra.recording.display.lines import Line, in_ascii
from palestra.recording.display.regions import Cell, Region
from palestra.recording.display.screen import Screen, Warnings
from palestra.recording.results import Progress, known_text, printable
from palestra.storage.secrets import redacted

INTERVAL_S = 0.25
MOST_SHARE = 0.005  # of the time may go into drawing: what takes longer is drawn less often
NUM_KEPT = 3  # warnings in sight

logger = logging.getLogger(__name__)


class LiveLines(Closing):
    """Lines that stay in place and move between two updates, drawn by a thread of their own.

    The thread follows the terminal's size. A subclass says which lines there are.

    region: where they are drawn; None: the last lines of the terminal. is_ascii: draw with characters that every
    terminal knows. cpu_s: what drawing has cost so far.
    """

    fault = "the display could not show how the work goes, which goes on"

    def __init__(self, console: Console, is_ascii: bool, region: Cell | None = None) -> None:
        self._console, self.is_ascii = console, is_ascii
        self.cpu_s, self._failed = 0.0, False
        self._region = region or Region(console)
        self._ended = threading.Event()
        self._thread: threading.Thread

    def _lines(self, width: int, height: int) -> list[Line] | None:
        """Return at most `height` lines, each `width` wide; None: nothing is to be drawn yet."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        self._ended.clear()
        self._region.hold()
        self._thread = threading.Thread(target=self._work, name="display", daemon=True)
        self._thread.start()
        return self

    def close(self) -> None:
        if not self._ended.is_set():
            self._ended.set()
            self._thread.join()
            self._draw()
            self._region.release()

    def _work(self) -> None:
        size, due_s = self._region.size, 0.0
        while not self._ended.wait(INTERVAL_S):
            if time.monotonic() >= due_s or self._region.size != size:
                size, before = self._region.size, self.cpu_s
                self._draw()
                due_s = time.monotonic() + (self.cpu_s - before) / MOST_SHARE

    def _draw(self) -> None:
        started = time.thread_time()
        try:
            width, height = self._region.size
            if (lines := self._lines(width, height - 1)) is None:
                return
            self._region.draw([in_ascii(line) for line in lines] if self.is_ascii else lines, width)
        except Exception:  # a display is not worth a run
            if not self._failed:
                self._failed = True
                logger.warning(self.fault, exc_info=True)
        self.cpu_s += time.thread_time() - started


class LiveDisplay(LiveLines, Display):
    """The screen of a run, whose clock, phase and tasks move between two updates."""

    fault = "the display could not show a run's progress; training goes on"

    def __init__(self, console: Console, is_ascii: bool, region: Cell | None = None) -> None:
        super().__init__(console, is_ascii, region)
        self.has_summary = region is None  # in a notebook the last screen is all that a cell shows
        self._screen = Screen()
        self._latest: tuple[Progress, float] | None = None  # and when it came
        self._warnings = Warnings(0, ())

    def update(self, progress: Progress) -> None:
        self._latest = progress, time.monotonic()

    def log(self, line: str) -> None:
        known = known_text if self.is_ascii else printable
        self._region.print_above("".join(f"{known(piece)}\n" for piece in line.splitlines()))

    def warn(self, line: str) -> None:
        self._keep(f"warning: {line}")

    def error(self, line: str) -> None:
        self._keep(f"error: {redacted(line)}")

    def _keep(self, line: str) -> None:
        self.log(line)
        self._warnings = Warnings(self._warnings.number + 1, (*self._warnings.last, line)[-NUM_KEPT:])

    def _lines(self, width: int, height: int) -> list[Line] | None:
        if self._latest is None:
            return None
        progress, at_s = self._latest
        return self._screen.lines(progress, self._warnings, time.monotonic() - at_s, width, height)
