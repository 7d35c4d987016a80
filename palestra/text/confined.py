"""Processes in which works what strangers have written, such as templates and tokenizers, within limits.

The operating system sees to memory and processor time. A process is kept between questions; at a limit it ends, and the
next question starts another one. It ends with the process that has started it.
"""

import io
import json
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, cast

MOST_KNOWN = 64  # definitions that one process keeps


class Limits(NamedTuple):
    """What a process may use.

    seconds: of processor time, for a job. num_bytes: of address space, beside that of the libraries and definitions.
    characters: of an answer to a job, or tokens.
    """

    seconds: int
    num_bytes: int
    characters: int


class Confined:
    """A process for all threads. running: None until the first question, and again once it was stopped."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.lock = threading.Lock()
        self.running: subprocess.Popen[bytes] | None = None
        self._known: set[str] = set()
        _ALL.add(self)

    def ask(self, key: str, definition: str, jobs: Sequence[str]) -> dict[str, Any] | int:
        """Return its answer to jobs, `done` and `fault`, or its exit code if it has ended.

        key, definition: of that to which jobs are given. Definition and jobs are JSON, as the worker reads them.
        """
        with self.lock:
            if self.running is None or self.running.poll() is not None or len(self._known) > MOST_KNOWN:
                self.stop()
                self._start()
            told = "null" if key in self._known else definition
            self._known.add(key)
            reply: dict[str, Any] | int | None = None
            try:
                reply = self._exchange(f'{{"key": "{key}", "definition": {told}, "jobs": [{", ".join(jobs)}]}}\n')
            finally:  # also after a KeyboardInterrupt: what it then answers would be to the wrong question
                if not isinstance(reply, dict) or (reply["fault"] or {}).get("is_spent"):
                    self.stop()
            return reply

    def _start(self) -> None:
        command = [sys.executable, "-P", str(Path(__file__).with_name("confined_worker.py")), *map(str, self.limits)]
        pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
        self.running = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=nowhere, bufsize=0, start_new_session=True
        )  # Ctrl-C is not for it
        weakref.finalize(self, _end, self.running, os.getpid())
        self._replies, self._known = io.BufferedReader(cast(io.RawIOBase, self.running.stdout)), set()

    def _exchange(self, line: str) -> dict[str, Any] | int:
        process = cast("subprocess.Popen[bytes]", self.running)
        rest = memoryview(line.encode("utf-8", "surrogatepass"))
        with suppress(BrokenPipeError):
            while rest:
                rest = rest[cast(io.RawIOBase, process.stdin).write(rest) :]
            if (reply := self._replies.readline(16 * self.limits.characters)).endswith(b"\n"):  # two of the longest
                found: dict[str, Any] = json.loads(reply)
                return found
            if reply:
                process.kill()
        return process.wait()

    def stop(self) -> None:
        if self.running is not None:
            _end(self.running, os.getpid())
            cast(io.RawIOBase, self.running.stdin).close()
            self._replies.close()
        self.running = None


_ALL: "weakref.WeakSet[Confined]" = weakref.WeakSet()


def _end(process: "subprocess.Popen[bytes]", of_pid: int) -> None:
    if of_pid == os.getpid():  # a fork of the process that has started it leaves it alone
        process.kill()
        process.wait()


def _unlock() -> None:
    """In a forked child, whose parent's other threads are gone; `poll` says there that a process has ended."""
    for each in list(_ALL):
        each.lock = threading.Lock()


os.register_at_fork(after_in_child=_unlock)
