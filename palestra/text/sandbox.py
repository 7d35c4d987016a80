"""Processes in which works what strangers have written, such as templates and tokenizers, within limits.

The operating system sees to memory and processor time. A process is kept between questions; at a limit it ends, and the
next question starts another one. It ends with the process that has started it. Templates are parsed and rendered in one
for each process of palestra, from the first text on.
"""

import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, cast

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
                return json.loads(reply)
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


LIMITS = Limits(seconds=10, num_bytes=512 << 20, characters=4_000_000)  # a template takes a thousandth of a second
MOST_TOGETHER = 64  # texts of one answer

Job = TypeVar("Job")
Result = TypeVar("Result")
_to_json = json.JSONEncoder(ensure_ascii=False, default=str).encode


class SandboxError(Exception):
    """A template is none, fails, or reaches a limit. index: of the first job that does. name, line: in which file."""

    def __init__(self, told: str, index: int, name: str | None = None, line: int | None = None) -> None:
        super().__init__(told)
        self.index, self.name, self.line = index, name, line


class Sandbox:
    """Templates that are rendered together.

    kind: "chat" for what transformers shows chat templates. sources: by name. shared: values that all texts have.
    """

    def __init__(self, kind: Literal["prompts", "chat"], sources: Mapping[str, str], shared: Mapping[str, Any]) -> None:
        self._definition = _to_json({"kind": kind, "sources": sources, "shared": shared})
        self._key = hashlib.sha256(self._definition.encode("utf-8", "surrogatepass")).hexdigest()

    def render(self, jobs: Sequence[tuple[str, Mapping[str, Any] | None]]) -> list[Any]:
        """Render templates, each given by its name and values. Raises SandboxError.

        Without values: say which variables a template uses, with their first `lines`, and which other `files`.
        """
        lines = [_to_json(job) for job in jobs]
        unique = list(dict.fromkeys(lines))
        done: list[Any] = []
        limits, most = _PROCESS.limits, MOST_TOGETHER
        while len(done) < len(unique):
            sizes = accumulate(map(len, unique[len(done) : len(done) + most]))
            asked = unique[len(done) :][: max(1, sum(size <= limits.characters for size in sizes))]
            reply = _PROCESS.ask(self._key, self._definition, asked)
            if isinstance(reply, int) and most > 1 and (len(asked) > 1 or reply != -signal.SIGXCPU):
                most = 1  # whichever it is by which the process has ended, if it was one
                continue
            if isinstance(reply, int):
                is_long = reply == -signal.SIGXCPU
                spent = f"it computes for longer than {limits.seconds} s"
                told = spent if is_long else f"it ends its process ({reply})"
                reply = {"done": [], "fault": {"told": told, "name": None, "line": None}}
            done += reply["done"]
            if (fault := reply["fault"]) is not None:
                raise SandboxError(fault["told"], lines.index(unique[len(done)]), fault["name"], fault["line"])
        found = dict(zip(unique, done, strict=True))
        return [found[line] for line in lines]


def in_step(render: Callable[[list[Job]], list[str]], works: Iterable[Generator[Job, str, Result]]) -> list[Result]:
    """Return what generators return, each of which yields one job after the other, and is sent its text.

    The first jobs of all are rendered together, then the second ones, and so on.
    """
    running, results = list(works), {}
    texts: dict[int, Any] = dict.fromkeys(range(len(running)))
    while texts:
        asked: dict[int, Job] = {}
        for number, text in texts.items():
            try:
                asked[number] = running[number].send(text)
            except StopIteration as ended:
                results[number] = ended.value
        texts = dict(zip(asked, render(list(asked.values())), strict=True))
    return [results[number] for number in range(len(running))]


_PROCESS = Confined(LIMITS)
