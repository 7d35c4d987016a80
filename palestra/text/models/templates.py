"""Chat templates: strangers' programs, which see what transformers would show them, in palestra's sandbox."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import TemplateError

from palestra.text.models.extra import library
from palestra.text.models.model import ChatTemplateError
from palestra.text.sandbox import Sandbox

A_DATE = "2024-07-26"  # what templates that ask for today are told, so that the same dialogue always reads the same


class ChatTemplate:
    """A chat template that renders as transformers' `apply_chat_template` does, within limits of time and size.

    It differs in one respect: today is always 26 July 2024. tokens: the texts of special tokens by their names.
    Raises ChatTemplateError for a template that is no program.
    """

    def __init__(self, source: str, tokens: Mapping[str, Any]) -> None:
        self.source, self.tokens = source, dict(tokens)
        theirs = library("transformers.utils.chat_template_utils")._compile_jinja_template("").environment
        self.sandbox = Sandbox(
            trim_blocks=theirs.trim_blocks,
            lstrip_blocks=theirs.lstrip_blocks,
            extensions=[type(each) for each in theirs.extensions.values()],
        )
        self.sandbox.filters = dict(theirs.filters)
        self.sandbox.globals = {**theirs.globals, "strftime_now": _strftime_a_date}
        self.sandbox.count_filters()
        try:
            self._template = self.sandbox.from_string(source)
        except TemplateError as error:
            raise ChatTemplateError(str(error)) from error

    def __call__(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Render messages, with what begins an answer. Raises ChatTemplateError."""
        self.sandbox.begin()
        values = {**self.tokens, "tools": None, "documents": None}
        try:
            return self._template.render(messages=[dict(m) for m in messages], add_generation_prompt=True, **values)
        except TemplateError as error:
            raise ChatTemplateError(str(error)) from error
        except Exception as error:  # of a stranger's program, such as a division by zero or too deep a recursion
            raise ChatTemplateError(f"{type(error).__name__}: {error}") from error


def _strftime_a_date(form: str) -> str:
    return time.strftime(form, time.strptime(A_DATE, "%Y-%m-%d"))
