"""Chat completions: what a request asks for, and the answer in OpenAI's shape."""

import secrets
import time
from bisect import bisect_left
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, NamedTuple

from pydantic import BeforeValidator, Field

from palestra.randomness import base_key, fold_number
from palestra.serving.errors import ApiError
from palestra.serving.params import Params, Text, expected, within
from palestra.text.models.encode import Encoder
from palestra.text.models.model import Answer, Prompt, SamplingConfig
from palestra.text.servers.job_files import JobFileError, read_messages

MOST_TOKENS = 16384  # of an answer
USUAL_TOKENS = 1024  # of an answer whose request says nothing of them
MOST_CHARACTERS = 128  # of a prompt, for each token of the context: no text has so many, and millions take seconds
LEAST_TEMPERATURE = 1e-3  # below, logits divided by it are no numbers of 32 bits
TEMPERATURE = f"0, or a number from {LEAST_TEMPERATURE:g} to 2"
STOPS = "a text, or up to four of them, none empty"


class ChatParams(Params):
    """The parameters of a request for answers. seed: of which all are drawn. stop: texts at which an answer is cut."""

    without_effect: ClassVar = {
        "stream": (False,),
        "store": (False,),
        "top_logprobs": (0,),
        "frequency_penalty": (0, 0.0),
        "presence_penalty": (0, 0.0),
        "logit_bias": ({},),
        "tools": ([],),
        "response_format": ({"type": "text"},),
    }

    model: Text
    messages: Any
    temperature: Annotated[float, expected(TEMPERATURE, lambda t: t == 0 or LEAST_TEMPERATURE <= t <= 2)] = 1.0
    top_p: Annotated[float, within(1e-6, 1.0)] = 1.0
    max_tokens: Annotated[int, within(1, MOST_TOKENS)] | None = None
    max_completion_tokens: Annotated[int, within(1, MOST_TOKENS)] | None = None
    n: Annotated[int, within(1, 128)] = 1
    seed: Annotated[int, within(-(2**63), 2**63 - 1)] = Field(default_factory=lambda: secrets.randbits(62))
    stop: Annotated[
        list[str], BeforeValidator(lambda stop: [stop] if isinstance(stop, str) else stop), expected(STOPS, all, most=4)
    ] = Field(default_factory=list)
    logprobs: Annotated[bool, expected("true or false")] = False


class Asked(NamedTuple):
    """A request for answers to one prompt."""

    params: ChatParams
    prompt: Prompt
    sampling: SamplingConfig

    def keys(self) -> list[int]:
        """Return of what the answers are drawn: answer i of `fold(key of the seed, i)`."""
        key = base_key(self.params.seed, "serve")
        return [fold_number(key, number) for number in range(self.params.n)]


def read_chat(data: dict[str, Any]) -> Asked:
    """Read the body of a request. Raises ApiError, which names the parameter."""
    params = ChatParams.read(data)
    try:
        prompt = read_messages(params.messages, "messages")
    except JobFileError as error:
        raise ApiError(str(error), "messages", code="invalid_value") from None
    of_old, most = params.max_tokens, params.max_completion_tokens
    if None not in (of_old, most) and of_old != most:
        message = f"max_tokens: expected the same as max_completion_tokens, or none, got {of_old}"
        raise ApiError(message, "max_tokens", code="invalid_value")
    sampling = SamplingConfig(
        temperature=params.temperature or 1.0,
        top_p=None if params.top_p == 1.0 else params.top_p,
        top_k=None if params.temperature else 1,
        max_tokens=most or of_old or USUAL_TOKENS,
    )
    return Asked(params, prompt, sampling)


def require_room(asked: Asked, context: int | None) -> None:
    """Raise ApiError for a prompt that is far too long to be read. context: the most tokens; None: any number."""
    num = sum(len(message.content) + 1 for message in asked.prompt)  # also messages without a text are too many once
    if context is not None and num > MOST_CHARACTERS * context:
        message = f"messages: expected a prompt of at most {context - 1:,} tokens, got one of {num:,} characters"
        raise ApiError(message, "messages", code="context_length_exceeded")


# ---- the answer --------------------------------------------------------------------------------------


def completion(asked: Asked, answers: Sequence[Answer], encoder: Encoder) -> dict[str, Any]:
    """Return answers in OpenAI's shape. usage counts all tokens that were drawn, also those behind a stop."""
    num_read, num_drawn = len(answers[0].prompt_ids), sum(len(answer.ids) for answer in answers)
    return {
        "id": f"chatcmpl-{secrets.token_hex(12)}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": asked.params.model,
        "choices": [_choice(number, asked.params, answer, encoder) for number, answer in enumerate(answers)],
        "usage": {
            "prompt_tokens": num_read,
            "completion_tokens": num_drawn,
            "total_tokens": num_read + num_drawn,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }


def _choice(number: int, params: ChatParams, answer: Answer, encoder: Encoder) -> dict[str, Any]:
    ends = [at for stop in params.stop if (at := answer.text.find(stop)) >= 0]
    text = answer.text[: min(ends)] if ends else answer.text
    return {
        "index": number,
        "message": {"role": "assistant", "content": text, "refusal": None},
        "finish_reason": "stop" if ends else answer.stop,
        "logprobs": {"content": _log_probs(answer, text, encoder), "refusal": None} if params.logprobs else None,
    }


def _log_probs(answer: Answer, text: str, encoder: Encoder) -> list[dict[str, Any]]:
    """Return the tokens of a text, each with its log-probability; the one that ends the answer is no text."""
    num_own = len(answer.ids) - (answer.stop == "stop")
    if text != answer.text:  # the rest was cut off
        num_own = bisect_left(range(num_own), len(text), key=lambda num: len(encoder.decode(answer.ids[:num])))
    tokens = [encoder.decode([token]) for token in answer.ids[:num_own]]
    return [
        {
            "token": token,
            "bytes": None if "\ufffd" in token else list(token.encode()),  # of a part of a letter nothing is known
            "logprob": log_prob,
            "top_logprobs": [],
        }
        for token, log_prob in zip(tokens, answer.log_probs, strict=False)
    ]
