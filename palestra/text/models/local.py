"""A model in this process: its weights or an adapter's learn, and its answers are sampled here."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from palestra.config import ConfigError
from palestra.models.learning import Learner
from palestra.text.chat import Prompt
from palestra.text.models.encode import Encoder
from palestra.text.models.model import (
    Answer,
    ChatTemplateError,
    Job,
    PromptBeyondContext,
    PromptRefused,
    Request,
    SamplingConfig,
    TextModel,
)
from palestra.text.models.network import Network
from palestra.text.models.sampling import Drawn, draw_answers
from palestra.text.models.tokenizing import TokenizerError
from palestra.text.models.tuning import LocalTuning, TuningConfig

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
        self.activate()
        on_device = torch.tensor(keys, device=self.network.device)
        stops, context = self.encoder.stops, self.network.context
        return draw_answers(self.network, prompts, on_device, sampling, stops, context, is_wanted)

    def answer(self, prompt: Sequence[int], drawn: Drawn) -> Answer:
        """Return what was drawn with its text."""
        ids, log_probs, stop = drawn
        return Answer(self.encoder.decode(ids), tuple(prompt), tuple(ids), tuple(log_probs), stop)

    def written(self, prompt: Prompt, text: str) -> Answer:
        read = self._next(self.encoder.encode([prompt]), 0)
        return Answer(text, tuple(read), self.answer_ids(text, len(read)), (), "stop")

    def answer_ids(self, text: str, num_read: int) -> tuple[int, ...]:
        try:
            ids = tuple(self.encoder.encode_answer(text))
        except (UnicodeEncodeError, TokenizerError) as error:
            raise PromptRefused(f"the model cannot write the answer: {error}", 0) from error
        context = self.network.context
        if context is not None and num_read + len(ids) > context:
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
            expected = (
                "expected a chat template that puts a special token after an assistant's message, with which taught"
            )
            raise ConfigError.at("", f"{expected} answers end, got one without; such a model can play, but not learn")
        self.activate()
        self.network.keep_in_float32(self.learning.parameters.values())
        config.check_groups(self.network)

    def tuning(self, job: Job, config: TuningConfig, key: int) -> LocalTuning:
        return LocalTuning(self, job, config, key)

    def activate(self) -> None:
        """Let the network, which several models may share, compute with the weights of this one."""
        self.learning.activate()

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
        self.activate()
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
        state: Weights = self.network.causal_lm.state_dict()
        return state
