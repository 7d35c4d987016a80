"""Chat templates: strangers' programs, which see what transformers would show them, in palestra's sandbox."""

from collections.abc import Mapping, Sequence
from typing import Any

from palestra.text.models.model import ChatTemplateError
from palestra.text.sandbox import Sandbox, SandboxError

NAME = "chat_template"


class ChatTemplate:
    """A chat template that renders as transformers' `apply_chat_template` does, within limits of time and size.

    It differs in one respect: today is always 26 July 2024. tokens: the texts of special tokens by their names.
    Raises ChatTemplateError for a template that is no program.
    """

    def __init__(self, source: str, tokens: Mapping[str, Any]) -> None:
        shared = {**tokens, "tools": None, "documents": None}
        self._sandbox = Sandbox("chat", {NAME: source}, shared)
        self._render([None])

    def __call__(self, chats: Sequence[Sequence[Mapping[str, str]]], add_generation_prompt: bool = True) -> list[str]:
        """Render the messages of each chat. Raises ChatTemplateError.

        add_generation_prompt: with what begins an answer.
        """
        adds = {"add_generation_prompt": add_generation_prompt}
        return self._render([{"messages": messages, **adds} for messages in chats])

    def _render(self, values: Sequence[Mapping[str, Any] | None]) -> list[str]:
        try:
            return self._sandbox.render([(NAME, each) for each in values])
        except SandboxError as error:
            raise ChatTemplateError(str(error)) from error
