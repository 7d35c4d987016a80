"""What a text model does: it answers prompts, and learns from answers. A server may stand behind it as well."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from palestra.config import Config, PositiveFloat, PositiveInt, check
from palestra.models.model import Terms
from palestra.text.models.losses import AnyTextLoss, PolicyGradientConfig, PreferenceConfig, SupervisedConfig


@dataclass(frozen=True)
class Message:
    """One message of a chat; its content is text, whatever it looks like."""

    role: Literal["system", "user", "assistant"]
    content: str


Prompt = tuple[Message, ...]


# ---- answers -----------------------------------------------------------------------------------------


BYTES_PER_TOKEN = 16  # ordinary texts have 2 to 6 in each token, but a token may stand for a hundred blanks


class SamplingConfig(Config):
    """How the tokens of an answer are drawn."""

    usual: ClassVar[Any] = {"temperature": 1.0, "top_p": None, "top_k": None, "max_tokens": 64}

    temperature: PositiveFloat
    """by which the logits are divided; below 1 likely tokens become likelier; top_k 1 draws the likeliest"""
    top_p: Annotated[float, Field(gt=0, lt=1)] | None
    """draw from the fewest likeliest tokens that together have at least this probability; null: from all"""
    top_k: PositiveInt | None
    """draw from this many likeliest tokens, before top_p; null: from all"""
    max_tokens: PositiveInt
    """the most tokens of an answer, with the one that ends it; what is longer than 16 bytes for each is cut off"""

    def most_bytes(self) -> int:
        """Return the most bytes of the text of an answer, which bounds what others who read it cost."""
        return BYTES_PER_TOKEN * self.max_tokens

    def cut(self, text: str) -> str:
        """Return a text without what is longer than an answer may be; models write such texts of blanks alone."""
        if len(text) * 4 <= self.most_bytes():  # a character has at most 4 bytes
            return text
        return text.encode(errors="surrogatepass")[: self.most_bytes()].decode(errors="ignore")


@dataclass(frozen=True)
class Request:
    """A prompt that is to be answered. key: an int64 of which token t of the answer is drawn, by `fold(key, t)`."""

    prompt: Prompt
    key: int


@dataclass(frozen=True)
class Answer:
    """What a model has written.

    text: without the token that ends it. prompt_ids: the tokens that the model has read. ids: those that it has drawn,
    the one that ends the answer included. log_probs: the logarithm of each drawn token's probability in the softmax of
    the logits divided by the temperature, before top_k and top_p leave tokens out. stop: whether the model has ended
    the answer, or the limit of tokens has.
    """

    text: str
    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]
    log_probs: tuple[float, ...]
    stop: Literal["stop", "length"]


class ChatTemplateError(ValueError):
    """A chat template is no program, or fails on a prompt."""


class PromptRefused(ValueError):
    """A prompt that the model cannot read: it is too long, or the chat template refuses it.

    index: of its request.
    """

    def __init__(self, message: str, index: int) -> None:
        super().__init__(message)
        self.index = index


class PromptBeyondContext(PromptRefused):
    """A prompt that has more tokens than the model reads, or none."""


# ---- learning ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Example:
    """An answer to learn from: tokens as they were read and drawn.

    weight: how much the answer counts, for a supervised loss; its advantage, for a policy gradient; how much the pair
    counts, for a preference. log_probs: those of the answer; () for a loss that does not ask. worse: the tokens of an
    answer to the same prompt that is less good, for a preference; () for another loss.
    """

    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]
    weight: float
    log_probs: tuple[float, ...] = ()
    worse: tuple[int, ...] = ()

    @classmethod
    def of(cls, answer: Answer, weight: float) -> "Example":
        """Make the example of a sampled answer."""
        return cls(answer.prompt_ids, answer.ids, weight, answer.log_probs)


# of the numbers of an example, in a file
DTYPES = {"prompt_ids": torch.int32, "ids": torch.int32, "log_probs": torch.float64, "worse": torch.int32}


@dataclass(frozen=True)
class Job:
    """One tuning of one model.

    loss: the config of a loss. begin_from: the weights that the first opt step changes: those of the model before, or
    those of the base, with a new optimizer. temperature: by which logits are divided in the loss, that of the sampling;
    1 for answers that others have written.
    """

    examples: Sequence[Example]
    loss: SupervisedConfig | PolicyGradientConfig | PreferenceConfig
    begin_from: Literal["base", "before"]
    temperature: float

    def state_dict(self) -> dict[str, Any]:
        """Return the job as plain data and tensors, in which the tokens of all examples lie one after the other."""
        rows = [[getattr(each, name) for name in DTYPES] for each in self.examples]
        return {
            "loss": self.loss.model_dump(),
            "begin_from": self.begin_from,
            "temperature": self.temperature,
            "lengths": torch.tensor([[len(part) for part in row] for row in rows]),
            **{
                name: torch.tensor([number for row in rows for number in row[place]], dtype=dtype)
                for place, (name, dtype) in enumerate(DTYPES.items())
            },
            "weights": torch.tensor([each.weight for each in self.examples], dtype=torch.float64),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "Job":
        """Make again what `state_dict` gave."""
        parts = {name: iter(state[name].tolist()) for name in DTYPES}
        examples = []
        for lengths, weight in zip(state["lengths"].tolist(), state["weights"].tolist(), strict=True):
            pairs = zip(parts.items(), lengths, strict=True)
            examples.append(Example(weight=weight, **{name: tuple(islice(part, n)) for (name, part), n in pairs}))
        loss = check({"loss": state["loss"]}, OneTextLoss).loss
        return cls(examples, loss, state["begin_from"], state["temperature"])


class OneTextLoss(Config):
    loss: AnyTextLoss
    """what is made small"""


class Tuning(ABC):
    """A job that is under way: one opt step after the other, between which it may be saved.

    num_steps: opt steps in all. num_done: those that are done.
    """

    num_steps: int
    num_done: int

    @property
    def is_done(self) -> bool:
        return self.num_done == self.num_steps

    @abstractmethod
    def step(self) -> Terms:
        """Make one opt step; return the means of the loss's terms, with `loss` and `grad_norm`."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]: ...

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from where `state_dict` was made; the model's own state is loaded before."""


class TextModel(ABC):
    """A model that answers prompts."""

    @abstractmethod
    def sample(self, requests: Sequence[Request], sampling: SamplingConfig) -> list[Answer]:
        """Answer all requests, computed together. The answers follow from the list alone. Raises PromptRefused."""

    @abstractmethod
    def written(self, prompt: Prompt, text: str) -> Answer:
        """Return an answer that somebody else has written, as if the model had, without log-probabilities.

        Raises PromptRefused.
        """

    @abstractmethod
    def answer_ids(self, text: str, num_read: int) -> tuple[int, ...]:
        """Return the tokens of an answer that somebody else has written, with the one that ends it.

        For an example whose prompt has been read before, and has `num_read` tokens. Raises PromptRefused, with the
        index 0.
        """

    def note(self) -> str | None:
        """Return what people should know of its answers before it plays; None: nothing."""
        return None

    @abstractmethod
    def check_tuning(self, config: Any) -> None:
        """Raise ConfigError, with paths relative to a TuningConfig, if it does not fit the model."""

    @abstractmethod
    def tuning(self, job: Job, config: Any, key: int) -> Tuning:
        """Prepare a tuning, of which the first step is still to be made.

        config: a TuningConfig. key: an int64 of which the order of the examples is drawn.
        """

    @abstractmethod
    def keep_reference(self) -> None:
        """Keep the present weights as those to which a loss may be told to stay near (`imitated`), if it has any."""

    def is_finite(self) -> bool:
        """Tell whether all weights that tuning changes are finite numbers; a model without such weights is."""
        return True

    @abstractmethod
    def begin_with(self, base: str, weights: Mapping[str, Tensor]) -> None:
        """Take over what a model of the same kind has learned elsewhere, as that with which the run begins.

        base, weights: those of its `state_dict`.
        """

    @abstractmethod
    def export(self, folder: Path) -> None:
        """Write a folder that transformers loads."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return what tuning changes, and the SHA-256 of what it does not.

        weights: tensors by name. base: the SHA-256. reference: weights that were kept, or None. optimizer: its state,
        or None.
        """

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave. Raises ConfigError for the state of a model with another base."""
