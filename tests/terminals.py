"""A terminal of the tests: a pty, and behind it an emulator that draws on a screen what is written there."""

import fcntl
import os
import pty
import struct
import termios
import threading
import time
from collections.abc import Callable
from typing import Self

import pyte
from rich.console import Console


class Terminal:
    """screen lines, those that have left it at the top, and whether the cursor is to be seen. Used in a `with`."""

    def __init__(self, width: int, height: int) -> None:
        self.screen = pyte.HistoryScreen(width, height, history=10_000)
        self._stream = pyte.ByteStream(self.screen)
        self._lock = threading.Lock()
        self._num_titles = 0
        self._master, self.slave = pty.openpty()
        self.file = os.fdopen(os.dup(self.slave), "w", encoding="utf-8")
        self.console = Console(file=self.file, _environ={"TERM": "xterm-256color"}, force_terminal=True)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self.resize(width, height)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()
        os.close(self.slave)
        self._thread.join(timeout=10)
        os.close(self._master)

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._master, 65536)
            except OSError:  # nobody can write any more
                return
            if not data:
                return
            with self._lock:
                self._stream.feed(data)

    def resize(self, width: int, height: int) -> None:
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        self.console.size = (width, height)  # type: ignore[assignment]
        with self._lock:
            self.screen.resize(height, width)

    def lines(self) -> list[str]:
        with self._lock:
            return [line.rstrip() for line in self.screen.display]

    def all_lines(self) -> list[str]:
        """With what has left the screen at the top."""
        with self._lock:
            rows = list(self.screen.history.top)
            above = ["".join(row[i].data for i in range(self.screen.columns)).rstrip() for row in rows]
            return above + [line.rstrip() for line in self.screen.display]

    def shows_cursor(self) -> bool:
        return not self.screen.cursor.hidden

    def settle(self) -> list[str]:
        """The screen, once all is drawn that was written so far; while nobody writes."""
        self._num_titles += 1
        os.write(self.slave, f"\x1b]2;{self._num_titles}\x07".encode())
        self.wait_for(lambda lines: self.screen.title == str(self._num_titles))
        return self.lines()

    def wait_for(self, is_there: Callable[[list[str]], bool], patience_s: float = 60.0) -> list[str]:
        """The screen, once it shows that."""
        until = time.monotonic() + patience_s
        while not is_there(lines := self.lines()):
            assert time.monotonic() < until, "\n".join(["not to be seen:", *lines])
            time.sleep(0.01)
        return lines
