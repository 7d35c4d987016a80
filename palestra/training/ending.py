"""How a `fit` ends: what run.json, the recorders, the mirror and the display are told; evaluations after it."""

from collections.abc import Sequence
from typing import Any

from palestra.storage.remote import RemoteError


def end(training: Any) -> None:
    """End a `fit` whose training is done or was asked to leave. Raises the error of what could not be kept."""
    training.after_train()
    if not training.replica.leads:
        return
    run = training.run
    training.lockstep.keep_waiting(True)
    unsent = _file_end(training)
    run.conclude(training.progress.now(), with_plot=training.finished and run.signals.received is None)
    training.lockstep.keep_waiting(False)
    unkept = training.evaluating.unkept_best() if training.finished else None
    if (failure := training.checkpoints.failure or unkept or unsent) is not None:
        raise failure from None


def stay_finished(training: Any, is_fresh: bool) -> None:
    """End a `fit` of a run that is finished: recorders and mirror get what they lack. Raises RemoteError.

    is_fresh: whether this process has just loaded it.
    """
    if not training.replica.leads:
        return
    run = training.run
    if not is_fresh:
        training.log(f"{run.folder.path}: {run.finished_line(training.end_reason)}")
    run.records.feed(run.unfiled())
    training.checkpoints.catch_up_mirror()
    if (unsent := _file_end(training)) is not None:
        raise unsent


def end_between(training: Any) -> None:
    """End what was done between two `fit`. Raises the error of what could not be kept."""
    if training.replica.leads and (failure := training.checkpoints.failure or _file_end(training)) is not None:
        raise failure from None


def _file_end(training: Any) -> RemoteError | None:
    """Tell run.json, the recorders and the mirror how this `fit` ends. Gives the error of an incomplete mirror."""
    run, checkpoints = training.run, training.checkpoints
    if training.finished and training.end_reason is not None:
        run.note_end(training.end_reason)
    has_failed = checkpoints.failure is not None
    run.records.finish("failed" if has_failed else "complete" if training.finished else "interrupted")
    error: RemoteError | None = checkpoints.finish_mirror()
    return error


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
            end_between(training)
    finally:
        training.is_between = False
    return found
