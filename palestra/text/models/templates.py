"""Chat templates: strangers' programs, in transformers' sandbox, that may not run on and on."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import TemplateError, nodes, pass_context
from jinja2.environment import Template

from palestra.text.models.extra import library
from palestra.text.models.model import ChatTemplateError

MOST_SECONDS = 10.0  # of one prompt; a template takes a thousandth of a second
MOST_CHARACTERS = 10_000_000  # of any text that a template puts together
TOO_LONG = f"it puts together a text of more than {MOST_CHARACTERS:,} characters"
A_DATE = "2024-07-26"  # what templates that ask for today are told, so that the same dialogue always reads the same


class ChatTemplate:
    """A chat template that renders as transformers' `apply_chat_template` does, within limits of time and size.

    It differs in one respect: today is always 26 July 2024. tokens: the texts of special tokens by their names.
    Raises ChatTemplateError for a template that is no program.
    """

    def __init__(self, source: str, tokens: Mapping[str, Any]) -> None:
        self.source, self.tokens = source, dict(tokens)
        self._end = float("inf")

        @pass_context  # else the compiler would call it, once and for all
        def tick(context: Any, value: Any) -> Any:
            if time.monotonic() > self._end:
                raise TemplateError(f"it takes longer than {MOST_SECONDS:.0f} s")
            return value

        templates = library("transformers.utils.chat_template_utils")
        # transformers keeps this environment for templates of the same text; an overlay has filters of its own.
        environment = templates._compile_jinja_template("").environment.overlay()
        environment.filters = {**environment.filters, "tick": tick, "sized": _sized, "times": _times}
        environment.globals = {**environment.globals, "strftime_now": _strftime_a_date}
        try:
            tree = environment.parse(source)
            _limit(tree)
            self._template = Template.from_code(environment, environment.compile(tree), environment.globals)
        except TemplateError as error:
            raise ChatTemplateError(str(error)) from error

    def __call__(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Render messages, with what begins an answer. Raises ChatTemplateError."""
        self._end = time.monotonic() + MOST_SECONDS
        values = {**self.tokens, "tools": None, "documents": None}
        try:
            return self._template.render(messages=[dict(m) for m in messages], add_generation_prompt=True, **values)
        except TemplateError as error:
            raise ChatTemplateError(str(error)) from error
        except Exception as error:  # of a stranger's program, such as a division by zero or too deep a recursion
            raise ChatTemplateError(f"{type(error).__name__}: {error}") from error


def _limit(tree: nodes.Template) -> None:
    """Let a template look at the clock in every turn of a loop and every call of a macro, and bound its texts."""
    for loop in tree.find_all(nodes.For):
        loop.body.insert(0, _tick_statement())
        if loop.test is not None:
            loop.test = nodes.And(_filtered(nodes.Const(True), "tick"), loop.test)
    blocks: list[Any] = [*tree.find_all(nodes.Macro), *tree.find_all(nodes.CallBlock)]
    for macro in blocks:
        macro.body.insert(0, _tick_statement())
    for _ in tree.find_all(nodes.Pow):
        raise TemplateError("it raises numbers to a power")
    _bound(tree)


def _bound(node: nodes.Node) -> None:
    for field, value in node.iter_fields():
        if isinstance(value, list):
            for place, each in enumerate(value):
                if isinstance(each, nodes.Node):
                    _bound(each)
                    value[place] = _bounded(each)
        elif isinstance(value, nodes.Node):
            _bound(value)
            setattr(node, field, _bounded(value))


def _bounded(node: nodes.Node) -> nodes.Node:
    if isinstance(node, nodes.Mul):
        return nodes.Filter(node.left, "times", [node.right], [], None, None, lineno=node.lineno)
    return _filtered(node, "sized") if isinstance(node, nodes.Concat | nodes.Add) else node


def _filtered(node: Any, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _tick_statement() -> nodes.ExprStmt:
    return nodes.ExprStmt(_filtered(nodes.Const(None, lineno=1), "tick"), lineno=1)


def _sized(value: Any) -> Any:
    if isinstance(value, str | list | tuple) and len(value) > MOST_CHARACTERS:
        raise TemplateError(TOO_LONG)
    return value


def _times(left: Any, right: Any) -> Any:
    for one, other in ((left, right), (right, left)):
        if isinstance(one, str | list | tuple) and isinstance(other, int) and len(one) * other > MOST_CHARACTERS:
            raise TemplateError(TOO_LONG)
    return left * right


def _strftime_a_date(form: str) -> str:
    return time.strftime(form, time.strptime(A_DATE, "%Y-%m-%d"))
