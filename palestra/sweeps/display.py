"""What a user sees while a sweep works: a live screen on a terminal, plain lines elsewhere, nothing where it is quiet.

A display asks for the sweep's progress when it shows it, because that reads the study. It never ends a sweep: progress
that cannot be read or drawn is left out, and reported once.
"""

import logging
import math
import signal
import time
from collections.abc import Callable
from datetime import datetime

from rich.console import Console

from palestra.recording.display import can_draw, needs_ascii
from palestra.recording.display.display import Closing
from palestra.recording.display.lines import Line
from palestra.recording.display.live import LiveLines
from palestra.recording.results import plain_ascii, printable
from palestra.sweeps.progress import SweepProgress
from palestra.sweeps.screen import screen_lines
from palestra.sweeps.texts import progress_line

READ_S, LINE_S = 1.0, 60.0
MOST_SHARE = 0.01  # of the time may go into reading progress: a study that takes longer is read less often

logger = logging.getLogger(__name__)

Read = Callable[[], SweepProgress]


class SweepDisplay(Closing):
    """A display that shows nothing. Used in a `with` block."""

    def update(self, read: Read, is_last: bool = False) -> None:
        """Show the progress if that is due, or if nothing will come after it. May be called as often as one likes."""

    def ended(self, line: str) -> None:
        """Say how a trial has ended."""

    def note(self, line: str) -> None:
        """Tell something of which a trial's end says nothing."""

    def stopping(self, number: int, read: Read) -> None:
        """Say that a signal has come, and that the runs are saved."""


class _Reading(SweepDisplay):
    """Reads the progress when it is due, every `interval_s` or less often."""

    interval_s = READ_S

    def __init__(self) -> None:
        self._due_s = -math.inf
        self._has_failed = False

    def show(self, progress: SweepProgress) -> None:
        raise NotImplementedError

    def update(self, read: Read, is_last: bool = False) -> None:
        started = time.monotonic()
        if started < self._due_s and not is_last:
            return
        try:
            self.show(read())
        except Exception:  # a display is not worth a sweep
            if not self._has_failed:
                self._has_failed = True
                logger.warning("the display could not show how the sweep stands; the sweep goes on", exc_info=True)
        ended = time.monotonic()
        self._due_s = ended + max(self.interval_s, (ended - started) / MOST_SHARE)


class PlainSweepDisplay(_Reading):
    """Prints a line of plain ASCII for each trial that ends, and every minute one that tells how the sweep stands."""

    interval_s = LINE_S

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console
        self._due_s = time.monotonic() + LINE_S

    def update(self, read: Read, is_last: bool = False) -> None:
        super().update(read)  # what comes last the summary tells

    def show(self, progress: SweepProgress) -> None:
        self._print(progress_line(progress, datetime.now()))

    def ended(self, line: str) -> None:
        self._print(line)

    def note(self, line: str) -> None:
        self._print(line)

    def stopping(self, number: int, read: Read) -> None:
        self._print(f"{signal.Signals(number).name}: the runs are being saved")

    def _print(self, line: str) -> None:
        self._console.out(plain_ascii(line), highlight=False)


class LiveSweepDisplay(LiveLines, _Reading):
    """A screen on a terminal. It shows which trials have ended, so no lines are printed for them."""

    fault = "the display could not show how the sweep stands; the sweep goes on"

    def __init__(self, console: Console, is_ascii: bool) -> None:
        LiveLines.__init__(self, console, is_ascii)
        _Reading.__init__(self)
        self._latest: tuple[SweepProgress, float] | None = None  # and when it was read

    def show(self, progress: SweepProgress) -> None:
        self._latest = progress, time.monotonic()

    def ended(self, line: str) -> None:
        self._due_s = -math.inf

    def note(self, line: str) -> None:
        self._region.print_above(f"{plain_ascii(line) if self.is_ascii else printable(line)}\n")

    def stopping(self, number: int, read: Read) -> None:
        self._due_s = -math.inf
        self.update(read)
        self._draw()

    def _lines(self, width: int, height: int) -> list[Line] | None:
        if self._latest is None:
            return None
        progress, at_s = self._latest
        return screen_lines(progress, time.monotonic() - at_s, datetime.now(), width, height)


def make_sweep_display(console: Console) -> SweepDisplay:
    """Make a display: live on a terminal that can draw it, plain lines elsewhere, nothing on a quiet console."""
    if console.quiet:
        return SweepDisplay()
    return LiveSweepDisplay(console, needs_ascii(console)) if can_draw(console) else PlainSweepDisplay(console)
