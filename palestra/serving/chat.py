"""Chat completions: what a request asks for, and the answer in OpenAI's shape."""

import secrets
import time
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, NamedTuple

from palestra.randomness import base_key, fold_number
from palestra.serving.errors import ApiError
from palestra.serving.params import Params
from palestra.text.models.encode import Encoder
from palestra.text.models.model import Answer, Prompt, SamplingConfig
from palestra.text.servers.job_files import JobFileError, read_messages

MOST_CHOICES = 128
MOST_TOKENS = 16384  # of an answer
USUAL_TOKENS = 1024  # of an answer whose request says nothing of them
MOST_CHARACTERS = 128  # of a prompt, for each token of the context: no text has so many, and millions take seconds
LEAST_TEMPERATURE = 1e-3  # below, logits divided by it are no numbers of 32 bits
WITHOUT_EFFECT: dict[str, Sequence[Any]] = {
    "stream": (False,),
    "store": (False,),
    "top_logprobs": (0,),
    "frequency_penalty": (0, 0.0),
    "presence_penalty": (0, 0.0),
    "logit_bias": ({},),
    "tools": ([],),
    "response_format": ({"type": "text"},),
}


class Asked(NamedTuple):
    """A request for answers to one prompt.

    seed: of which all answers are drawn. stops: texts at which an answer is cut.
    """

    model: str
    prompt: Prompt
    sampling: SamplingConfig
    num_choices: int
    seed: int
    stops: tuple[str, ...]
    has_log_probs: bool

    def keys(self) -> list[int]:
        """Return of what the answers are drawn: answer i of `fold(key of the seed, i)`."""
        key = base_key(self.seed, "serve")
        return [fold_number(key, number) for number in range(self.num_choices)]


def read_chat(data: dict[str, Any]) -> Asked:
    """Read the body of a request. Raises ApiError, which names the parameter."""
    params = Params(data)
    model, messages = params.text("model"), params.take("messages")
    if messages is None:
        raise params.missing("messages")
    try:
        prompt = read_messages(messages, "messages")
    except JobFileError as error:
        raise ApiError(str(error), "messages", code="invalid_value") from None
    asked = Asked(
        model,
        prompt,
        _sampling(params),
        params.integer("n", 1, MOST_CHOICES, 1),
        params.integer("seed", -(2**63), 2**63 - 1, secrets.randbits(62)),
        _stops(params),
        params.flag("logprobs"),
    )
    params.end(WITHOUT_EFFECT)
    return asked


def require_room(asked: Asked, context: int | None) -> None:
    """Raise ApiError for a prompt that is far too long to be read. context: the most tokens; None: any number."""
    num = sum(len(message.content) + 1 for message in asked.prompt)  # also messages without a text are too many once
    if context is not None and num > MOST_CHARACTERS * context:
        message = f"messages: expected a prompt of at most {context - 1:,} tokens, got one of {num:,} characters"
        raise ApiError(message, "messages", code="context_length_exceeded")


def _sampling(params: Params) -> SamplingConfig:
    temperature = params.number("temperature", 0.0, 2.0, 1.0)
    top_p = params.number("top_p", 1e-6, 1.0, 1.0)
    of_old = params.integer("max_tokens", 1, MOST_TOKENS, None)
    most = params.integer("max_completion_tokens", 1, MOST_TOKENS, None)
    if None not in (of_old, most) and of_old != most:
        raise params.refuse("max_tokens", "the same as max_completion_tokens, or none", of_old)
    if 0 < temperature < LEAST_TEMPERATURE:
        raise params.refuse("temperature", f"0, or a number from {LEAST_TEMPERATURE:g} to 2", temperature)
    return SamplingConfig(
        temperature=temperature or 1.0,
        top_p=None if top_p == 1.0 else top_p,
        top_k=None if temperature else 1,
        max_tokens=most or of_old or USUAL_TOKENS,
    )


def _stops(params: Params) -> tuple[str, ...]:
    stops = params.take("stop")
    listed = [stops] if isinstance(stops, str) else [] if stops is None else stops
    if not isinstance(listed, list) or len(listed) > 4 or not all(isinstance(each, str) and each for each in listed):
        raise params.refuse("stop", "a text, or up to four of them, none empty", stops)
    return tuple(listed)


# ---- the answer --------------------------------------------------------------------------------------


def completion(asked: Asked, answers: Sequence[Answer], encoder: Encoder) -> dict[str, Any]:
    """Return answers in OpenAI's shape. usage counts all tokens that were drawn, also those behind a stop."""
    num_read, num_drawn = len(answers[0].prompt_ids), sum(len(answer.ids) for answer in answers)
    return {
        "id": f"chatcmpl-{secrets.token_hex(12)}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": asked.model,
        "choices": [_choice(number, asked, answer, encoder) for number, answer in enumerate(answers)],
        "usage": {
            "prompt_tokens": num_read,
            "completion_tokens": num_drawn,
            "total_tokens": num_read + num_drawn,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }


def _choice(number: int, asked: Asked, answer: Answer, encoder: Encoder) -> dict[str, Any]:
    ends = [at for stop in asked.stops if (at := answer.text.find(stop)) >= 0]
    text = answer.text[: min(ends)] if ends else answer.text
    return {
        "index": number,
        "message": {"role": "assistant", "content": text, "refusal": None},
        "finish_reason": "stop" if ends else answer.stop,
        "logprobs": {"content": _log_probs(answer, text, encoder), "refusal": None} if asked.has_log_probs else None,
    }


def _log_probs(answer: Answer, text: str, encoder: Encoder) -> list[dict[str, Any]]:
    """Return the tokens of a text, each with its log-probability; the one that ends the answer is no text."""
    found: list[dict[str, Any]] = []
    num_own = len(answer.ids) - (answer.stop == "stop")
    if text != answer.text:  # the rest was cut off
        num_own = bisect_left(range(num_own), len(text), key=lambda num: len(encoder.decode(answer.ids[:num])))
    for place in range(num_own):
        token = encoder.decode([answer.ids[place]])
        as_bytes = None if "\ufffd" in token else list(token.encode())  # of a part of a letter nothing is known
        found.append({"token": token, "bytes": as_bytes, "logprob": answer.log_probs[place], "top_logprobs": []})
    return found
