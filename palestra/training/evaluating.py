"""What the lifecycle of a training needs from its evaluations."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from palestra.recording.results import Task
from palestra.runs.output import RunOutput
from palestra.runtime.intervals import Counters, Interval
from palestra.storage.checkpoints import CheckpointError


class Evaluating:
    """The evaluations of a training that has none; subclasses override what they need.

    is_best: whether the checkpoint that is saved at this safe point is the best so far. may_mark_earlier: whether an
    earlier checkpoint may become the best one; false for `palestra verify`, which trains a stretch again without them.
    """

    is_best = False
    may_mark_earlier = True

    def intervals(self) -> Sequence[Interval | None]:
        """The intervals at which evaluations are due."""
        return []

    def at_start(self) -> list[str]:
        """The names of the evaluations that are due before training."""
        return []

    def due(self, before: Counters, now: Counters) -> list[str]:
        """The names of the evaluations that are due between two moments."""
        return []

    def at_end(self) -> list[str]:
        """The names of the evaluations that are due at the end of training: all of them."""
        return []

    def due_once(self) -> Mapping[str, float]:
        """The counts at which results of earlier evaluations count, by unit, whatever the intervals say."""
        return {}

    def results(self, names: Sequence[str], is_final: bool) -> list[dict[str, Any]]:
        """The records that count from this safe point on. Raises Interrupted if a signal comes; then the state is as it
        was before the call."""
        return []

    def update_best(self, record: Mapping[str, Any]) -> None:
        """Compare the result of an evaluation with the best so far."""

    def must_save(self) -> bool:
        """Whether a checkpoint is due at this safe point, whatever the interval of saves says."""
        return False

    def withdraw_best(self, why: CheckpointError) -> None:
        """Called if the disk has refused the checkpoint that was to be the best: the best before it counts again."""

    def unkept_best(self) -> CheckpointError | None:
        """Why no checkpoint of a finished run holds its best players; None if one does."""
        return None

    def tasks(self) -> Sequence[Task]:
        """The evaluations that are being played while training goes on."""
        return []

    def news(self) -> Iterator[str]:
        """Lines for the user, each given once."""
        yield from ()

    def opened(self, output: RunOutput) -> AbstractContextManager[None]:
        """A context that is open during one `fit`."""
        return nullcontext()

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`."""

    def state_of_branch(self) -> dict[str, Any]:
        """The state with which a run that branches off another one begins."""
        return {}
