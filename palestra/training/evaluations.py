"""When the evaluations of a run are due, and which checkpoint is the best by their results."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from palestra.evaluation.evaluations import BestScore
from palestra.recording.results import Task
from palestra.runs.config import RunConfig
from palestra.runs.evaluations import EvaluationRequest, Evaluator, steps_of
from palestra.runs.output import RunOutput
from palestra.runtime.intervals import Counters, Interval, is_due
from palestra.storage.checkpoints import CheckpointError
from palestra.training.evaluating import Evaluating
from palestra.training.interface import RunningTraining


class PlayedEvaluations(Evaluating):
    """The evaluations that a config names. evaluator: what plays them."""

    def __init__(self, training: RunningTraining, config: RunConfig, evaluator: Evaluator) -> None:
        self.training, self.config, self.evaluator = training, config, evaluator
        self.best = (
            None if config.best is None else BestScore(config.best, config.evaluations, config.measures_of_games())
        )
        self._warned_nan = False
        self._why_unkept: CheckpointError | None = None
        self._failed: str | None = None  # why an evaluation that decides has failed

    def intervals(self) -> Sequence[Interval | None]:
        return [evaluation.interval for evaluation in self.config.evaluations]

    def at_start(self) -> list[str]:
        return [each.name for each in self.config.evaluations if each.at_start]

    def due(self, before: Counters, now: Counters) -> list[str]:
        return [each.name for each in self.config.evaluations if is_due(each.interval, before, now)]

    def at_end(self) -> list[str]:
        return [each.name for each in self.config.evaluations]

    def due_once(self) -> Mapping[str, float]:
        return self.evaluator.due()

    def results(self, names: Sequence[str], is_final: bool) -> list[dict[str, Any]]:
        """Pairings in which no player learns are only played at the start and at the end, because they do not
        change."""
        with_scripted = is_final or self.training.opt_steps == 0
        request = EvaluationRequest(list(names), with_scripted, is_final, self.training.counts())
        records = self.evaluator.results(request, self.training)
        for record in records:
            decides = self.best is not None and record["evaluation"] == self.best.config.evaluation
            if decides and record["kind"] == "failed_evaluation":
                self._failed = record["why"]
        return records

    def update_best(self, record: Mapping[str, Any]) -> None:
        """If the result is better than all before, the checkpoint of its players becomes the best: the one that is
        saved at this safe point, or an earlier one that was kept for this decision."""
        if self.best is None:
            return
        if not self._warned_nan and self.best.is_nan(record):
            self._warned_nan = True
            name, steps = f"{self.best.config.measure} of evaluation {record['evaluation']!r}", record["opt_steps"]
            line = f"best: {name} is nan at opt step {steps}; a checkpoint with nan is never the best"
            self.training.opened_output().display.warn(line)
        if not self.best.improves(record):
            return
        if steps_of(record) == steps_of(self.training.counts()):
            self.is_best = True
        elif self.config.output.save is not None and self.may_mark_earlier:
            self._mark_earlier(steps_of(record))

    def _mark_earlier(self, steps: Mapping[str, int]) -> None:
        output = self.training.opened_output()
        try:
            output.mark_best(steps)
        except CheckpointError as error:
            self.withdraw_best(error)
            output.display.error(f"{error}; training goes on")

    def must_save(self) -> bool:
        return self.is_best or steps_of(self.training.counts()) in self.evaluator.candidates()

    def withdraw_best(self, why: CheckpointError) -> None:
        if self.best is not None:
            self.best.take_back()
            self._why_unkept = why

    def unkept_best(self) -> CheckpointError | None:
        if self.best is None or self.config.output.save is None:
            return None
        if self.best.has_lost_best:
            return CheckpointError(f"the best players of the run are in no checkpoint: {self._why_unkept}")
        if self._failed is not None and self.best.value is None:
            return CheckpointError(f"no checkpoint is marked as the best, because evaluations failed: {self._failed}")
        return None

    def tasks(self) -> Sequence[Task]:
        return self.evaluator.tasks()

    def news(self) -> Iterator[str]:
        return self.evaluator.news()

    def opened(self, output: RunOutput) -> AbstractContextManager[None]:
        output.candidates = self.evaluator.candidates
        return self.evaluator.opened(output.folder)

    def state_dict(self) -> dict[str, Any]:
        best_score = None if self.best is None else self.best.value
        return {"best_score": best_score, "requests": self.evaluator.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.evaluator.load_state_dict(state["requests"])
        if self.best is not None:
            self.best.value = state["best_score"]

    def state_of_branch(self) -> dict[str, Any]:
        return {"best_score": None, "requests": []}
