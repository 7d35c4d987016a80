"""Evaluations of a run while it trains: the interface of what plays them, and playing them in the training's
process."""

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
    """The evaluations that are due at a safe point.

    names: of the evaluations; there may be none. with_scripted: whether pairings in which no player learns are played
    too. is_final: whether the run ends here. counters: env_steps, opt_steps, epochs, episodes.
    """

    names: list[str]
    with_scripted: bool
    is_final: bool
    counters: dict[str, int]

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "EvaluationRequest":
        """The inverse of `asdict`. Puts the counters in order again, because the keys in a checkpoint are sorted."""
        return cls(**{**state, "counters": {name: state["counters"][name] for name in COUNTERS}})

    def num_games(self, evaluations: Evaluations, name: str) -> int:
        """The games per pairing of one of the evaluations."""
        config = evaluations.configs[name]
        return config.final_num_games if self.is_final else config.num_games

    def task(self, evaluations: Evaluations, name: str) -> Task:
        """The progress of one of the evaluations, for a display."""
        num_pairings = len(evaluations.pairings(name, self.with_scripted))
        num_games = num_pairings * self.num_games(evaluations, name)
        return Task(name, 0, num_games, "games", evaluations.most_rounds(name))


class Evaluator(ABC):
    """Plays the evaluations of a run while it trains. A subclass must implement `results`; the other methods are for
    evaluators whose results come later."""

    @abstractmethod
    def results(self, request: EvaluationRequest, training: Training) -> list[dict[str, Any]]:
        """The records that count from this safe point on, each with the counters at which its players were copied.

        training: shows progress, and says whether a signal asks it to leave. Then Interrupted is raised, the state is
        as before the call, and a resumed run makes the same request again.
        """

    @contextmanager
    def opened(self, run: RunFolder) -> Iterator[None]:
        """A context that is open during one `fit`."""
        yield

    def due(self) -> Mapping[str, float]:
        """The counts at which pending results count, by unit."""
        return {}

    def candidates(self) -> Sequence[Mapping[str, int]]:
        """The steps of players that may still turn out to be the best: their checkpoints must be saved and kept."""
        return []

    def tasks(self) -> Sequence[Task]:
        """The evaluations that are being played while training goes on."""
        return []

    def news(self) -> Iterator[str]:
        """Lines for the user, each given once."""
        yield from ()

    def state_dict(self) -> list[Any]:
        """The requests whose results do not count yet."""
        return []

    def load_state_dict(self, state: Sequence[Any]) -> None:
        """The inverse of `state_dict`."""
        assert not state


def steps_of(counters: Mapping[str, Any]) -> dict[str, int]:
    """The counters that identify a checkpoint and its players."""
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
        def watch(num_over: int, num_rounds: int) -> None:
            if training.is_asked_to_leave():
                raise Interrupted
            task.move(num_over, num_rounds)
            training.show()

        num_games, started = request.num_games(self.evaluations, task.name), time.perf_counter()
        result = self.evaluations.play(task.name, num_games, request.with_scripted, watch)
        task.done = task.total
        clock = {"seconds": time.perf_counter() - started}
        return {"kind": "evaluation", **request.counters, **result, "clock": clock}
