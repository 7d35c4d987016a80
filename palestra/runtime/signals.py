"""Signals that stop: the next safe point stops the run, and a time limit ends the process if that takes too long.

Python handles signals in the main thread alone: in other threads nothing is caught.
"""

import fcntl
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from palestra.runtime.limits import GuardedOutput

OPTIONAL = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)  # a connection closes, a job's time is over
STOPPING = (signal.SIGINT, signal.SIGTERM, *OPTIONAL)
REPEATED = (signal.SIGHUP, signal.SIGXCPU)  # by shells, which pass it on, and by the system, every second


def heeded() -> list[signal.Signals]:
    """Return the signals that stop a run: those of OPTIONAL only where they would end this process.

    Below nohup SIGHUP would not, nor what a library that a batch system's signals are meant for handles itself.
    """
    return [each for each in STOPPING if each not in OPTIONAL or _would_end(each)]


def _would_end(number: signal.Signals) -> bool:
    handler = signal.getsignal(number)
    if handler == signal.SIG_DFL:  # unless code that is not Python's handles it, as that of faulthandler
        with suppress(OSError):
            caught = re.findall(r"SigCgt:\s*(\w+)", Path("/proc/self/status").read_text())
            return not int(caught[0], 16) >> (number - 1) & 1
    return handler == signal.SIG_DFL or getattr(handler, "__module__", None) == __name__  # by itself, or by us


class Interrupted(Exception):
    """A signal has interrupted work that cannot be saved half done, such as an evaluation; its results are dropped."""


class StopSignals:
    """Inside `caught`, the first signal is stored in `received`, where the next safe point finds it.

    The process exits at once, without unwinding, on a second signal or when the time limit after the first one is over.
    A second SIGHUP is none: shells pass on what the system has sent, too. Files on the disk are complete at any moment.

    Where nobody takes the output any more, as when Ctrl-C has also ended the `tee` behind it, or the disk of its file
    is full, `received` becomes SIGPIPE, unless it has a signal already. Nothing limits the time then.

    A thread of its own waits for the signals, so that it also ends the process in compiled code that never returns to
    the interpreter, as long as that code releases the GIL.
    """

    def __init__(self) -> None:
        self.received: int | None = None

    @contextmanager
    def caught(self, within_s: float, before_exit: Callable[[str], None]) -> Iterator[None]:
        """Install the handlers, and restore the previous ones after the block.

        within_s: seconds after the first signal until the process exits. before_exit: called with the reason before the
        process exits at once.
        """
        self.received = None
        with ExitStack() as stack:
            if threading.current_thread() is threading.main_thread():
                reading, writing = os.pipe()
                os.set_blocking(writing, False)
                watch = threading.Thread(target=_watch, args=(reading, within_s, before_exit), daemon=True)
                stack.callback(_end, watch, reading, writing)
                for number in heeded():
                    stack.callback(signal.signal, number, signal.signal(number, self._receive))
                stack.callback(signal.set_wakeup_fd, signal.set_wakeup_fd(writing, warn_on_full_buffer=False))
                watch.start()
                stack.enter_context(redirect_stdout(GuardedOutput(sys.stdout, self._stop_printing)))
                stack.enter_context(redirect_stderr(GuardedOutput(sys.stderr, self._stop_printing)))
            yield

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.received = number

    def _stop_printing(self, error: OSError) -> None:
        self.received = self.received or signal.SIGPIPE
        print(f"nothing more can be printed: {error.strerror}; saving, and leaving", file=sys.stderr)


def _watch(reading: int, within_s: float, before_exit: Callable[[str], None]) -> None:
    """Read the numbers of signals from a pipe until a 0, and end the process when it is time."""
    first, deadline = 0, 0.0
    while True:
        wait = None if not first else max(0.0, deadline - time.monotonic())
        if not select.select([reading], [], [], wait)[0]:
            _exit(first, f"expected a safe point within output.stop_within_s = {within_s:g} s, got none", before_exit)
        for number in os.read(reading, 64):
            if number == 0:
                return
            if number in STOPPING and first and number not in REPEATED:
                _exit(number, "a second signal", before_exit)
            elif number in STOPPING and not first:
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
def exiting_on_signals(leave_by: Callable[[int], object] = os._exit) -> Iterator[None]:
    """Exit with 128 + n at a signal n inside the block, where there is nothing to save (a run is being built, say).

    The process exits without unwinding: an unexpected exception would make the C++ code of some imports abort.
    leave_by: sys.exit where nothing is imported and there is something to undo.
    """

    def leave(number: int, frame: FrameType | None) -> None:
        leave_by(128 + number)

    with ExitStack() as stack:
        for number in heeded():
            stack.callback(signal.signal, number, signal.signal(number, leave))
        yield


def start_leashed(
    command: Sequence[str], arguments: Sequence[str], environment: Mapping[str, str], **streams: Any
) -> tuple["subprocess.Popen[bytes]", int]:
    """Start a process that ends when this one does, however it does. Raises OSError.

    It has a session of its own, so that signals of a terminal do not reach it, and finds the modules that this process
    finds. Its first argument is the reading end of a pipe, for `end_with_parent`; the others follow. streams: its
    stdin, stdout and stderr. Returns it with the other end of the pipe, which is to be closed once it has ended.
    """
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)  # where the user's own classes are found
    watched, life = os.pipe()
    try:
        process = subprocess.Popen(
            [*command, str(watched), *arguments],
            pass_fds=(watched,),
            start_new_session=True,
            env={**environment, "PYTHONPATH": path},
            **streams,
        )
    except BaseException:
        os.close(life)
        raise
    finally:
        os.close(watched)
    return process, life


def end_with_parent(pipe: int) -> None:
    """Let the operating system kill this process and the others of its process group when the parent process ends.

    It kills them also in compiled code that never returns to the interpreter, on Linux even stopped ones. pipe: the
    reading end of a pipe whose other end the parent holds open and never writes to. When that closes, the system sends
    SIGIO, which nobody catches, or SIGKILL where it supports that.
    """
    fcntl.fcntl(pipe, fcntl.F_SETOWN, -os.getpgrp())
    if hasattr(fcntl, "F_SETSIG"):
        fcntl.fcntl(pipe, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)
    ends = select.poll()  # unlike select, it takes descriptors of any number
    ends.register(pipe)
    if ends.poll(0):  # the parent has ended already
        os._exit(1)


def exit_text(code: int) -> str:
    """Say how a process ended. code: its exit code; -n if signal n ended it."""
    name, number = None, -code if code < 0 else code - 128
    with suppress(ValueError):  # none that stands for a signal, or one without a name
        name = signal.Signals(number).name
    if code >= 0:
        return f"ended with exit code {code}" + (f" ({name})" if name else "")
    why = " (the kernel sends it when memory runs out)" if number == signal.SIGKILL else ""
    return f"ended with {name or f'signal {number}'}{why}"
