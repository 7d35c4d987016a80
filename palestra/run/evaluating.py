"""The evaluations of a run while it trains: when they are due, how they are played, which checkpoint is the best."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from palestra.evaluation.evaluations import BestScore
from palestra.evaluation.evaluator import Watch
from palestra.recording.results import Task, metric_text
from palestra.run.checkpoints import CheckpointError
from palestra.run.run import ProgressReporter
from palestra.run.run_checkpoints import RunCheckpoints
from palestra.runtime.intervals import Counters, Interval, is_due
from palestra.runtime.signals import Interrupted
from palestra.storage.records_file import plain

PLAYED = "played"
"""the entry of a result that goes into files beside the checkpoints, and not into its record"""


class AnyEvaluations(Protocol):
    """The evaluations of a run by name, whatever it trains. counted: what one of them counts, as "games"."""

    counted: str

    @property
    def configs(self) -> Mapping[str, Any]:
        """Each has `name`, `interval` and `at_start`."""

    def num(self, name: str, is_final: bool) -> int:
        """Return how many games or items a pairing has. is_final: at the end of a run, and of `palestra evaluate`."""

    def pairings(self, name: str, with_scripted: bool) -> Sequence[Mapping[str, str]]:
        """Return who is judged, each as role -> player."""

    def most_rounds(self, name: str) -> int | None:
        """Return after how many rounds a game is cut off; None where there are none."""

    def play(self, name: str, num: int, with_scripted: bool, watch: Watch) -> dict[str, Any]:
        """Evaluate, and return the record without counters. num: per pairing."""

    def snapshot(self) -> dict[str, Any]:
        """Return the part of a run's state by which others evaluate the same to the bit."""


@dataclass(frozen=True)
class EvaluationRequest:
    """The evaluations that are due at a safe point.

    names: those of the evaluations; there may be none. with_scripted: whether pairings in which no player learns are
    played, too. is_final: whether the run ends here. counters: those of the run.
    """

    names: list[str]
    with_scripted: bool
    is_final: bool
    counters: dict[str, int]

    @classmethod
    def from_state(cls, state: Mapping[str, Any], order: Sequence[str]) -> "EvaluationRequest":
        """Make a request from what `asdict` gave. order: of the counters, which a checkpoint sorts."""
        return cls(**{**state, "counters": {name: state["counters"][name] for name in order}})

    def task(self, evaluations: AnyEvaluations, name: str) -> Task:
        """The progress of one of the evaluations, for a display."""
        total = len(evaluations.pairings(name, self.with_scripted)) * evaluations.num(name, self.is_final)
        return Task(name, 0, total, evaluations.counted, evaluations.most_rounds(name))


class EvaluationHooks(NamedTuple):
    """The calls by which a training takes part in its evaluations.

    context: gives the context in which they are played. after_evaluation: is called with the record of each result that
    counts. file: writes what a result has for files beside the checkpoints, and returns its record.
    """

    context: Callable[[], AbstractContextManager[None]]
    after_evaluation: Callable[[Mapping[str, Any]], None]
    file: Callable[[dict[str, Any]], dict[str, Any]] = dict


class Evaluating:
    """The evaluations of a run while it trains.

    Training waits for each of them, and its result counts at once; the subclass
    palestra.training.async_evaluations.AsyncEvaluating lets other processes play.

    evaluations: plays them; None for a training that has none.

    is_final: whether the run is in its test, which is one piece: results are recorded once it is over. is_best: whether
    the checkpoint that is saved at this safe point is the best so far. may_mark_earlier: whether an earlier checkpoint
    may become the best one; false for `palestra verify`, which trains a stretch again without them.
    """

    is_best = False
    may_mark_earlier = True

    def __init__(
        self, progress: ProgressReporter, checkpoints: RunCheckpoints, evaluations: AnyEvaluations | None
    ) -> None:
        self.progress, self.checkpoints, self._evaluations = progress, checkpoints, evaluations
        self.is_final = False
        self._tested: list[dict[str, Any]] = []  # the records of the evaluations in the test
        self.configs: list[Any] = []
        self.best: BestScore | None = None
        if evaluations is not None:
            config = progress.run.config
            self.configs = list(evaluations.configs.values())
            if (best := config.decisive()) is not None:
                self.best = BestScore(best, config.measure(best))
        self._warned_nan = False
        self._why_unkept: CheckpointError | None = None
        self._failed: str | None = None  # why an evaluation that decides has failed

    @property
    def evaluations(self) -> AnyEvaluations:
        assert self._evaluations is not None, "a training without evaluations plays none"
        return self._evaluations

    # ---- when they are due -------------------------------------------------------------------------------

    def intervals(self) -> Sequence[Interval | None]:
        """The intervals at which evaluations are due."""
        return [each.interval for each in self.configs]

    def at_start(self) -> list[str]:
        """The names of the evaluations that are due before training."""
        return [each.name for each in self.configs if each.at_start]

    def due(self, before: Counters, now: Counters) -> list[str]:
        """The names of the evaluations that are due between two moments."""
        return [each.name for each in self.configs if is_due(each.interval, before, now)]

    def at_end(self) -> list[str]:
        """The names of the evaluations that are due at the end of training: all of them."""
        return [each.name for each in self.configs]

    def due_once(self) -> Mapping[str, float]:
        """The counts at which results of earlier evaluations count, by unit, whatever the intervals say."""
        return {}

    # ---- playing them ------------------------------------------------------------------------------------

    def evaluate(self, names: Sequence[str], counters: dict[str, int], hooks: EvaluationHooks) -> list[dict[str, Any]]:
        """Play evaluations, and write the records of the results that count now; in the test, once it is over.

        Returns these records.

        names: those of the evaluations that are due. counters: those of the run. hooks: those of the training. A record
        has the counters at which its players were copied. Pairings in which no player learns are only played at the
        start and at the end, because they do not change. Raises Interrupted if a signal comes; then the state is as it
        was before the call, nothing is written, and a resumed run asks for the same again.
        """
        with_scripted = self.is_final or counters["opt_steps"] == 0
        request = EvaluationRequest(list(names), with_scripted, self.is_final, counters)
        if self.is_final:
            self._tested += (records := self._records(request))
            return [plain({key: value for key, value in each.items() if key != PLAYED}) for each in records]
        with self.progress.run.aside("evaluation"), hooks.context() if names else nullcontext():
            records = self._records(request)
        return self._count(records, counters, hooks)

    @contextmanager
    def test(self, counters: dict[str, int], hooks: EvaluationHooks) -> Iterator[None]:
        """A context for the test of a run, which is one piece. Arguments as in `evaluate`.

        If a signal comes, Interrupted leaves the context, and nothing of the test is written.
        """
        if self.is_final:
            raise RuntimeError("expected no safe point (and no turn of a player) inside _test, got one")
        before = self.state_dict()
        self._tested = []
        self.is_final = True
        try:
            with self.progress.run.aside("evaluation"), self.progress.during("testing", []):
                with hooks.context():
                    yield
                self.evaluate([], counters, hooks)  # waits for evaluations that other processes still play
        except Interrupted:
            if self._tested:
                self.load_state_dict(before)
            raise
        finally:
            self.is_final = False
        self._count(self._tested, counters, hooks)

    def _count(
        self, records: Sequence[dict[str, Any]], counters: Mapping[str, int], hooks: EvaluationHooks
    ) -> list[dict[str, Any]]:
        """Write and return the records of results, each of which may make a checkpoint the best one."""
        filed = [hooks.file(record) for record in records]
        for record in filed:
            self.progress.run.records.write(record)
            if record["kind"] == "evaluation":
                self._update_best(record, counters)
                hooks.after_evaluation(record)
            elif self.best is not None and record["evaluation"] == self.best.config.evaluation:
                self._failed = record["why"]
        return [plain(record) for record in filed]

    def _records(self, request: EvaluationRequest) -> list[dict[str, Any]]:
        tasks = [request.task(self.evaluations, name) for name in request.names]
        if not tasks:
            return []
        with self.progress.during("evaluating", tasks):
            return [self._play(task, request) for task in tasks]

    def _play(self, task: Task, request: EvaluationRequest) -> dict[str, Any]:
        def watch(num_over: int, num_rounds: int) -> None:
            task.move(num_over, num_rounds)
            self.progress.show_or_leave()

        num = self.evaluations.num(task.name, request.is_final)
        started = time.perf_counter()
        result = self.evaluations.play(task.name, num, request.with_scripted, watch)
        task.done = task.total
        return {"kind": "evaluation", **request.counters, **result, "clock": {"seconds": time.perf_counter() - started}}

    @contextmanager
    def opened(self) -> Iterator[None]:
        """The context of one `fit`."""
        yield

    def steps_of(self, counters: Mapping[str, Any]) -> dict[str, int]:
        """The counters that identify a checkpoint and its players. counters: a record, or counters."""
        return {name: counters[name] for name in self.progress.run.config.steps()}

    def candidates(self) -> Sequence[Mapping[str, int]]:
        """The steps of players that may still turn out to be the best: their checkpoints must be saved and kept."""
        return []

    def tasks(self) -> Sequence[Task]:
        """The evaluations that are being played while training goes on."""
        return []

    # ---- which checkpoint is the best --------------------------------------------------------------------

    def _update_best(self, record: Mapping[str, Any], counters: Mapping[str, int]) -> None:
        """Make the checkpoint of an evaluation's players the best one, if the result is better than all before.

        It is the one that is saved at this safe point, or an earlier one that was kept for this decision. counters:
        those of the run.
        """
        if self.best is None:
            return
        display = self.progress.run.display
        measure = self.best.config.measure
        shown = next((score["name"] for score in record.get("declared_scores", ()) if score["shown"]), None)
        if measure != shown and (value := self.best.measure.of(record)) is not None:
            self.progress.decisive[record["evaluation"], record["opt_steps"]] = f"{measure} {metric_text(value)}"
        if not self._warned_nan and self.best.is_nan(record):
            self._warned_nan = True
            name, steps = f"{measure} of evaluation {record['evaluation']!r}", record["opt_steps"]
            display.warn(f"best: {name} is nan at opt step {steps}; a checkpoint with nan is never the best")
        if not self.best.improves(record):
            return
        if self.steps_of(record) == self.steps_of(counters):
            self.is_best = True
        elif self.progress.run.config.output.save is not None and self.may_mark_earlier:
            try:
                self.checkpoints.mark_best(self.steps_of(record))
            except CheckpointError as error:
                self.withdraw_best(error)
                display.error(f"{error}; training goes on")

    def must_save(self, counters: Mapping[str, int]) -> bool:
        """Whether a checkpoint is due at this safe point, whatever the interval of saves says."""
        return self.is_best or self.steps_of(counters) in self.candidates()

    def withdraw_best(self, why: CheckpointError | None) -> None:
        """Let the best checkpoint before count again, because the disk has refused the one that was to be the best."""
        if self.best is not None:
            self.best.take_back()
            self._why_unkept = why

    def unkept_best(self) -> CheckpointError | None:
        """The reason why no checkpoint of a finished run holds its best players; None if one does."""
        if self.best is None or self.progress.run.config.output.save is None:
            return None
        if self.best.has_lost_best:
            return CheckpointError(f"the best players of the run are in no checkpoint: {self._why_unkept}")
        if self._failed is not None and self.best.value is None:
            return CheckpointError(f"no checkpoint is marked as the best, because evaluations failed: {self._failed}")
        return None

    # ---- state -------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        return {"best_score": None if self.best is None else self.best.value, "requests": []}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        if self.best is not None:
            self.best.value = state["best_score"]

    def state_of_branch(self) -> dict[str, Any]:
        """The state with which a run that branches off another one begins."""
        return {"best_score": None, "requests": []}
