"""The last lines of a terminal, drawn again and again in place; all that is printed meanwhile goes above them."""

import io
import logging
import os
import sys
import threading
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.segment import SegmentLines

from palestra.recording.display.lines import Line

BEGIN, END = "\x1b[?2026h", "\x1b[?2026l"  # of what a terminal should show at once; unknown, they do nothing
CLEAR_LINE, CLEAR_BELOW = "\x1b[2K", "\x1b[J"


class Region:
    """The frame's place on a terminal. Of any thread.

    The cursor stays visible, in the line below the frame: whoever ends the process in whatever way finds it there.
    While it is held, sys.stdout, sys.stderr and the handlers of `logging` write above the frame.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self._file = console.file
        self._lock = threading.RLock()
        self._frame = ""
        self._num_lines = self._width = 0
        self._proxies: list[Above] = []
        self._handlers: list[tuple[logging.StreamHandler[Any], Any]] = []

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the terminal."""
        return self.console.size

    def hold(self) -> None:
        self._file = self.console.file
        self._own = sys.stdout, sys.stderr
        sys.stdout, sys.stderr = (self._above(file) if file.isatty() else file for file in self._own)
        self._is_given = self.console.file is self._file  # not one that looks sys.stdout up
        if self._is_given:
            self.console.file = self._above(self._file)
        proxied = dict(zip(self._own, (sys.stdout, sys.stderr), strict=True))
        for handler in _stream_handlers():
            if handler.stream in self._own:
                self._handlers.append((handler, handler.setStream(proxied[handler.stream])))

    def release(self) -> None:
        """What was drawn last stays."""
        for proxy in self._proxies:
            proxy.finish()
        self._proxies = []
        for handler, stream in self._handlers:
            handler.setStream(stream)
        self._handlers = []
        sys.stdout, sys.stderr = self._own
        if self._is_given:
            self.console.file = self._file

    def _above(self, file: Any) -> Any:
        self._proxies.append(Above(self, file))
        return self._proxies[-1]

    def draw(self, lines: Sequence[Line], width: int) -> None:
        """The frame from now on: fewer lines than the terminal has, each `width` wide, as the terminal was."""
        with self.console.capture() as capture:
            self.console.print(SegmentLines(lines, new_lines=True), end="", soft_wrap=True)
        frame = "".join(f"{CLEAR_LINE}{line}\n" for line in capture.get().splitlines())
        with self._lock:
            if frame != self._frame:
                self._write(self._to_top(is_clear=False) + frame + CLEAR_BELOW)
                self._frame, self._num_lines, self._width = frame, len(lines), width

    def print_above(self, text: str) -> None:
        """text: whole lines."""
        with self._lock:
            self._write(self._to_top(is_clear=True) + text + self._frame)

    def _to_top(self, is_clear: bool) -> str:
        """To the frame's first line.

        Where the terminal has become narrower its lines have been broken: most terminals do that, in those that do not
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


class Above(io.TextIOBase):
    """Stands in for a file: what is written there comes above the frame, line by line."""

    def __init__(self, region: Region, file: Any) -> None:
        self._region, self._real = region, file
        self._process = os.getpid()
        self._begun = ""  # of a line

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return str(self._real.encoding)

    def write(self, text: str) -> int:
        if os.getpid() != self._process:  # a forked child: it knows nothing of the frame
            return int(self._real.write(text))
        whole, newline, begun = (self._begun + text).rpartition("\n")
        self._begun = begun
        if newline:
            self._region.print_above(whole + newline)
        return len(text)

    def flush(self) -> None:
        self._real.flush()

    def isatty(self) -> bool:
        return bool(self._real.isatty())

    def fileno(self) -> int:
        return int(self._real.fileno())

    def finish(self) -> None:
        """Write what has not ended with a new line."""
        if self._begun:
            self.write("\n")


def _stream_handlers() -> list["logging.StreamHandler[Any]"]:
    loggers = [logging.root, *logging.root.manager.loggerDict.values()]
    handlers = [handler for logger in loggers for handler in getattr(logger, "handlers", [])]
    return [handler for handler in handlers if isinstance(handler, logging.StreamHandler)]
