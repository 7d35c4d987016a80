"""A model in this process: its answers are sampled here, and its weights, or an adapter's, learn.

It is tuned by a short loop of opt steps, after each of which it may be saved.

Letters: B answers, A tokens of the longest, T columns.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Protocol

import torch
from pydantic import Field
from torch import Tensor, nn

from palestra.config import Config, ConfigError, PositiveFloat, PositiveInt, below
from palestra.models.gradients import pieces
from palestra.models.groups import GroupConfig, groups_of
from palestra.models.learning import Learner
from palestra.models.model import Model, Terms
from palestra.randomness import fold, random_permutation
from palestra.text.models.encode import Encoder, TokenizerError
from palestra.text.models.losses import Batch, PolicyGradientConfig, PreferenceConfig
from palestra.text.models.model import (
    Answer,
    ChatTemplateError,
    Example,
    Job,
    Prompt,
    PromptBeyondContext,
    PromptRefused,
    Request,
    SamplingConfig,
    TextModel,
    Tuning,
)
from palestra.text.models.network import Drawn, Network, draw_answers, left_padded, scaled_log_probs


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

    ema: ClassVar[None] = None  # which a Learner asks for

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
        return self.config.loss(outputs, batch)


class LocalTuning(Tuning):
    """A job of a model in this process. Its opt steps change the model's weights in place.

    An optimizer goes on from the job before if that had the same loss and the same config, and if this one begins from
    the model before; else it is a new one.
    """

    def __init__(self, model: "LocalModel", job: Job, config: TuningConfig, key: int) -> None:
        if not job.examples:
            raise ValueError("expected examples to learn from, got none")
        if isinstance(job.loss, PolicyGradientConfig):
            if not all(example.log_probs for example in job.examples):
                raise ValueError("expected sampled answers for a policy gradient, got one without log-probabilities")
        elif not all(example.weight > 0 for example in job.examples):
            raise ValueError(f"expected positive weights for a {job.loss.name} loss, got another")
        if any(bool(example.worse) != isinstance(job.loss, PreferenceConfig) for example in job.examples):
            expected = "expected pairs of answers for a preference, and for it alone"
            raise ValueError(f"{expected}, got a {job.loss.name} loss")
        self.model, self.job, self.config, self.key = model, job, config, key
        self.num_in_pass = -(-len(job.examples) // config.batch_size)
        self.num_steps, self.num_done = config.num_passes * self.num_in_pass, 0
        self._learner: Learner | None = None
        self._before: dict[str, Tensor] | None = None  # the weights with which the job began, if its loss asks for them

    def step(self) -> Terms:
        learner = self._begun()
        batch = batch_of([self.job.examples[i] for i in self._numbers()], self.model.network.device)
        if self.job.loss.reference is not None:
            model, before = self.model, self._before
            reference = model.as_reference(self.job.loss.reference) if before is None else model.holding(before)
            with reference, torch.no_grad(), learner.context():
                parts = [learner.model(piece) for piece in pieces(batch, self.config.num_microbatches)]
            batch["reference"] = torch.cat(parts)
        terms = learner.opt_step(batch)
        learner.opt_steps += 1
        self.num_done += 1
        if self.is_done:
            self.model.keep_optimizer(self._signature(), learner)
            self._before = None
        return terms

    def _begun(self) -> Learner:
        """Return what makes the opt steps; before the first, set the weights from which it begins."""
        self.model.learning.activate()
        if self._learner is None:
            if self.job.begin_from == "base":
                self.model.reset()
            if self.job.loss.reference == "before":
                self._before = self.model.values()
            self._learner = self._make_learner()
            if (kept := self.model.take_optimizer(self._signature())) is not None:
                self._learner.load_state_dict(kept)
        return self._learner

    def _make_learner(self) -> Learner:
        return Learner(Tuned(self.model.network, self.job), self.config)

    def _signature(self) -> str:
        return f"{self.job.loss.model_dump_json()} {self.config.model_dump_json()}"

    def _numbers(self) -> list[int]:
        """Return the numbers of the examples of the next opt step."""
        in_pass, number = divmod(self.num_done, self.num_in_pass)
        order = random_permutation(fold(torch.tensor([self.key]), in_pass), len(self.job.examples))
        size = self.config.batch_size
        return order[number * size : (number + 1) * size].tolist()

    def state_dict(self) -> dict[str, Any]:
        learner = None if self._learner is None else self._learner.state_dict()
        return {"num_done": self.num_done, "learner": learner, "before": self._before}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.num_done, self._before = state["num_done"], state["before"]
        if state["learner"] is not None:
            self.model.learning.activate()
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


Weights = dict[str, Tensor]


class Learning(Protocol):
    """The weights of a network that one model may change.

    parameters: by name. base_sha256: of what it may not change.
    """

    parameters: dict[str, nn.Parameter]
    base_sha256: str

    def activate(self) -> None:
        """Let the network compute with these weights, and let them alone have gradients."""

    def initial(self) -> Weights:
        """Return the values with which they began, by name."""

    def whole(self) -> Weights:
        """Return the weights of the whole network as it computes now, by their names in a folder of transformers."""


class LocalModel(TextModel):
    """A network, of which some weights are this model's, with an encoder of its prompts."""

    def __init__(self, network: Network, encoder: Encoder, learning: Learning) -> None:
        self.network, self.encoder, self.learning = network.eval(), encoder, learning
        self.reference: Weights | None = None
        self._initial: Weights | None = None
        self._optimizer: dict[str, Any] | None = None
        self._own_memory()

    # ---- answers -----------------------------------------------------------------------------------------

    def sample(self, requests: Sequence[Request], sampling: SamplingConfig) -> list[Answer]:
        if not requests:
            return []
        indices: dict[Prompt, int] = {}  # of the first request of each prompt
        for index, request in enumerate(requests):
            indices.setdefault(request.prompt, index)
        encoded = self.encoder.encode(list(indices))
        read = {prompt: self._next(encoded, index) for prompt, index in indices.items()}
        prompts = [read[request.prompt] for request in requests]
        drawn = self.draw(prompts, [request.key for request in requests], sampling, lambda: True)
        return [self.answer(prompt, each) for prompt, each in zip(prompts, drawn, strict=True)]

    def read(self, prompt: Prompt) -> list[int]:
        """Return the tokens of a prompt. Raises PromptRefused."""
        return self._next(self.encoder.encode([prompt]), 0)

    def draw(
        self, prompts: Sequence[list[int]], keys: Sequence[int], sampling: SamplingConfig, is_wanted: Callable[[], bool]
    ) -> list[Drawn]:
        """Draw an answer to each prompt, which `read` has returned. is_wanted: False ends it, wherever it is."""
        self.learning.activate()
        on_device = torch.tensor(keys, device=self.network.device)
        stops, context = self.encoder.stops, self.network.context
        return draw_answers(self.network, prompts, on_device, sampling, stops, context, is_wanted)

    def answer(self, prompt: Sequence[int], drawn: Drawn) -> Answer:
        """Return what was drawn with its text."""
        ids, log_probs, stop = drawn
        return Answer(self.encoder.decode(ids), tuple(prompt), tuple(ids), tuple(log_probs), stop)

    def written(self, prompt: Prompt, text: str) -> Answer:
        read = self.read(prompt)
        return Answer(text, tuple(read), self.answer_ids(text, len(read)), (), "stop")

    def answer_ids(self, text: str, num_read: int) -> tuple[int, ...]:
        try:
            ids = tuple(self.encoder.encode_answer(text))
        except (UnicodeEncodeError, TokenizerError) as error:
            raise PromptRefused(f"the model cannot write the answer: {error}", 0) from error
        if (context := self.network.context) is not None and num_read + len(ids) > context:
            message = f"expected at most {context:,} tokens of a prompt with its answer, which is all that the model"
            raise PromptRefused(f"{message} reads, got {num_read + len(ids):,}", 0)
        return ids

    def _next(self, encoded: Iterator[list[int]], index: int) -> list[int]:
        """Return the tokens that come next, which are those of the request of that index. Raises PromptRefused."""
        try:
            ids = next(encoded)
        except ChatTemplateError as error:
            raise PromptRefused(f"the chat template of the model refuses the prompt: {error}", index) from error
        except (UnicodeEncodeError, TokenizerError) as error:
            raise PromptRefused(f"the model cannot read the prompt: {error}", index) from error
        context = self.network.context
        if not ids or (context is not None and len(ids) >= context):
            most = "" if context is None else f" and at most {context - 1:,}"
            raise PromptBeyondContext(f"expected a prompt of at least 1{most} tokens, got {len(ids):,}", index)
        return ids

    # ---- learning ----------------------------------------------------------------------------------------

    def note(self) -> str | None:
        if self.encoder.end is not None:
            return None
        token = self.encoder.tokenizer.convert_ids_to_tokens(self.encoder.stops[0])
        return f"its chat template ends no message with a special token, so that answers end with eos_token ({token})"

    def check_tuning(self, config: TuningConfig) -> None:
        if self.encoder.end is None:
            expected = "expected a chat template that puts a special token after an assistant's message"
            got = "with which taught answers end, got one without; such a model can play, but not learn"
            raise ConfigError.at("", f"{expected}, {got}")
        self.learning.activate()
        self.network.keep_in_float32(self.learning.parameters.values())
        with below("groups"):
            groups_of(nn.ModuleDict({"network": self.network}), config.groups)

    def tuning(self, job: Job, config: TuningConfig, key: int) -> LocalTuning:
        return LocalTuning(self, job, config, key)

    def keep_reference(self) -> None:
        self.reference = self.values()

    def as_reference(self, name: str) -> AbstractContextManager[None]:
        """A context in which the network has the weights of the base, or those that `keep_reference` has kept."""
        return self.holding(self.reference if name == "imitated" and self.reference is not None else self._base())

    @contextmanager
    def holding(self, weights: Weights) -> Iterator[None]:
        """A context in which the network has these weights."""
        held = self.values()
        self._fill(weights)
        try:
            yield
        finally:
            self._fill(held)

    def reset(self) -> None:
        """Give the weights the values with which they began, and forget the optimizer."""
        self._fill(self.learning.initial() if self._initial is None else self._initial)
        self._optimizer = None

    def take_optimizer(self, signature: str) -> dict[str, Any] | None:
        """Hand over the state of the optimizer of the job before, if that was of the same kind."""
        kept, self._optimizer = self._optimizer, None
        return kept["state"] if kept is not None and kept["signature"] == signature else None

    def keep_optimizer(self, signature: str, learner: Learner) -> None:
        """Keep the state of a job's optimizer for the job after it. signature: says which jobs are of its kind."""
        self._optimizer = {"signature": signature, "state": learner.state_dict()}
        self._own_memory()

    def _own_memory(self) -> None:
        """Let each weight begin at an address of its own, as in a resumed run, and be no part of a file or a vector.

        Products of matrices differ in their last bits where numbers begin in the middle of a cache line.
        """
        for each in self.learning.parameters.values():
            each.data = each.data.clone()

    def begin_with(self, base: str, weights: Mapping[str, Tensor]) -> None:
        self._initial = dict(weights)
        self._fill(self._initial)

    def _base(self) -> Weights:
        if self._initial is None:
            self._initial = self.learning.initial()
        return self._initial

    def values(self) -> Weights:
        """Return a copy of the weights."""
        return {name: each.detach().clone() for name, each in self.learning.parameters.items()}

    @torch.no_grad()
    def _fill(self, values: Mapping[str, Tensor]) -> None:
        for name, each in self.learning.parameters.items():
            each.copy_(values[name])

    def is_finite(self) -> bool:
        return all(bool(each.isfinite().all()) for each in self.learning.parameters.values())

    # ---- state -------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        return {
            "base": self.learning.base_sha256,
            "weights": {name: each.detach() for name, each in self.learning.parameters.items()},
            "reference": self.reference,
            "optimizer": self._optimizer,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        own = self.learning.base_sha256
        if state["base"] != own:
            expected = f"expected the model with which the run began (SHA-256 {state['base'][:12]}...)"
            raise ConfigError.at("path", f"{expected}, got another one ({own[:12]}...); put that one back")
        self._fill(state["weights"])
        self.reference, self._optimizer = state["reference"], state["optimizer"]

    def export(self, folder: Path) -> None:
        self.learning.activate()
        self.network.causal_lm.save_pretrained(folder, state_dict=self.learning.whole())
        self.encoder.tokenizer.save_pretrained(folder)


class AllWeights:
    """All weights of a network that no other model has. make: makes the network anew, as it began."""

    def __init__(self, network: Network, base_sha256: str, make: Callable[[], Network]) -> None:
        self.network, self.base_sha256, self._make = network, base_sha256, make
        self.parameters: dict[str, nn.Parameter] = dict(network.causal_lm.named_parameters())

    def activate(self) -> None:
        pass

    def initial(self) -> Weights:
        return {name: each.detach() for name, each in self._make().causal_lm.named_parameters()}

    def whole(self) -> Weights:
        return self.network.causal_lm.state_dict()
