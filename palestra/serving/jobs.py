"""Fine-tuning jobs: how they tune, and as the disk has them what happened to them, and the models that they made."""

import secrets
import threading
import time
from typing import Any, Literal

from torch import Tensor

from palestra.config import check
from palestra.randomness import base_key
from palestra.serving.errors import ApiError, quoted
from palestra.storage.disk import Folder
from palestra.storage.stored_files import Count, Entry, StoredFile, read_checked, read_entry, read_tensors, to_json
from palestra.text.models.local import LocalModel, LocalTuning, TuningConfig
from palestra.text.models.losses import PreferenceConfig, SupervisedConfig
from palestra.text.models.model import Job
from palestra.text.servers.job_files import examples_in

LEARNING_RATE = 0.001  # of the multiplier 1
ADAM = {"name": "adam", "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0}


class Method(Entry):
    """How a model is tuned: the parameters of a job that change its bits.

    beta: of a preference loss; None for a supervised one. seed: of which the order of the examples is drawn.
    """

    name: Literal["supervised", "dpo"]
    n_epochs: Count
    batch_size: Count
    learning_rate_multiplier: float
    beta: float | None
    seed: int

    def config(self) -> TuningConfig:
        """Return the opt steps that these parameters stand for."""
        rate = {"name": "constant", "value": LEARNING_RATE * self.learning_rate_multiplier}
        groups = [{"weights": "*", "learning_rate": rate, "optimizer": ADAM}]
        data = {"num_passes": self.n_epochs, "batch_size": self.batch_size, "num_microbatches": 1, "groups": groups}
        return check(data | {"max_grad_norm": 1.0, "precision": "float32"}, TuningConfig)

    def begin(self, model: LocalModel, content: bytes) -> LocalTuning:
        """Prepare the tuning of a model on the examples of a file. Raises JobFileError, which names the line."""
        loss: SupervisedConfig | PreferenceConfig = SupervisedConfig(name="supervised", per="token")
        if self.beta is not None:
            loss = PreferenceConfig(name="preference", beta=self.beta)
        job = Job(examples_in(model, content, self.beta is not None), loss, "before", 1.0)
        return LocalTuning(model, job, self.config(), base_key(self.seed, "fine_tuning"))


Status = Literal["validating_files", "queued", "running", "succeeded", "failed", "cancelled"]
OPEN: tuple[Status, ...] = ("validating_files", "queued", "running")
MOST_JOBS = 10_000
MOST_OPEN_JOBS = 100
FACTS, EXAMPLES, STATE, WEIGHTS = "job.json", "examples.jsonl", "state", "model.safetensors"


class Event(Entry):
    """Something that happened to a job. data: of an opt step, which one it is, of how many, and its loss."""

    created_at: Count
    level: Literal["info", "warn", "error"]
    message: str
    data: dict[str, int | float | None] | None


SHOWN = {"id", "created_at", "finished_at", "model", "fine_tuned_model", "status", "training_file", "metadata"}
SHOWN |= {"trained_tokens"}


class JobFacts(Entry):
    """The content of job.json.

    number: in the order in which the jobs came. model: which it begins with, a name of the list. begins_with: the id of
    the job that has made this model; None for the one with which the server began. error: why it failed.
    fine_tuned_model: the name of what it made, and weights the file; None before it has succeeded.
    """

    id: str
    number: Count
    model: str
    begins_with: str | None
    method: Method
    suffix: str | None
    metadata: dict[str, str] | None
    training_file: str
    examples: StoredFile
    created_at: Count
    finished_at: Count | None
    status: Status
    error: str | None
    trained_tokens: Count | None
    fine_tuned_model: str | None
    weights: StoredFile | None
    events: list[Event]

    def shown(self) -> dict[str, Any]:
        """Return the job in OpenAI's shape."""
        failed = {"code": "job_failed", "message": self.error, "param": None}
        name, parameters = self.method.name, self.method.model_dump(exclude={"name", "seed"}, exclude_none=True)
        return {
            **self.model_dump(include=SHOWN),
            "object": "fine_tuning.job",
            "organization_id": "palestra",
            "error": None if self.error is None else failed,
            "validation_file": None,
            "result_files": [],
            "hyperparameters": parameters,
            "method": {"type": name, name: {"hyperparameters": parameters}},
            "seed": self.method.seed,
            "integrations": [],
            "estimated_finish": None,
        }

    def shown_events(self) -> list[dict[str, Any]]:
        """Return what happened in OpenAI's shape, the latest first."""
        return [
            {
                **event.model_dump(),
                "id": f"ftevent-{self.id.removeprefix('ftjob-')}-{number}",
                "object": "fine_tuning.job.event",
                "type": "message" if event.data is None else "metrics",
                "data": event.data or {},
            }
            for number, event in reversed(list(enumerate(self.events)))
        ]


class Jobs:
    """The jobs in a folder: a folder of its own for each. Several threads may use it.

    changed: is notified when a job may be ready to be computed, and when one is cancelled.
    """

    def __init__(self, folder: Folder) -> None:
        self.folder, self.changed = folder.make(), threading.Condition(threading.RLock())
        folders = [folder.below(name) for name in folder.names()]
        for own in folders:
            if own.kind(FACTS) is None:  # it was killed while it was made
                _empty(own, ())
                own.remove_empty()
        jobs = {own.path.name: read_job(own) for own in folders if own.kind(FACTS) is not None}
        self._jobs = dict(sorted(jobs.items(), key=lambda item: item[1].number))
        for name in self._jobs:
            self.tidy(name)  # a kill may have come before

    # ---- looking -----------------------------------------------------------------------------------------

    def get(self, job_id: str) -> JobFacts:
        """Return a job by its id. Raises ApiError."""
        if (facts := self._jobs.get(job_id)) is None:
            param = "fine_tuning_job_id"
            raise ApiError(f"{param}: there is no job {quoted(job_id)}", param, status=404, code="not_found")
        return facts

    def listed(self) -> list[JobFacts]:
        """Return all jobs, the oldest first."""
        return list(self._jobs.values())

    def first(self, *statuses: Status) -> JobFacts | None:
        """Return the oldest job that has one of some statuses."""
        return next((job for job in self.listed() if job.status in statuses), None)

    def made(self) -> dict[str, JobFacts]:
        """Return the jobs that have made a model, by its name."""
        return {job.fine_tuned_model: job for job in self.listed() if job.fine_tuned_model is not None}

    def weights(self, model: str) -> dict[str, Tensor]:
        """Read the weights of a tuned model. Raises DamagedError."""
        return read_weights(self.folder.below(self.made()[model].id))

    # ---- changing ----------------------------------------------------------------------------------------

    def add(self, content: bytes, **said: Any) -> JobFacts:
        """Keep a new job. content: of its training file. Raises ApiError if there are too many, OSError."""
        with self.changed:
            if sum(job.status in OPEN for job in self.listed()) >= MOST_OPEN_JOBS or len(self._jobs) >= MOST_JOBS:
                message = f"expected at most {MOST_OPEN_JOBS} jobs that wait, and {MOST_JOBS} in all, got more"
                raise ApiError(message, status=429, code="rate_limit_exceeded", retry_after_s=60)
            facts = JobFacts(
                id=f"ftjob-{secrets.token_hex(12)}",
                number=1 + max((job.number for job in self.listed()), default=0),
                examples=StoredFile.of(content),
                created_at=int(time.time()),
                finished_at=None,
                status="validating_files",
                error=None,
                trained_tokens=None,
                fine_tuned_model=None,
                weights=None,
                events=[_event(f"Created fine-tuning job; validating the training file {said['training_file']}")],
                **said,
            )
            self.folder.below(facts.id).make().write(EXAMPLES, content)
            self._write(facts)
            self.folder.sync()
            self.changed.notify_all()
        return facts

    def change(
        self, job_id: str, message: str, level: str = "info", data: dict[str, Any] | None = None, **changed: Any
    ) -> JobFacts:
        """Note what happened to a job. A job that is over does not change any more."""
        with self.changed:
            facts = self._jobs[job_id]
            if facts.status not in OPEN:
                return facts
            if changed.get("status", facts.status) not in OPEN:
                changed["finished_at"] = int(time.time())
            events = [*facts.events, _event(message, level, data)]
            facts = facts.model_copy(update={**changed, "events": events})
            self._write(facts)
            self.changed.notify_all()
        return facts

    def tidy(self, job_id: str) -> None:
        """Remove the files of a job that is over, but for what it has made."""
        if (status := self._jobs[job_id].status) not in OPEN:
            _empty(self.folder.below(job_id), (FACTS, WEIGHTS) if status == "succeeded" else (FACTS,))

    def fail(self, job_id: str, why: str) -> None:
        self.change(job_id, f"The job failed: {why}", "error", status="failed", error=why)

    def cancel(self, job_id: str) -> JobFacts:
        """Let a job that is not over be over. Raises ApiError for another one."""
        with self.changed:
            facts = self.get(job_id)
            if facts.status not in OPEN:
                message = f"expected a job that is not over, got one that has the status {facts.status}"
                raise ApiError(message, "fine_tuning_job_id", code="invalid_value")
            return self.change(job_id, "The job was cancelled", status="cancelled")

    def succeed(self, job_id: str, of_model: str, trained_tokens: int) -> None:
        """End a job whose weights lie in its folder. of_model: the name of the model with which the server began."""
        facts, own = self._jobs[job_id], self.folder.below(job_id)
        with own.reading(WEIGHTS) as file:
            weights = StoredFile.of_pieces(file.pieces(file.size))
        name = ":".join(["ft", of_model, facts.suffix or "", job_id.removeprefix("ftjob-")[:12]])
        made: dict[str, Any] = {"fine_tuned_model": name, "weights": weights, "trained_tokens": trained_tokens}
        self.change(job_id, f"The job has successfully completed; new model: {name}", status="succeeded", **made)

    def _write(self, facts: JobFacts) -> None:
        self.folder.below(facts.id).write(FACTS, to_json(facts.model_dump()).encode())
        self._jobs[facts.id] = facts


def read_job(own: Folder) -> JobFacts:
    """Read what the folder of a job says of it. Raises DamagedError."""
    return read_entry(own, FACTS, JobFacts, f"{own.path.name}/{FACTS}")


def read_examples(own: Folder, job: JobFacts) -> bytes:
    """Read the training file of a job that is not over. Raises DamagedError."""
    return read_checked(own, EXAMPLES, job.examples)


def read_weights(own: Folder) -> dict[str, Tensor]:
    """Read the weights that a job has made. Raises DamagedError."""
    job = read_job(own)
    assert job.weights is not None
    return read_tensors(own, WEIGHTS, job.weights)


def _event(message: str, level: Any = "info", data: dict[str, Any] | None = None) -> Event:
    return Event(created_at=int(time.time()), level=level, message=message, data=data)


def _empty(folder: Folder, kept: tuple[str, ...]) -> None:
    folder.remove_files(lambda name: name not in kept)
