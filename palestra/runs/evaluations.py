"""Evaluations of a run while it trains: what the trainer asks of whoever plays them, and how it plays them itself."""

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from palestra.callbacks.training import Training
from palestra.evaluation.evaluations import Evaluations
from palestra.recording.results import Task
from palestra.runtime.signals import Interrupted
from palestra.storage.run_folder import RunFolder

COUNTERS = ("env_steps", "opt_steps", "epochs", "episodes")  # in the order in which records have them


@dataclass(frozen=True)
class EvaluationRequest:
    """A safe point, and what is due there.

    names: of the evaluations; there may be none. with_scripted: also pairings in which nobody learns. is_final: the run
    ends here. counters: env_steps, opt_steps, epochs, episodes.
    """

    names: list[str]
    with_scripted: bool
    is_final: bool
    counters: dict[str, int]

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "EvaluationRequest":
        """What `asdict` gave. A checkpoint's keys are sorted."""
        return cls(**{**state, "counters": {name: state["counters"][name] for name in COUNTERS}})

    def num_games(self, evaluations: Evaluations, name: str) -> int:
        """Per pairing."""
        config = evaluations.configs[name]
        return config.final_num_games if self.is_final else config.num_games

    def task(self, evaluations: Evaluations, name: str) -> Task:
        """One of the evaluations, for a display."""
        num_pairings = len(evaluations.pairings(name, self.with_scripted))
        return Task(name, 0, num_pairings * self.num_games(evaluations, name), "games")


class Evaluator(ABC):
    """Plays the evaluations of a run that trains. What most have no use for is given here."""

    @abstractmethod
    def results(self, request: EvaluationRequest, training: Training) -> list[dict[str, Any]]:
        """The records that count from this safe point on, each with the counters of the players that it tells of.

        training: shows what it waits for. Raises Interrupted if it is asked to leave; then nothing has happened, and
        the same is asked again.
        """

    @contextmanager
    def opened(self, run: RunFolder) -> Iterator[None]:
        """For the time of one `fit`."""
        yield

    def due(self) -> Mapping[str, float]:
        """At which counts results are due, whatever else is."""
        return {}

    def candidates(self) -> Sequence[Mapping[str, int]]:
        """The steps of those of whom it is not decided yet whether they are the best: a checkpoint holds them."""
        return []

    def tasks(self) -> Sequence[Task]:
        """What is being played beside training."""
        return []

    def news(self) -> Iterator[str]:
        """What the user should know, each line once."""
        yield from ()

    def state_dict(self) -> list[Any]:
        """What was asked and does not count yet."""
        return []

    def load_state_dict(self, state: Sequence[Any]) -> None:
        """The inverse of `state_dict`."""
        assert not state


def steps_of(counters: Mapping[str, Any]) -> dict[str, int]:
    """Those of the counters by which players and their checkpoint are known."""
    return {unit: counters[unit] for unit in ("env_steps", "opt_steps", "epochs")}


class SyncEvaluator(Evaluator):
    """Training waits for each evaluation, whose results count at once."""

    def __init__(self, evaluations: Evaluations) -> None:
        self.evaluations = evaluations

    def results(self, request: EvaluationRequest, training: Training) -> list[dict[str, Any]]:
        tasks = [request.task(self.evaluations, name) for name in request.names]
        if not tasks:
            return []
        with training.during("evaluating", tasks):
            return [self._record(task, request, training) for task in tasks]

    def _record(self, task: Task, request: EvaluationRequest, training: Training) -> dict[str, Any]:
        def watch(num_over: int) -> None:
            if training.is_asked_to_leave():
                raise Interrupted
            task.done = num_over
            training.show()

        num_games, started = request.num_games(self.evaluations, task.name), time.perf_counter()
        result = self.evaluations.play(task.name, num_games, request.with_scripted, watch)
        task.done = task.total
        clock = {"seconds": time.perf_counter() - started}
        return {"kind": "evaluation", **request.counters, **result, "clock": clock}
