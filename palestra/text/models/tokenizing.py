"""Strangers' tokenizers work in a process of their own: in compiled code they may run on and on, or fill the memory."""

import json
import signal
from collections.abc import Sequence
from typing import Any, Literal

from palestra.text.confined import Confined, Limits

LIMITS = Limits(seconds=10, num_bytes=768 << 20, characters=16 << 20)


class TokenizerError(ValueError):
    """A tokenizer has no tokens for a text, or no text for tokens."""


class Isolated:
    """Tokenizers in a process of their own. sources: each as JSON. Several threads may call it."""

    def __init__(self, sources: Sequence[str], limits: Limits = LIMITS) -> None:
        self._definition = json.dumps({"kind": "tokenizers", "sources": sources})
        self.process = Confined(limits)

    def __call__(self, name: Literal["encode", "decode"], place: int, given: str | list[int]) -> Any:
        """Let the tokenizer of that place "encode" a text, or "decode" tokens. Raises TokenizerError."""
        reply = self.process.ask("tokenizers", self._definition, [json.dumps((name, {"place": place, "given": given}))])
        if isinstance(reply, int):
            seconds, num_bytes, _ = self.process.limits
            limit = f"{seconds} s" if reply == -signal.SIGXCPU else f"{num_bytes >> 20} MiB"
            raise TokenizerError(f"the tokenizer needs more than {limit}")
        if reply["fault"] is not None:
            raise TokenizerError(reply["fault"]["told"])
        return reply["done"][0]
