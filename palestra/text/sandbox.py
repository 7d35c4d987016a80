"""The sandbox of templates that others have written: none runs on and on, or puts together a huge text.

Jinja's sandbox keeps a template from palestra's objects. This one also counts what a template makes: the characters of
its outputs and of what its operators, filters and calls return, and TURN for each turn of a loop, each call of a macro
and each file that is included. Where a text could become huge in one step, its length is estimated first.
"""

import re
import time
from collections.abc import Callable, Mapping
from functools import partial, wraps
from math import prod
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

MOST_CHARACTERS = 100_000_000
MOST_SECONDS = 10.0  # of one text; a template takes a thousandth of a second
MOST_BITS = 10_000  # of an integer
TURN = 1000  # characters for which a turn of a loop counts
RANDOM = ("random", "lipsum")  # equal prompts must be equal
# Filters and methods whose result may be as long as the product of their arguments.
GROWING = {"batch", "center", "expandtabs", "indent", "ljust", "rjust", "round", "slice", "to_bytes", "tojson"}
GROWING |= {"translate", "urlize", "wordwrap", "zfill"}


class Sandbox(ImmutableSandboxedEnvironment):
    """An environment whose templates raise TemplateError where they would make more than MOST_CHARACTERS.

    `begin` must be called before a template is rendered, and `count_filters` once the filters are complete.
    """

    intercepted_binops = frozenset(("*", "**", "%", "+"))

    def __init__(self, **options: Any) -> None:
        super().__init__(finalize=self.sized, optimized=False, **options)
        self._num_made, self._end_s = 0, float("inf")

    def count_filters(self) -> None:
        """Let the filters be counted, and leave out what is random."""
        filters = {name: self._counted(name, each) for name, each in self.filters.items() if name not in RANDOM}
        self.filters = {**filters, "turn": self._turn, "sized": self.sized}
        self.globals = {name: each for name, each in self.globals.items() if name not in RANDOM}

    def begin(self) -> None:
        """Begin to count anew, for a text that is rendered next."""
        self._num_made, self._end_s = 0, time.monotonic() + MOST_SECONDS

    def spend(self, num: int) -> None:
        """Count some characters. Raises TemplateError if they are too many."""
        self._num_made += num
        if self._num_made > MOST_CHARACTERS:
            raise TemplateError(f"it makes more than {MOST_CHARACTERS:,} characters, or loops too long")

    def sized(self, value: Any) -> Any:
        """Count the characters of a value, and return it."""
        self.spend(len(value) if type(value) is str else size(value))  # most are
        return value

    def _turn(self, value: Any, num: int) -> Any:
        self.spend(TURN + num)
        if time.monotonic() > self._end_s:
            raise TemplateError(f"it takes longer than {MOST_SECONDS:.0f} s")
        return value

    def _counted(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def counted(*args: Any, **named: Any) -> Any:
            self.spend(expected_size(name, args, named))
            return self.sized(function(*args, **named))

        return counted

    # ---- what jinja asks -------------------------------------------------------------------------------------

    def call(self, context: Any, function: Any, /, *args: Any, **named: Any) -> Any:
        """Call an object, which may be a method of a text."""
        method = getattr(function, "__wrapped__", function)
        owner = getattr(method, "__self__", None)
        if isinstance(owner, str | bytes | int | float):
            self.spend(expected_size(method.__name__, (owner, *args), named))
        return self.sized(super().call(context, function, *args, **named))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Compute an operator."""
        if isinstance(left, int) and isinstance(right, int):
            bits = {"*": left.bit_length() + right.bit_length(), "**": left.bit_length() * abs(right)}
            if bits.get(operator, 0) > MOST_BITS:
                raise TemplateError(f"it makes a number of more than {MOST_BITS:,} bits")
        elif operator == "*":
            one, other = (left, right) if isinstance(right, int) else (right, left)
            self.spend(size(one) * abs(other) if isinstance(other, int) else 0)
        elif operator == "%" and isinstance(left, str):
            self.spend(expected_size("format", (left, right), {}))
        return self.sized(super().call_binop(context, operator, left, right))

    def _generate(self, source: nodes.Template, *args: Any, **named: Any) -> str:
        _count_turns(source)
        _count_values(source)
        return super()._generate(source, *args, **named)


# ---- sizes -----------------------------------------------------------------------------------------------


def size(value: Any) -> int:
    """Return the number of characters of a text, and of all in a collection, or some number above MOST_CHARACTERS."""
    total, waiting = 0, [value]
    while waiting and total <= MOST_CHARACTERS:
        each = waiting.pop()
        if isinstance(each, str | bytes):
            total += len(each)
        elif isinstance(each, Mapping):
            total += TURN
            waiting += [*each.keys(), *each.values()]
        elif isinstance(each, range):
            total += len(each)
        elif isinstance(each, list | tuple | set | frozenset):
            total += TURN + len(each)
            waiting += each
        else:
            total += 1
    return total


def expected_size(name: str, args: tuple[Any, ...], named: Mapping[str, Any]) -> int:
    """Return how long the result of a filter or method may be, where its arguments alone do not bound it; else 0."""
    values = [*args, *named.values()]
    texts = [each for each in values if isinstance(each, str)]
    match name:
        case "replace" if len(texts) == 3:
            text, old, new = texts
            return text.count(old) * len(new)
        case "join":
            return sum(map(len, texts)) * sum(len(each) for each in values if isinstance(each, list | tuple))
        case "format" | "format_map" if texts:
            return _formatted_size(texts[0], values)
        case _ if name in GROWING:
            numbers = [abs(each) for each in values if isinstance(each, int)]
            return prod(max(1, size(each)) for each in values if not isinstance(each, int)) * max([1, *numbers])
    return 0


def _formatted_size(text: str, values: list[Any]) -> int:
    """Return how long a text with fields may become. Widths that stand elsewhere are refused."""
    if re.search(r"%[^%a-zA-Z]*\*|\{[^{}]*\{[^{]", text):
        raise TemplateError("it formats a text by a width that is computed")
    widths = sum(min(int(digits[:10]), 10**10) for digits in re.findall(r"\d+", text))
    return widths + (text.count("%") + text.count("{")) * size(values)


# ---- what is added to a template -------------------------------------------------------------------------


def _count_turns(tree: nodes.Template) -> None:
    """Let each turn of a loop, call of a macro, block and file be counted, with the text that stands there."""
    bodies: list[Any] = [tree]
    bodies += tree.find_all((nodes.For, nodes.Macro, nodes.CallBlock, nodes.Block))
    for node in bodies:
        written = sum(len(each.data) for each in node.find_all(nodes.TemplateData))
        turn = partial(_filtered, name="turn", args=[nodes.Const(written)], lineno=node.lineno)
        if isinstance(node, nodes.For) and node.test is not None:
            node.test = nodes.And(turn(nodes.Const(True)), node.test, lineno=node.lineno)
        node.body.insert(0, nodes.ExprStmt(turn(nodes.Const(None)), lineno=node.lineno))


def _count_values(node: nodes.Node) -> None:
    """Let each text and collection that the template puts together be counted."""
    for field, value in node.iter_fields():
        if isinstance(value, list):
            for place, each in enumerate(value):
                if isinstance(each, nodes.Node):
                    _count_values(each)
                    value[place] = _counted_value(each)
        elif isinstance(value, nodes.Node):
            _count_values(value)
            setattr(node, field, _counted_value(value))


def _counted_value(node: nodes.Node) -> nodes.Node:
    is_made = isinstance(node, nodes.Concat | nodes.List | nodes.Dict)
    is_made = is_made or (isinstance(node, nodes.Tuple) and node.ctx == "load")
    return _filtered(node, "sized", [], node.lineno) if is_made else node


def _filtered(node: nodes.Node, name: str, args: list[nodes.Expr], lineno: int) -> nodes.Filter:
    return nodes.Filter(node, name, args, [], None, None, lineno=lineno)
