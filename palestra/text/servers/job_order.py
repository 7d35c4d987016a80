"""What is asked of a server by a fine-tuning job, what it can cost, and what comes of it."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from palestra.text.servers.config import ServerConfig
from palestra.text.servers.ledger import Cost, most_read, worst_of_job
from palestra.text.servers.tuning import ServerTuningConfig


@dataclass(frozen=True)
class FileJob:
    """One tuning of a model behind a server.

    content: the file of examples. method: what kind of file it is. parameters: those of the method, besides the keys of
    a ServerTuningConfig. begin_from: what is tuned: the model before, or the one that the config names.
    """

    content: bytes
    method: Literal["supervised", "dpo"]
    parameters: Mapping[str, float]
    begin_from: Literal["base", "before"]

    def state_dict(self) -> dict[str, Any]:
        """Return the job as plain data and a tensor."""
        file = torch.frombuffer(bytearray(self.content), dtype=torch.uint8)
        return {
            "file": file,
            "method": self.method,
            "parameters": dict(self.parameters),
            "begin_from": self.begin_from,
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "FileJob":
        """Make again what `state_dict` gave."""
        content = state["file"].numpy().tobytes()
        return cls(content, state["method"], state["parameters"], state["begin_from"])


@dataclass(frozen=True)
class JobOrder:
    """What is asked of a server: a job with everything that it depends on.

    model: the one that is tuned. seed: of the order of the examples.
    """

    epoch: int | str
    player: str
    server: ServerConfig
    model: str
    job: FileJob
    config: ServerTuningConfig
    seed: int

    def worst(self) -> Cost:
        """Return the most that the job can cost."""
        return worst_of_job(most_tokens(self.job.content), self.config.num_passes, self.server.exact_prices())

    def arguments(self) -> dict[str, Any]:
        """Return what the server is sent besides the file and the metadata."""
        parameters = {**self.config.hyperparameters(), **self.job.parameters}
        method = {"type": self.job.method, self.job.method: {"hyperparameters": parameters}}
        return {"model": self.model, "method": method, "seed": self.seed}

    def request(self) -> str:
        """Return the SHA-256 of all that is asked."""
        asked = {"url": self.server.url, "file": hashlib.sha256(self.job.content).hexdigest(), **self.arguments()}
        return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class TunedModel:
    """What has come of a job. model: its name. steps: opt steps, as the server counts them. loss: the last one told."""

    model: str
    steps: int
    loss: float | None


def most_tokens(content: bytes) -> int:
    """Return the most tokens that one pass through a file of examples may have, whatever the tokenizer.

    A prompt of a pair is read with both of its answers.
    """
    return sum(map(_tokens_of, map(json.loads, content.splitlines())))


def _tokens_of(example: Mapping[str, Any]) -> int:
    if "messages" in example:
        return most_read(message["content"] for message in example["messages"])
    read = example["input"]["messages"]
    pairs = ([*read, *example[name]] for name in ("preferred_output", "non_preferred_output"))
    return sum(most_read(message["content"] for message in messages) for messages in pairs)
