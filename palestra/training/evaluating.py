"""What the lifecycle of a training asks of its evaluations."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from palestra.recording.results import Task
from palestra.runs.output import RunOutput
from palestra.runtime.intervals import Counters, Interval


class Evaluating:
    """The evaluations of a training that has none; others override what they need.

    is_best: whether what stands at this safe point is the best so far. marks_earlier: whether an earlier checkpoint may
    become the best one; `palestra verify`, which trains a stretch again, does not have those.
    """

    is_best = False
    marks_earlier = True

    def intervals(self) -> Sequence[Interval | None]:
        return []

    def due(self, before: Counters, now: Counters, at_all_events: bool) -> list[str]:
        """The names of the evaluations that are due; at all events: all of them."""
        return []

    def due_once(self) -> Mapping[str, float]:
        """At which counts results are due, whatever else is."""
        return {}

    def results(self, names: Sequence[str], is_final: bool) -> list[dict[str, Any]]:
        """The records that count from this safe point on. Raises Interrupted, and nothing has happened."""
        return []

    def take_in(self, record: Mapping[str, Any]) -> None:
        """See whether the result of an evaluation is the best so far."""

    def must_save(self) -> bool:
        """Whether a checkpoint is due at this safe point, whatever the interval of saves says."""
        return False

    def best_was_not_saved(self) -> None:
        """The disk has refused the checkpoint that was to be the best."""

    def tasks(self) -> Sequence[Task]:
        """What is being played beside training."""
        return []

    def news(self) -> Iterator[str]:
        """What the user should know, each line once."""
        yield from ()

    def opened(self, output: RunOutput) -> AbstractContextManager[None]:
        """For the time of one `fit`."""
        return nullcontext()

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`."""

    def state_of_branch(self) -> dict[str, Any]:
        """What a run begins with that branches off another."""
        return {}
