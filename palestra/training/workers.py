"""Starts, watches and kills processes that work for a training (palestra.training.worker), and sends requests.

One thread per process does this, so that training does not wait for it. What a process prints goes to a log file. A
process ends with the one that started it, even if that is killed.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import InvalidStateError
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

from palestra.config.own_modules import admitted
from palestra.runtime.signals import exit_text, start_leashed
from palestra.storage.disk import Folder

COMMAND = [sys.executable, "-P", "-m", "palestra.training.worker"]
NUM_PIECES = 20  # of the time that an answer may take
CLOSE_S = 5.0  # how long the threads may take to see that their processes are gone
KNOWN = ({"num_over", "num_rounds"}, {"result", "seconds"}, {"num_bytes"})  # the keys of messages


class ProcessLost(Exception):
    """A process has not answered; the message says why. The process cannot be used any more."""


class ProcessFailed(ProcessLost):
    """A process has answered that it failed. failed: what it says of that besides the message; None if nothing."""

    def __init__(self, why: str, failed: Any) -> None:
        super().__init__(why)
        self.failed = failed


class Job(ABC):
    """A request to a process. what: words for it."""

    what: str

    @abstractmethod
    def request(self, known: set[str]) -> bytes:
        """Return what is sent, a tree of state. known: what jobs have noted that the process has; at first none."""

    @abstractmethod
    def done(self, message: Mapping[str, Any], content: bytes) -> None:
        """Take the answer: its line, and the tree of state that came with it, if one did."""

    @abstractmethod
    def failed(self, error: Exception, log: Path) -> str | None:
        """Take note that there will be no answer; return a line for the user, if nobody else tells it."""

    def told(self, message: Mapping[str, Any]) -> None:  # noqa: B027 (some tell nothing)
        """Take note of progress."""

    def is_repeated(self, error: Exception) -> bool:
        """Return whether the request is sent again, to a new process, if there may be another restart."""
        return True


class Terms(NamedTuple):
    """How processes are run. kind: what they are, as evaluator. server: what they do, as palestra.module:function.

    timeout_key: the key of the config that says how long an answer may take. max_restarts: for a job, or `in_all`.
    """

    kind: str
    server: str
    timeout_s: float
    timeout_key: str
    max_restarts: int
    in_all: bool


@dataclass(frozen=True)
class LogFile:
    """The file that a process prints to."""

    folder: Folder
    name: str

    @property
    def path(self) -> Path:
        return self.folder.path / self.name

    @contextmanager
    def opened(self) -> Iterator[int]:
        """The descriptor of the file, open for appending."""
        file = self.folder.append(self.name)
        try:
            os.lseek(file.descriptor, 0, os.SEEK_END)
            yield file.descriptor
        finally:
            file.close()


class Worker:
    """A thread that owns one process: starts it when there is a job, and starts another one when it was lost.

    tell: called with lines for the user, from this thread. jobs: several workers may have the same ones.
    """

    def __init__(
        self, run: Path, log: LogFile, terms: Terms, jobs: "SimpleQueue[Job | None]", tell: Callable[[str], None]
    ) -> None:
        self.run, self.log, self.terms, self.jobs, self.tell = run, log, terms, jobs, tell
        self.process: Process | None = None
        self.num_restarts = 0
        self.is_closed = False
        self.lock = threading.Lock()  # between the check of is_closed and the start of a process, `close` must wait
        self.thread = threading.Thread(target=self._work, name=log.name.removesuffix(".log"), daemon=True)
        self.thread.start()

    def close(self) -> None:
        """End the process and the thread; called from another thread."""
        with self.lock:
            self.is_closed = True
            if self.process is not None:
                self.process.kill()

    def _work(self) -> None:
        while (job := self.jobs.get()) is not None and not self.is_closed:
            try:
                self._do(job)
            except Exception as error:  # of what is told, for instance, where nobody reads it any more
                with suppress(InvalidStateError):
                    job.failed(error, self.log.path)
            job = None  # which may be large
        if self.process is not None:
            self.process.end()

    def _do(self, job: Job) -> None:
        """Let the first process that is not lost do a job, unless this object is closed meanwhile."""
        before = 0 if self.terms.in_all else self.num_restarts
        while True:
            try:
                process = self._started()
                message, content = process.answer(job.request(process.known), job.told)
                job.done(message, content)
                return
            except Exception as error:  # whatever goes wrong here
                why, lost = str(error) or type(error).__name__, error
            if self.process is not None:
                self.process.end()
                self.process = None
            if self.is_closed:
                return
            if self.num_restarts - before >= self.terms.max_restarts or not job.is_repeated(lost):
                if (line := job.failed(lost, self.log.path)) is not None:
                    self.tell(line)
                return
            self.num_restarts += 1
            self.tell(f"{job.what}: {why}; it is started again (see {self.log.path})")

    def _started(self) -> "Process":
        with self.lock:
            if self.is_closed:
                raise ProcessLost("the run has ended")
            if self.process is None:
                self.process = Process(self.run, self.log, self.terms)
            return self.process


def close_all(workers: Iterable[Worker]) -> None:
    """Kill the processes. Jobs that are not done stay so."""
    for worker in workers:
        worker.close()
    for worker in workers:
        worker.jobs.put(None)
    for worker in workers:
        worker.thread.join(CLOSE_S)


class Process:
    """One process, which is killed with its children, also when the process that started it ends."""

    def __init__(self, run: Path, log: LogFile, terms: Terms) -> None:
        self._terms, self._is_late, self.known = terms, False, set[str]()
        self._lock = threading.Lock()  # a process that has answered must not be killed as late
        with log.opened() as file:
            streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": file}
            sources = json.dumps([asdict(source) for source in admitted()])
            self._process, self._life = start_leashed(COMMAND, [str(run), terms.server, sources], os.environ, **streams)

    def answer(self, request: bytes, told: Callable[[Mapping[str, Any]], None]) -> tuple[Mapping[str, Any], bytes]:
        """Send a request, and wait for its answer. Raises ProcessLost if none comes in time.

        A request is a line with a number of bytes, and these bytes. A message is a line of JSON; where it says so, the
        bytes of a tree of state follow. told: is called with the messages of progress before the answer.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        answered = threading.Event()
        threading.Thread(target=self._watch, args=(answered,), daemon=True).start()
        try:
            with suppress(BrokenPipeError):  # its last line may say why it ended
                self._process.stdin.write(f"{len(request)}\n".encode())
                self._process.stdin.write(request)
                self._process.stdin.flush()
            while "num_over" in (message := self._read(self._process.stdout.readline())):
                told(message)
            if "num_bytes" not in message:
                return message, b""
            content = self._process.stdout.read(message["num_bytes"])
            if len(content) < message["num_bytes"]:
                self._raise_lost()
            return message, content
        finally:
            with self._lock:
                answered.set()

    def _watch(self, answered: threading.Event) -> None:
        """Kill the process if it is late, which ends a blocked write as well as a blocked read.

        Time is counted in pieces, so that hardly any counts while the process that waits is itself stopped.
        """
        piece_s = self._terms.timeout_s / NUM_PIECES
        if any(answered.wait(piece_s) for _ in range(NUM_PIECES)):
            return
        with self._lock:
            if not answered.is_set():
                self._is_late = True
                self.kill()

    def _read(self, line: bytes) -> dict[str, Any]:
        """The message in a line. Raises ProcessLost if there is none, ProcessFailed if the process says so."""
        if not line.endswith(b"\n"):
            self._raise_lost()
        with suppress(ValueError, LookupError, TypeError, AttributeError):
            message: dict[str, Any] = json.loads(line)
            if message.keys() in KNOWN:
                return message
            raise ProcessFailed(message["error"], message.get("failed"))
        raise ProcessLost(f"expected a message of an {self._terms.kind}, got {line[:80]!r}")

    def _raise_lost(self) -> None:
        if self._is_late:
            raise ProcessLost(f"no answer within {self._terms.timeout_key} = {self._terms.timeout_s:g} s")
        self.kill()
        raise ProcessLost(f"its process {exit_text(self._process.wait())}")

    def kill(self) -> None:
        """Kill the process and its children at once."""
        if self._process.returncode is None:  # else its number may belong to another process by now
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def end(self) -> None:
        """Kill the process, and release its pipes."""
        self.kill()
        self._process.wait()
        os.close(self._life)
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                if pipe is not None:
                    pipe.close()
