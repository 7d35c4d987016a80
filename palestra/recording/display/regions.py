"""Where lines are drawn again and again in place: the last lines of a terminal, or an output of a notebook's cell.

All that is printed meanwhile goes above them, in a notebook into the text of the cell.
"""

import io
import logging
import os
import sys
import threading
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.segment import SegmentLines

from palestra.recording.display.lines import Line

BEGIN, END = "\x1b[?2026h", "\x1b[?2026l"  # of what a terminal should show at once; unknown, they do nothing
CLEAR_LINE, CLEAR_BELOW = "\x1b[2K", "\x1b[J"


class Region:
    """The place of the screen on a terminal. Any thread may call its methods.

    The cursor stays visible, in the line below the screen: whoever ends the process in whatever way finds it there.
    While the region is held, sys.stdout, sys.stderr and the handlers of `logging` write above the screen.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self._file = console.file
        self._lock = threading.RLock()
        self._drawn = ""
        self._num_lines = self._width = 0
        self._proxies: list[Above] = []
        self._handlers: list[tuple[logging.StreamHandler[Any], Any]] = []

    @property
    def size(self) -> tuple[int, int]:
        """The width and the height of the terminal."""
        return self.console.size

    def hold(self) -> None:
        self._file = self.console.file
        self._own = sys.stdout, sys.stderr
        sys.stdout, sys.stderr = (self._above(file) if file.isatty() else file for file in self._own)
        self._is_given = self.console.file is self._file  # not one that looks sys.stdout up
        if self._is_given:
            self.console.file = self._above(self._file)
        proxied = dict(zip(self._own, (sys.stdout, sys.stderr), strict=True))
        loggers = [logging.root, *logging.root.manager.loggerDict.values()]
        for handler in (handler for logger in loggers for handler in getattr(logger, "handlers", [])):
            if isinstance(handler, logging.StreamHandler) and handler.stream in self._own:
                self._handlers.append((handler, handler.setStream(proxied[handler.stream])))

    def release(self) -> None:
        """Give sys.stdout, sys.stderr and the handlers back. What was drawn last stays."""
        for proxy in self._proxies:
            proxy.finish()
        for handler, stream in self._handlers:
            handler.setStream(stream)
        self._proxies, self._handlers = [], []
        sys.stdout, sys.stderr = self._own
        if self._is_given:
            self.console.file = self._file

    def _above(self, file: Any) -> Any:
        self._proxies.append(Above(self, file))
        return self._proxies[-1]

    def draw(self, lines: Sequence[Line], width: int) -> None:
        """Replace the drawn lines by others.

        lines: fewer than the terminal has, each `width` wide, which was the terminal's width.
        """
        with self.console.capture() as capture:
            self.console.print(SegmentLines(lines, new_lines=True), end="", soft_wrap=True)
        drawn = "".join(f"{CLEAR_LINE}{line}\n" for line in capture.get().splitlines())
        with self._lock:
            if drawn != self._drawn:
                self._write(self._to_top(is_clear=False) + drawn + CLEAR_BELOW)
                self._drawn, self._num_lines, self._width = drawn, len(lines), width

    def print_above(self, text: str) -> None:
        """Print a text of whole lines above the screen."""
        with self._lock:
            self._write(self._to_top(is_clear=True) + text + self._drawn)

    def _to_top(self, is_clear: bool) -> str:
        """Return the characters that move the cursor to the first line of the screen.

        Where the terminal has become narrower the lines have been broken: most terminals do that; in those that do not,
        a little of what stands above is overwritten.
        """
        width, height = self.console.size
        rows = self._num_lines * max(1, -(-self._width // max(width, 1)))
        is_narrower = width < self._width
        up = min(rows, height - 1)
        return "\r" + (f"\x1b[{up}A" if up else "") + (CLEAR_BELOW if is_clear or is_narrower else "")

    def _write(self, text: str) -> None:
        self._file.write(BEGIN + text + END)
        self._file.flush()


class Above:
    """Stands in for a file: what is written to it appears above the screen, line by line."""

    def __init__(self, region: Region, file: Any) -> None:
        self._region, self._real = region, file
        self._process = os.getpid()
        self._begun = ""  # of a line

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def write(self, text: str) -> int:
        if os.getpid() != self._process:  # a forked child: it knows nothing of the screen
            return int(self._real.write(text))
        whole, newline, begun = (self._begun + text).rpartition("\n")
        self._begun = begun
        if newline:
            self._region.print_above(whole + newline)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        self.write("".join(lines))

    def finish(self) -> None:
        """End a line that has not ended with a newline."""
        if self._begun:
            self.write("\n")


# ---- in a notebook -------------------------------------------------------------------------------------

WIDTH, HEIGHT = 100, 40  # of a screen, in characters: a cell has no size of its own
HTML = '<pre style="white-space: pre; overflow-x: auto; line-height: normal; font-family: monospace">{code}</pre>'


class Cell:
    """The place of the screen in a notebook. What is printed meanwhile goes into the text of the cell, as ever."""

    size = (WIDTH, HEIGHT)

    def __init__(self) -> None:
        self._handle: Any = None
        self._drawn = ""

    def hold(self) -> None:
        """Make the output.

        The thread that runs the cell must call it, because the output appears in that thread's cell.
        """
        from IPython.display import display

        self._handle, self._drawn = display({"text/plain": ""}, raw=True, display_id=True), ""

    def release(self) -> None:
        """Do nothing: what was drawn last stays."""

    def draw(self, lines: Sequence[Line], width: int) -> None:
        """Replace the drawn lines. Any thread may call it."""
        console = Console(file=io.StringIO(), width=width, record=True, force_jupyter=False, legacy_windows=False)
        console.print(SegmentLines(lines, new_lines=True), end="", soft_wrap=True)
        if (drawn := console.export_html(inline_styles=True, code_format=HTML, clear=False)) != self._drawn:
            self._handle.update({"text/plain": console.export_text(), "text/html": drawn}, raw=True)
            self._drawn = drawn

    def print_above(self, text: str) -> None:
        """Print a text of whole lines."""
        print(text, end="", flush=True)
