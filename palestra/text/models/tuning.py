"""How a model is tuned on answers: a short loop of opt steps, after each of which it may be saved.

Letters: B answers, A tokens of the longest, T columns.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Annotated, Any, ClassVar, Literal, Protocol

import torch
from pydantic import Field
from torch import Tensor, nn

from palestra.config import Config, PositiveFloat, PositiveInt, below
from palestra.models.gradients import pieces
from palestra.models.groups import GroupConfig, groups_of
from palestra.models.learning import Learner, LearningConfig
from palestra.models.model import Model, Terms
from palestra.randomness import fold, random_permutation
from palestra.text.models.losses import PolicyGradientConfig, PreferenceConfig
from palestra.text.models.losses.batch import Batch
from palestra.text.models.model import Example, Job, Tuning
from palestra.text.models.network import Network, left_padded, scaled_log_probs


class TuningConfig(Config):
    """How a model learns from the examples of a job."""

    usual: ClassVar[Any] = {
        "num_passes": 1,
        "batch_size": 64,
        "num_microbatches": 1,
        "groups": [{}],
        "max_grad_norm": 1.0,
        "precision": "float32",
    }

    num_passes: PositiveInt
    """how often a job goes through its examples, each time in another random order"""
    batch_size: PositiveInt
    """examples of an opt step; the last one of a pass may have fewer"""
    num_microbatches: PositiveInt
    """in how many pieces the gradient of a batch is computed, one after the other; it changes rounding alone"""
    groups: Annotated[list[GroupConfig], Field(min_length=1)]
    """the weights that learn, by pattern; each is in exactly one group"""
    max_grad_norm: PositiveFloat | None
    """the gradient of all weights is scaled down to this norm if it is longer; null: never"""
    precision: Literal["float32", "bfloat16"]
    """of the network's computations; weights and gradients stay in their own"""

    def check_groups(self, network: Network) -> None:
        """Raise ConfigError, at the key `groups`, if they do not fit the weights of a network."""
        with below("groups"):
            groups_of(nn.ModuleDict({"network": network}), self.groups)

    def learning(self) -> LearningConfig:
        """Return the config of the opt steps."""
        keys = ("batch_size", "num_microbatches", "groups", "max_grad_norm", "precision")
        own = {key: getattr(self, key) for key in keys}
        return LearningConfig(order=None, last_batch="keep", seeding=None, ema=None, **own)


class Tuned(Model):
    """A network with the loss by which it learns."""

    def __init__(self, network: Network, job: Job) -> None:
        super().__init__(job.loss)
        self.network, self.temperature = network, job.temperature

    def forward(self, batch: Batch) -> Tensor:
        """Return the log-probability of each token of the answers, (B, A), of pairs (B, 2, A), 0 for padding."""
        width = batch["is_answer"].shape[-1]
        both = torch.stack([batch["tokens"], batch["read"]], dim=-2).flatten(0, -3)
        different, which = both.unique(dim=0, return_inverse=True)  # short answers are often the same
        tokens, read = different.unbind(dim=1)
        logits, _ = self.network(tokens, read, width + 1)
        log_probs = scaled_log_probs(logits[:, :-1], self.temperature)
        own = log_probs.gather(2, tokens[:, -width:, None])[:, :, 0]
        return own[which].view_as(batch["is_answer"]).masked_fill(~batch["is_answer"], 0.0)

    def loss(self, outputs: Tensor, batch: Batch) -> Terms:
        terms: Terms = self.config.loss(outputs, batch)
        return terms


class Tunable(Protocol):
    """What a tuning asks of its model (palestra.text.models.local)."""

    network: Network

    def activate(self) -> None: ...

    def reset(self) -> None: ...

    def values(self) -> dict[str, Tensor]: ...

    def as_reference(self, name: str) -> AbstractContextManager[None]: ...

    def holding(self, weights: dict[str, Tensor]) -> AbstractContextManager[None]: ...

    def take_optimizer(self, signature: str) -> dict[str, Any] | None: ...

    def keep_optimizer(self, signature: str, learner: Learner) -> None: ...


class LocalTuning(Tuning):
    """A job of a model in this process. Its opt steps change the model's weights in place.

    An optimizer goes on from the job before if that had the same loss and the same config, and if this one begins from
    the model before; else it is a new one.
    """

    def __init__(self, model: Tunable, job: Job, config: TuningConfig, key: int) -> None:
        if not job.examples:
            raise ValueError("expected examples to learn from, got none")
        if isinstance(job.loss, PolicyGradientConfig):
            if not all(example.log_probs for example in job.examples):
                raise ValueError("expected sampled answers for a policy gradient, got one without log-probabilities")
        elif not all(example.weight > 0 for example in job.examples):
            raise ValueError(f"expected positive weights for a {job.loss.name} loss, got another")
        if any(bool(example.worse) != isinstance(job.loss, PreferenceConfig) for example in job.examples):
            raise ValueError(
                f"expected pairs of answers for a preference, and for it alone, got a {job.loss.name} loss"
            )
        self.model, self.job, self.config, self.key = model, job, config, key
        self.num_in_pass = -(-len(job.examples) // config.batch_size)
        self.num_steps, self.num_done = config.num_passes * self.num_in_pass, 0
        self._learner: Learner | None = None
        self._before: dict[str, Tensor] | None = None  # the weights with which the job began, if its loss asks for them

    def step(self) -> Terms:
        learner = self._begun()
        batch = batch_of([self.job.examples[i] for i in self._numbers()], self.model.network.device)
        if self.job.loss.reference is not None:
            with self._reference(self.job.loss.reference), torch.no_grad(), learner.context():
                parts = [learner.model(piece) for piece in pieces(batch, self.config.num_microbatches)]
            batch["reference"] = torch.cat(parts)
        terms = learner.opt_step(batch)
        learner.opt_steps += 1
        self.num_done += 1
        if self.is_done:
            self.model.keep_optimizer(self._signature(), learner)
            self._before = None
        return terms

    def _reference(self, name: str) -> AbstractContextManager[None]:
        return self.model.as_reference(name) if self._before is None else self.model.holding(self._before)

    def _begun(self) -> Learner:
        """Return what makes the opt steps; before the first, set the weights from which it begins."""
        self.model.activate()
        if self._learner is None:
            if self.job.begin_from == "base":
                self.model.reset()
            if self.job.loss.reference == "before":
                self._before = self.model.values()
            self._learner = self._make_learner()
            kept = self.model.take_optimizer(self._signature())
            if kept is not None:
                self._learner.load_state_dict(kept)
        return self._learner

    def _make_learner(self) -> Learner:
        return Learner(Tuned(self.model.network, self.job), self.config.learning())

    def _signature(self) -> str:
        return f"{self.job.loss.model_dump_json()} {self.config.model_dump_json()}"

    def _numbers(self) -> list[int]:
        """Return the numbers of the examples of the next opt step."""
        in_pass, number = divmod(self.num_done, self.num_in_pass)
        order = random_permutation(fold(torch.tensor([self.key]), in_pass), len(self.job.examples))
        size = self.config.batch_size
        numbers: list[int] = order[number * size : (number + 1) * size].tolist()
        return numbers

    def state_dict(self) -> dict[str, Any]:
        learner = None if self._learner is None else self._learner.state_dict()
        return {"num_done": self.num_done, "learner": learner, "before": self._before}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.num_done, self._before = state["num_done"], state["before"]
        if state["learner"] is not None:
            self.model.activate()
            self._learner = self._make_learner()
            self._learner.load_state_dict(state["learner"])


def batch_of(examples: Sequence[Example], device: torch.device) -> Batch:
    """Return examples as one batch: all of pairs, or none."""
    rows: list[tuple[Sequence[Any], ...]] = []
    for each in examples:
        rows.append((each.prompt_ids, each.ids, each.log_probs or (0.0,) * len(each.ids)))
        if each.worse:
            rows.append((each.prompt_ids, each.worse, (0.0,) * len(each.worse)))
    shape = (len(examples), 2, -1) if examples[0].worse else (len(examples), -1)
    prompts, read = left_padded([row[0] for row in rows], device)
    answers, is_answer = right_padded([row[1] for row in rows], torch.int64, device)
    sampled, _ = right_padded([row[2] for row in rows], torch.float32, device)
    return {
        "tokens": torch.cat([prompts, answers], dim=1).view(shape),
        "read": torch.cat([read, is_answer.long()], dim=1).view(shape),
        "is_answer": is_answer.view(shape),
        "weight": torch.tensor([each.weight for each in examples], dtype=torch.float32, device=device),
        "sampled": sampled.view(shape),
        "reference": torch.zeros(is_answer.shape, device=device).view(shape),
    }


def right_padded(rows: Sequence[Sequence[Any]], dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return rows of numbers as (B, A), padded on the right with 0, and which of them are no padding, bool (B, A)."""
    width = max(map(len, rows))
    values = torch.tensor([[*row, *[0] * (width - len(row))] for row in rows], dtype=dtype, device=device)
    lengths = torch.tensor([len(row) for row in rows], device=device)
    return values, torch.arange(width, device=device) < lengths[:, None]
