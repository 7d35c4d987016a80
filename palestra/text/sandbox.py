"""The sandbox of templates that others have written: a process in which they are parsed and rendered, within limits.

There is one for each process of palestra, from the first text on. It has no more than MOST_BYTES of memory, and
MOST_SECONDS of processor time for each text; the operating system sees to both, and a new process follows on one that
has reached them. It ends with the process that has started it.
"""

import atexit
import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

MOST_SECONDS = 10  # of processor time for a text; a template takes a thousandth of a second
MOST_BYTES = 512 << 20  # of the address space of the process
MOST_CHARACTERS = 4_000_000  # of a text
MOST_TOGETHER = 64  # texts of one answer
MOST_KNOWN = 64  # sandboxes whose templates one process keeps


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
        most = MOST_TOGETHER
        while len(done) < len(unique):
            sizes = accumulate(map(len, unique[len(done) : len(done) + most]))
            asked = unique[len(done) :][: max(1, sum(size <= MOST_CHARACTERS for size in sizes))]
            reply = _PROCESS.ask(self._key, self._definition, asked)
            if isinstance(reply, int) and most > 1 and (len(asked) > 1 or reply != -signal.SIGXCPU):
                most = 1  # whichever it is by which the process has ended, if it was one
                continue
            if isinstance(reply, int):
                is_long = reply == -signal.SIGXCPU
                told = f"it computes for longer than {MOST_SECONDS} s" if is_long else f"it ends its process ({reply})"
                reply = {"done": [], "fault": {"told": told, "name": None, "line": None}}
            done += reply["done"]
            if (fault := reply["fault"]) is not None:
                index = lines.index(unique[len(done)])
                raise SandboxError(fault["told"], index, fault["name"], fault["line"])
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


class _Process:
    """The process that renders, for all threads."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.running: subprocess.Popen[bytes] | None = None
        self.known: set[str] = set()

    def ask(self, key: str, definition: str, jobs: Sequence[str]) -> dict[str, Any] | int:
        """Return its answer, or its exit code if it has ended."""
        with self.lock:
            if self.running is None or self.running.poll() is not None or len(self.known) > MOST_KNOWN:
                self.stop()
                self._start()
            told = "null" if key in self.known else definition
            self.known.add(key)
            reply: dict[str, Any] | int | None = None
            try:
                reply = self._exchange(f'{{"key": "{key}", "definition": {told}, "jobs": [{", ".join(jobs)}]}}\n')
            finally:  # also after a KeyboardInterrupt: what it then answers would be to the wrong question
                if not isinstance(reply, dict) or (reply["fault"] or {}).get("is_spent"):
                    self.stop()
            return reply

    def _start(self) -> None:
        limits = (str(MOST_SECONDS), str(MOST_BYTES), str(MOST_CHARACTERS))
        command = [sys.executable, "-P", str(Path(__file__).with_name("sandbox_worker.py")), *limits]
        pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
        self.running = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=nowhere, bufsize=0, start_new_session=True
        )  # Ctrl-C is not for it
        self.replies, self.known = io.BufferedReader(cast(io.RawIOBase, self.running.stdout)), set()

    def _exchange(self, line: str) -> dict[str, Any] | int:
        process = cast("subprocess.Popen[bytes]", self.running)
        rest = memoryview(line.encode("utf-8", "surrogatepass"))
        with suppress(BrokenPipeError):
            while rest:
                rest = rest[cast(io.RawIOBase, process.stdin).write(rest) :]
            if (reply := self.replies.readline(16 * MOST_CHARACTERS)).endswith(b"\n"):  # two of the longest texts
                found: dict[str, Any] = json.loads(reply)
                return found
            if reply:
                process.kill()
        return process.wait()

    def stop(self) -> None:
        if self.running is not None:
            self.running.kill()
            self.running.wait()
            cast(io.RawIOBase, self.running.stdin).close()
            self.replies.close()
        self.running = None

    def unlock(self) -> None:
        """In a forked child, whose parent's other threads are gone; `poll` says there that the process has ended."""
        self.lock = threading.Lock()


_PROCESS = _Process()
os.register_at_fork(after_in_child=lambda: _PROCESS.unlock())
atexit.register(lambda: _PROCESS.stop())
