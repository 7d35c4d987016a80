"""Processes that play evaluations (palestra.runs.evaluator_worker): started, handed requests, watched, killed.

One thread per process does this, so that training waits for none of it. What a process prints goes to
`evaluations/async/evaluator-N.log`. It ends with the process that started it, also if that is killed.
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

from safetensors.torch import save
from torch import Tensor

from palestra.evaluation.config import EvaluatorsConfig
from palestra.recording.results import Task
from palestra.runtime.signals import exit_text
from palestra.storage.disk import Folder
from palestra.storage.states import encode

COMMAND = [sys.executable, "-P", "-m", "palestra.runs.evaluator_worker"]
CLOSE_S = 5.0  # for the threads to see that their processes are gone


@dataclass(frozen=True)
class ProcessRequest:
    """One evaluation, by name. state: as in a checkpoint; players, game, counters. task: shows how far it is."""

    evaluation: str
    num_games: int
    with_scripted: bool
    state: Mapping[str, Any]
    task: Task

    def to_bytes(self) -> bytes:
        """A line of JSON, and a safetensors file of as many bytes as it says."""
        tensors: dict[str, Tensor] = {}
        document = encode(self.state, "", tensors)
        content = save(tensors)
        header = {"evaluation": self.evaluation, "num_games": self.num_games, "with_scripted": self.with_scripted}
        return json.dumps(header | {"state": document, "num_bytes": len(content)}).encode() + b"\n" + content


@dataclass(frozen=True)
class Answer:
    """result: what `Evaluations.play` gave; None if the evaluation has failed, and `why`."""

    result: dict[str, Any] | None
    seconds: float
    why: str


class Job(NamedTuple):
    """A request, and where its answer goes: to `file` first."""

    request: ProcessRequest
    file: Callable[[Answer], None]
    answer: Future[Answer]


class ProcessLost(Exception):
    """A process has not answered; the message says why. It is of no more use."""


class Processes:
    """`num_processes` of them. tell: is given lines for the user, from other threads."""

    def __init__(self, run: Path, logs: Folder, config: EvaluatorsConfig, tell: Callable[[str], None]) -> None:
        self.jobs: SimpleQueue[Job | None] = SimpleQueue()
        self.keepers = [
            Keeper(run, LogFile(logs, f"evaluator-{number}.log"), config, self.jobs, tell)
            for number in range(config.num_processes)
        ]

    def play(self, request: ProcessRequest, file: Callable[[Answer], None]) -> Future[Answer]:
        """The answer to come: of a process, or that the evaluation has failed. file: is given it first, in another
        thread."""
        answer: Future[Answer] = Future()
        self.jobs.put(Job(request, file, answer))
        return answer

    def close(self) -> None:
        """End the processes, whatever they do. What has no answer gets none."""
        for keeper in self.keepers:
            keeper.close()
        for _ in self.keepers:
            self.jobs.put(None)
        for keeper in self.keepers:
            keeper.thread.join(CLOSE_S)


@dataclass(frozen=True)
class LogFile:
    """What a process prints."""

    folder: Folder
    name: str

    @property
    def path(self) -> Path:
        return self.folder.path / self.name

    @contextmanager
    def opened(self) -> Iterator[int]:
        """For writing at its end."""
        file = self.folder.append(self.name)
        try:
            os.lseek(file.descriptor, 0, os.SEEK_END)
            yield file.descriptor
        finally:
            file.close()


class Keeper:
    """Keeps one process in a thread: starts it when there is a request, and another when it was lost."""

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
        self.lock = threading.Lock()  # whoever starts a process must know that nobody has closed meanwhile
        self.thread = threading.Thread(target=self._work, name=log.name.removesuffix(".log"), daemon=True)
        self.thread.start()

    def close(self) -> None:
        """From another thread."""
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
        """Of the first process that does not get lost, filed; None where this was closed."""
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
                self.tell(f"{what}: {why}; it is begun anew (see {self.log.path})")
        self.tell(f"{what} has failed, and decides nothing: {why}; training goes on (see {self.log.path})")
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
    """One process, in a session of its own: no signal of a terminal reaches it, and it is killed with its children.

    It holds the reading end of a pipe that closes with the process that started it.
    """

    def __init__(self, run: Path, log: "LogFile", timeout_s: float) -> None:
        self._timeout_s, self._is_asked, self._is_late = timeout_s, False, False
        self._lock = threading.Lock()  # who has answered is not late
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
        """Raises ProcessLost where none comes in time."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._is_asked = True
        late = threading.Timer(self._timeout_s, self._give_up)  # which ends a blocked write as well as a blocked read
        late.daemon = True
        late.start()
        try:
            with suppress(BrokenPipeError):  # it may have said why
                self._process.stdin.write(request.to_bytes())
                self._process.stdin.flush()
            while "num_over" in (said := self._read(self._process.stdout.readline())):
                request.task.done = said["num_over"]
        finally:
            with self._lock:
                self._is_asked = False
            late.cancel()
        return Answer(said["result"], said["seconds"], "")

    def _give_up(self) -> None:
        with self._lock:
            if self._is_asked:
                self._is_late = True
                self.kill()

    def _read(self, line: bytes) -> dict[str, Any]:
        """What a line says. Raises ProcessLost where it is none, or says why the process ends."""
        if line.endswith(b"\n"):
            with suppress(ValueError, LookupError, TypeError, AttributeError):
                said: dict[str, Any] = json.loads(line)
                if said.keys() in ({"num_over"}, {"result", "seconds"}):
                    return said
                raise ProcessLost(said["error"])
            raise ProcessLost(f"its answer makes no sense: {line[:80]!r}")
        if self._is_late:
            raise ProcessLost(f"no answer within evaluators.timeout_s = {self._timeout_s:g} s")
        self.kill()
        raise ProcessLost(f"its process {exit_text(self._process.wait())}")

    def kill(self) -> None:
        """It and its children, at once."""
        if self._process.returncode is None:  # or the number may be another's
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def end(self) -> None:
        """Kill it, and let go of it."""
        self.kill()
        self._process.wait()
        os.close(self._life)
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                if pipe is not None:
                    pipe.close()
