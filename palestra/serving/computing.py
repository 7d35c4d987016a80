"""Computes one job of a server, with saves from which another process goes on to the same bits."""

import math
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from palestra.serving.jobs import STATE, WEIGHTS, read_examples, read_job, read_weights
from palestra.serving.source import fill, stored_source
from palestra.storage.disk import Folder
from palestra.storage.lock import Lock
from palestra.storage.stored_files import from_bytes, tensors_to_bytes, to_bytes
from palestra.text.models.local import LocalModel, LocalTuning

SAVE_S = 60.0  # between saves
MOST_TOLD = 100  # opt steps of a job of which is told
Tell = Callable[[dict[str, Any]], None]


class JobFailed(Exception):
    """A job cannot be computed to its end."""


def device_here() -> torch.device:
    """Return the device on which a server computes: the first GPU if there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def compute(folder: Folder, job_id: str, tell: Tell, save_s: float = SAVE_S) -> None:
    """Compute a job of the server with this folder, from where the process before was ended.

    tell: is told of opt steps, and at the end how many tokens were learned. Raises JobFailed, JobFileError,
    ConfigError, CheckpointError, OSError.
    """
    own = folder.below("jobs", job_id)
    lock = Lock.take(own, "lock", wait=True)  # a process that was killed may not have ended yet
    assert lock is not None
    with lock:
        job = read_job(own)
        model = stored_source(folder).build(device_here())
        if job.begins_with is not None:
            fill(model, read_weights(folder.below("jobs", job.begins_with)))
        tuning = job.method.begin(model, read_examples(own, job))
        if own.kind(WEIGHTS) is None:
            _tune(own, model, tuning, tell, save_s)
    num_tokens = sum(len(each.prompt_ids) + len(each.ids) for each in tuning.job.examples)
    tell({"trained_tokens": job.method.n_epochs * num_tokens})


def _tune(own: Folder, model: LocalModel, tuning: LocalTuning, tell: Tell, save_s: float) -> None:
    """Make the opt steps that are left, and write the weights into the folder of the job."""
    if own.kind(STATE) is not None:
        state = from_bytes(own.read(STATE, sys.maxsize))
        model.load_state_dict(state["model"])
        tuning.load_state_dict(state["tuning"])
    saved_s, every = time.monotonic(), -(-tuning.num_steps // MOST_TOLD)
    while not tuning.is_done:
        loss = float(tuning.step()["loss"])
        if tuning.is_done or tuning.num_done % every == 0:
            told = {"step": tuning.num_done, "total_steps": tuning.num_steps}
            tell({**told, "train_loss": loss if math.isfinite(loss) else None})
        if time.monotonic() - saved_s >= save_s:
            own.write(STATE, to_bytes({"model": model.state_dict(), "tuning": tuning.state_dict()}))
            saved_s = time.monotonic()
    if not model.is_finite():
        raise JobFailed("expected weights that are finite numbers, got others; learn more slowly")
    own.write(WEIGHTS, tensors_to_bytes(model.state_dict()["weights"]))
