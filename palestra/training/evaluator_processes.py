"""Starts, watches and kills the processes that evaluate (palestra.training.evaluator_worker), and sends requests.

One thread per process does this, so that training does not wait for it. What a process prints goes to
`evaluations/async/evaluator-N.log`. A process ends with the one that started it, even if that is killed.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

from palestra.evaluation.config import EvaluatorsConfig
from palestra.recording.results import Task
from palestra.runtime.signals import exit_text
from palestra.storage.disk import Folder
from palestra.storage.states import to_bytes

COMMAND = [sys.executable, "-P", "-m", "palestra.training.evaluator_worker"]
CLOSE_S = 5.0  # how long the threads may take to see that their processes are gone


@dataclass(frozen=True)
class ProcessRequest:
    """A request to play one evaluation.

    num: of games or items per pairing. with_scripted: whether pairings in which no player learns are played too. state:
    that by which to evaluate, and the counters. task: its progress, which the display shows.
    """

    evaluation: str
    num: int
    with_scripted: bool
    state: Mapping[str, Any]
    task: Task

    def to_bytes(self) -> bytes:
        """A line with the number of bytes that follow."""
        content = to_bytes([self.evaluation, self.num, self.with_scripted, self.state])
        return f"{len(content)}\n".encode() + content


@dataclass(frozen=True)
class Answer:
    """The answer to a request.

    result: that of `Evaluations.play`; None if the evaluation has failed. seconds: how long it took. why: the reason
    why it has failed, else empty.
    """

    result: dict[str, Any] | None
    seconds: float
    why: str


class Job(NamedTuple):
    """A request, and where its answer goes: first `file` is called with it, then `answer` is set."""

    request: ProcessRequest
    file: Callable[[Answer], None]
    answer: Future[Answer]


class ProcessLost(Exception):
    """A process has not answered; the message says why. The process cannot be used any more."""


class Processes:
    """The evaluator processes of one `fit`. tell: called with lines for the user, from other threads."""

    def __init__(self, run: Path, logs: Folder, config: EvaluatorsConfig, tell: Callable[[str], None]) -> None:
        self.jobs: SimpleQueue[Job | None] = SimpleQueue()
        self.owners = [
            ProcessOwner(run, LogFile(logs, f"evaluator-{number}.log"), config, self.jobs, tell)
            for number in range(config.num_processes)
        ]

    def play(self, request: ProcessRequest, file: Callable[[Answer], None]) -> Future[Answer]:
        """Queue a request.

        The answer comes from a process, or says that the evaluation has failed. file: called with the answer first, in
        another thread.
        """
        answer: Future[Answer] = Future()
        self.jobs.put(Job(request, file, answer))
        return answer

    def close(self) -> None:
        """Kill the processes. Requests without an answer stay without one."""
        for owner in self.owners:
            owner.close()
        for _ in self.owners:
            self.jobs.put(None)
        for owner in self.owners:
            owner.thread.join(CLOSE_S)


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


class ProcessOwner:
    """A thread that owns one process: starts it when there is a request, and starts another one when it was lost."""

    def __init__(
        self,
        run: Path,
        log: LogFile,
        config: EvaluatorsConfig,
        jobs: "SimpleQueue[Job | None]",
        tell: Callable[[str], None],
    ) -> None:
        self.run, self.log, self.config, self.jobs, self.tell = run, log, config, jobs, tell
        self.process: EvaluatorProcess | None = None
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
            answer = self._answer(job)
            if answer is not None:
                job.answer.set_result(answer)
        if self.process is not None:
            self.process.end()

    def _answer(self, job: Job) -> Answer | None:
        """File and give the answer of the first process that is not lost; None if this object was closed meanwhile."""
        what, why = f"evaluation {job.request.task.name}", ""
        for number in range(self.config.max_restarts + 1):
            try:
                answer = self._started().answer(job.request)
                job.file(answer)
                return answer
            except Exception as error:  # whatever goes wrong here: training goes on
                why = str(error) or type(error).__name__
            if self.process is not None:
                self.process.end()
                self.process = None
            if self.is_closed:
                return None
            if number < self.config.max_restarts:
                self.tell(f"{what}: {why}; it is started again (see {self.log.path})")
        self.tell(f"{what} has failed, so nothing is decided by it: {why}; training goes on (see {self.log.path})")
        failed = Answer(None, 0.0, why)
        job.file(failed)
        return failed

    def _started(self) -> "EvaluatorProcess":
        with self.lock:
            if self.is_closed:
                raise ProcessLost("the run has ended")
            if self.process is None:
                self.process = EvaluatorProcess(self.run, self.log, self.config.timeout_s)
            return self.process


class EvaluatorProcess:
    """One process, in its own session: signals of a terminal do not reach it, and it is killed with its children.

    It holds the reading end of a pipe, which closes when the process that started it ends.
    """

    def __init__(self, run: Path, log: "LogFile", timeout_s: float) -> None:
        self._timeout_s, self._is_asked, self._is_late = timeout_s, False, False
        self._lock = threading.Lock()  # a process that has answered must not be killed as late
        watched, self._life = os.pipe()
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)  # where the user's own classes are found
        try:
            with log.opened() as file:
                self._process = subprocess.Popen(
                    [*COMMAND, str(run), str(watched)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=file,
                    pass_fds=(watched,),
                    start_new_session=True,
                    env=os.environ | {"PYTHONPATH": path},
                )
        except OSError:
            os.close(self._life)
            raise
        finally:
            os.close(watched)

    def answer(self, request: ProcessRequest) -> Answer:
        """Send a request, and wait for its answer. Raises ProcessLost if none comes in time."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._is_asked = True
        late = threading.Timer(self._timeout_s, self._give_up)  # which ends a blocked write as well as a blocked read
        late.daemon = True
        late.start()
        try:
            with suppress(BrokenPipeError):  # its last line may say why it ended
                self._process.stdin.write(request.to_bytes())
                self._process.stdin.flush()
            while "num_over" in (message := self._read(self._process.stdout.readline())):
                request.task.move(message["num_over"], message["num_rounds"])
        finally:
            with self._lock:
                self._is_asked = False
            late.cancel()
        return Answer(message["result"], message["seconds"], "")

    def _give_up(self) -> None:
        with self._lock:
            if self._is_asked:
                self._is_late = True
                self.kill()

    def _read(self, line: bytes) -> dict[str, Any]:
        """The message in a line. Raises ProcessLost if there is none, or if it says that the process has failed."""
        if line.endswith(b"\n"):
            with suppress(ValueError, LookupError, TypeError, AttributeError):
                message: dict[str, Any] = json.loads(line)
                if message.keys() in ({"num_over", "num_rounds"}, {"result", "seconds"}):
                    return message
                raise ProcessLost(message["error"])
            raise ProcessLost(f"expected a message of an evaluator, got {line[:80]!r}")
        if self._is_late:
            raise ProcessLost(f"no answer within evaluators.timeout_s = {self._timeout_s:g} s")
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
