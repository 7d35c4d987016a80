"""SIGINT and SIGTERM: a wish that a safe point looks at, and a bound on how long that may take.

Only the main thread of a process receives signals: elsewhere nothing is caught.
"""

import fcntl
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from types import FrameType

STOPPING = (signal.SIGINT, signal.SIGTERM)


class Interrupted(Exception):
    """A signal came while something went on that cannot be saved in the middle; nothing of it is kept."""


class StopSignals:
    """While caught: the first signal is kept in `received`, for a safe point to see. The process ends at once at the
    second one, or when the first is older than its bound, wherever it is: what lies on the disk is whole.

    A thread of its own watches, told by the kernel: it also ends code that never comes back to Python's own loop, as
    long as that lets other threads run.
    """

    def __init__(self) -> None:
        self.received: int | None = None

    @contextmanager
    def caught(self, within_s: float, before_exit: Callable[[str], None]) -> Iterator[None]:
        """Handlers installed; the ones before are restored after.

        within_s: how old the first signal may become. before_exit: is told why the process ends at once.
        """
        self.received = None
        with ExitStack() as stack:
            if threading.current_thread() is threading.main_thread():
                reading, writing = os.pipe()
                os.set_blocking(writing, False)
                watch = threading.Thread(target=_watch, args=(reading, within_s, before_exit), daemon=True)
                stack.callback(_end, watch, reading, writing)
                for number in STOPPING:
                    stack.callback(signal.signal, number, signal.signal(number, self._receive))
                stack.callback(signal.set_wakeup_fd, signal.set_wakeup_fd(writing, warn_on_full_buffer=False))
                watch.start()
            yield

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.received = number


def _watch(reading: int, within_s: float, before_exit: Callable[[str], None]) -> None:
    """Read the numbers of signals as they come, until a 0."""
    first, deadline = 0, 0.0
    while True:
        wait = None if not first else max(0.0, deadline - time.monotonic())
        if not select.select([reading], [], [], wait)[0]:
            _exit(first, f"not out within output.stop_within_s = {within_s:g} s", before_exit)
        for number in os.read(reading, 64):
            if number == 0:
                return
            if number in STOPPING and first:
                _exit(number, "a second signal", before_exit)
            elif number in STOPPING:
                first, deadline = number, time.monotonic() + within_s


def _exit(number: int, why: str, before_exit: Callable[[str], None]) -> None:
    try:
        before_exit(f"{signal.Signals(number).name}: {why}")
    finally:
        os._exit(128 + number)


def _end(watch: threading.Thread, reading: int, writing: int) -> None:
    os.write(writing, b"\0")
    watch.join()
    os.close(reading)
    os.close(writing)


@contextmanager
def leaving_at_once() -> Iterator[None]:
    """Where there is nothing to save (a run is being built, a result is shown): exit with 128 + n at a signal n.

    Without unwinding: an exception out of nowhere makes the C++ below some imports abort.
    """

    def leave(number: int, frame: FrameType | None) -> None:
        os._exit(128 + number)

    before = [(number, signal.signal(number, leave)) for number in STOPPING]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)


def end_with_the_starter(pipe: int) -> None:
    """Let the kernel end this process and its children, whatever they do, when the other end of a pipe closes on which
    nothing is ever written: by SIGIO, which nobody catches."""
    fcntl.fcntl(pipe, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([pipe], [], [], 0.0)[0]:  # it has closed before
        os._exit(1)


def exit_text(code: int) -> str:
    """How a process ended, from its exit code; negative: by that signal."""
    if code >= 0:
        return f"ended with exit code {code}"
    with suppress(ValueError):  # a signal without a name
        why = " (the kernel sends it where memory runs out)" if -code == signal.SIGKILL else ""
        return f"ended with {signal.Signals(-code).name}{why}"
    return f"ended with signal {-code}"
