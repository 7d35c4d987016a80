"""Asynchronous evaluations: other processes play them while training goes on.

They play with a copy of the players and of the game's running statistics, made at the safe point where the evaluation
is due. Its result counts at the first safe point `results.after` steps later, no matter when it arrives, so that
everything that depends on it is the same in every run. Evaluations that do not count yet belong to the run's state; a
resumed run plays them again.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from palestra.evaluation.config import EvaluatorsConfig
from palestra.recording.results import Task
from palestra.run.evaluating import PLAYED, AnyEvaluations, Evaluating, EvaluationRequest
from palestra.run.run import ProgressReporter
from palestra.run.run_checkpoints import RunCheckpoints
from palestra.run.stored import record_name
from palestra.runtime.signals import Interrupted
from palestra.storage.disk import Folder
from palestra.storage.records_file import plain
from palestra.storage.stored_files import copied, to_bytes, to_json
from palestra.training.workers import Job, LogFile, Terms, Worker, close_all

LOOK_S = 0.05  # between two checks for a signal while training waits


@dataclass(frozen=True)
class Answer:
    """The answer to a request.

    result: that of `Evaluations.play`; None if the evaluation has failed. seconds: how long it took. why: the reason
    why it has failed, else empty.
    """

    result: dict[str, Any] | None
    seconds: float
    why: str


class EvaluationJob(Job):
    """A request to play one evaluation, with its answer once it is there.

    num: of games or items per pairing. with_scripted: whether pairings in which no player learns are played too. state:
    that by which to evaluate, and the counters. task: its progress, which the display shows. file: is called with the
    answer first, in another thread.
    """

    def __init__(
        self,
        evaluation: str,
        num: int,
        with_scripted: bool,
        state: Mapping[str, Any],
        task: Task,
        file: Callable[[Answer], None],
    ) -> None:
        self.asked, self.task, self.file = [evaluation, num, with_scripted, state], task, file
        self.what = f"evaluation {task.name}"
        self.answer: Future[Answer] = Future()

    def request(self, known: set[str]) -> bytes:
        return to_bytes(self.asked)

    def told(self, message: Mapping[str, Any]) -> None:
        self.task.move(message["num_over"], message["num_rounds"])

    def done(self, message: Mapping[str, Any], content: bytes) -> None:
        self._give(Answer(message["result"], message["seconds"], ""))

    def failed(self, error: Exception, log: Path) -> str:
        why = str(error) or type(error).__name__
        self._give(Answer(None, 0.0, why))
        return f"{self.what} has failed, so nothing is decided by it: {why}; training goes on (see {log})"

    def _give(self, answer: Answer) -> None:
        self.file(answer)
        self.answer.set_result(answer)


@dataclass
class Batch:
    """The evaluations that were requested at one safe point.

    state: that by which others evaluate (`AnyEvaluations.snapshot`). pending: those that were handed to the
    processes, by name.
    """

    request: EvaluationRequest
    state: dict[str, Any]
    pending: dict[str, EvaluationJob] = field(default_factory=dict)

    def records(self) -> list[dict[str, Any]]:
        return [record_of(name, self.request, each.answer.result()) for name, each in self.pending.items()]

    def unanswered(self) -> list[str]:
        return [name for name, each in self.pending.items() if not each.answer.done()]


class AsyncEvaluating(Evaluating):
    """Hands evaluations to other processes, and keeps their results until they count."""

    def __init__(
        self, progress: ProgressReporter, checkpoints: RunCheckpoints, evaluations: AnyEvaluations | None
    ) -> None:
        super().__init__(progress, checkpoints, evaluations)
        self.config: EvaluatorsConfig = progress.run.config.evaluators
        self.batches: list[Batch] = []  # the oldest first
        self.folder: Folder | None = None  # where answers are filed
        self.jobs: SimpleQueue[Job | None] = SimpleQueue()
        self.workers: list[Worker] = []

    # ---- requests and results ----------------------------------------------------------------------------

    def _records(self, request: EvaluationRequest) -> list[dict[str, Any]]:
        if not self.workers:  # between two `fit`
            return super()._records(request)
        if request.names:
            self.batches.append(Batch(request, copied(self.evaluations.snapshot())))
            self._hand_over()
        now = request.counters[self.config.results.unit]
        due = [batch for batch in self.batches if request.is_final or now >= self._counts_at(batch)]
        try:
            for batch in due:
                _wait(batch, self.progress)
        except Interrupted:
            if request.names:
                self.batches.pop()
            raise
        self.batches = self.batches[len(due) :]
        return [record for batch in due for record in batch.records()]

    def due_once(self) -> Mapping[str, float]:
        if not self.batches:
            return {}
        return {self.config.results.unit: self._counts_at(self.batches[0])}

    def _counts_at(self, batch: Batch) -> int:
        return batch.request.counters[self.config.results.unit] + self.config.results.after

    def candidates(self) -> Sequence[Mapping[str, int]]:
        if self.best is None:
            return []
        decides = self.best.config.evaluation
        requests = [batch.request for batch in self.batches if decides in batch.request.names]
        return [self.steps_of(request.counters) for request in requests]

    def tasks(self) -> Sequence[Task]:
        return [batch.pending[name].task for batch in self.batches for name in batch.unanswered()]

    # ---- the processes -----------------------------------------------------------------------------------

    @contextmanager
    def opened(self) -> Iterator[None]:
        """A context in which processes play. They are started when there is something to play, and end with it."""
        run = self.progress.run.folder
        self.folder = run.evaluations.make().below("async").make()
        config = self.config
        self.jobs = SimpleQueue()
        server = "palestra.training.worker:evaluator"
        terms = Terms("evaluator", server, config.timeout_s, "evaluators.timeout_s", config.max_restarts, in_all=False)
        logs = [LogFile(self.folder, f"evaluator-{number}.log") for number in range(config.num_processes)]
        self.workers = [Worker(run.path, log, terms, self.jobs, self.progress.run.display.error) for log in logs]
        self._hand_over()
        try:
            yield
        finally:
            close_all(self.workers)
            self.workers = []
            for batch in self.batches:  # in the next `fit` they are played again
                batch.pending = {}

    def _hand_over(self) -> None:
        for batch in self.batches if self.workers else ():
            if not batch.pending:
                batch.pending = {name: self._start(name, batch) for name in batch.request.names}

    def _start(self, name: str, batch: Batch) -> EvaluationJob:
        request = batch.request
        task = request.task(self.evaluations, name)
        task.name = f"{name} of opt step {request.counters['opt_steps']}"
        state = batch.state | {"counters": request.counters}
        num = self.evaluations.num(name, request.is_final)
        scripted = request.with_scripted
        job = EvaluationJob(name, num, scripted, state, task, lambda found: self._file(record_of(name, request, found)))
        if (failed := self._failed_before(name, request)) is None:
            self.jobs.put(job)
        else:
            job.answer.set_result(failed)
        return job

    def _failed_before(self, name: str, request: EvaluationRequest) -> Answer | None:
        """The answer of an evaluation that has failed before, else None.

        In a resumed run it must fail again, because that may have been recorded.
        """
        assert self.folder is not None
        with suppress(OSError, ValueError, LookupError, TypeError):  # there is none, or an evaluation
            filed = json.loads(self.folder.read(record_name(name, request.counters)))
            if filed == record_of(name, request, Answer(None, 0.0, filed["why"])):
                return Answer(None, 0.0, filed["why"])
        return None

    def _file(self, record: dict[str, Any]) -> None:
        """Write a record into its file. Called from another thread, before the answer can be seen here."""
        assert self.folder is not None
        try:
            file = record_name(record["evaluation"], record)
            told = {key: value for key, value in record.items() if key != PLAYED}
            self.folder.write(file, to_json(plain(told)).encode())
        except OSError as error:
            self.progress.run.display.error(f"an evaluation could not be written to {self.folder.path}: {error}")

    # ---- state -------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The state, with the evaluations whose results do not count yet."""
        return super().state_dict() | {
            "requests": [{"request": asdict(batch.request), **batch.state} for batch in self.batches]
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        order = list(self.progress.look().counters)
        self.batches = [
            Batch(
                EvaluationRequest.from_state(batch["request"], order),
                {key: value for key, value in batch.items() if key != "request"},
            )
            for batch in state["requests"]
        ]
        self._hand_over()


def make_evaluating(progress: ProgressReporter, checkpoints: RunCheckpoints, evaluations: AnyEvaluations) -> Evaluating:
    """The evaluations of a training, made by itself or, if its config names `evaluators`, by other processes."""
    made_by = Evaluating if progress.run.config.evaluators is None else AsyncEvaluating
    return made_by(progress, checkpoints, evaluations)


def record_of(name: str, request: EvaluationRequest, answer: Answer) -> dict[str, Any]:
    """The record of an evaluation, or of one that has failed."""
    if answer.result is None:
        return {"kind": "failed_evaluation", **request.counters, "evaluation": name, "why": answer.why}
    return {"kind": "evaluation", **request.counters, **answer.result, "clock": {"seconds": answer.seconds}}


def _wait(batch: Batch, progress: ProgressReporter) -> None:
    """Wait until all evaluations of a batch are done. Raises Interrupted if a signal asks to leave."""
    for name in batch.unanswered():
        answer = batch.pending[name].answer
        with progress.during("waiting for evaluation", []):
            while not wait([answer], timeout=LOOK_S).done:
                progress.show_or_leave()
