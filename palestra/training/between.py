"""What is done between two `fit` of a training: evaluations that the user asks for."""

from collections.abc import Sequence
from typing import Any

from palestra.training import ending


def evaluate(training: Any, names: Sequence[str]) -> list[dict[str, Any]]:
    """Evaluate a training that no `fit` holds open, save it, and return the records. Raises as `Training.evaluate`."""
    if training.replica.leads and not training.run.is_begun:
        way = "palestra.StoredRun.open(run) evaluates a stored one"
        raise RuntimeError(f"evaluate: expected a run that fit() has begun here, got one that it has not; {way}")
    training.is_between = True
    try:
        with training.opened(lambda other: other.evaluate(names)):
            training.begin_progress()
            if training.replica.leads:
                training.run.records.feed(training.run.recorders)
            found: list[dict[str, Any]] = training.evaluate(names)
            if training.config.output.save is not None:
                training.save(training.evaluating.must_save(training.counts()))
            ending.end_between(training)
    finally:
        training.is_between = False
    return found
