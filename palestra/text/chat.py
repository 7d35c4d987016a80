"""Prompts: the messages that a model reads before it answers."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Message:
    """One message of a chat; its content is text, whatever it looks like."""

    role: Literal["system", "user", "assistant"]
    content: str


Prompt = tuple[Message, ...]
