"""Constraints between keys of a config: comparisons such as `batch_size <= 4 * num_worlds`, or own functions.

An expression has numbers, texts, true, false, null, dotted keys, + - * / // % **, comparisons, in, and, or, not, lists
and parentheses. It is read with Python's parser, and computed here: nothing else can be called.
"""

import ast
import itertools
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

from palestra.config import IMPORT_PATH, ConfigError, admitted_function
from palestra.config.errors import shown
from palestra.config.files import find_key, full_key, value_at

WORD = re.compile(r"""'[^']*'|"[^"]*"|(?<![\w.])[A-Za-z_]\w*(?:\.\w+)*""")  # a text, or a key
WORDS = {"and", "or", "not", "in", "true", "false", "null"}
CONSTANTS = {"true": True, "false": False, "null": None}
BINARY: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}
UNARY: dict[type[ast.AST], Callable[[Any], Any]] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Not: operator.not_,
}
KNOWN = {
    *(ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.Constant, ast.Name, ast.List, ast.Tuple, ast.Load),
    *(ast.And, ast.Or, *BINARY, *UNARY),
}
LARGEST_POWER = 64  # so that no constraint computes for hours, as powers of powers would
MOST_BITS = 1024  # of a whole number; a float cannot be much larger


class Constraint:
    """A constraint as a sweep's file has it.

    Raises ConfigError, with an empty path, for one that cannot be read.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.keys: dict[str, str] = {}  # by the name that stands for each in the parsed expression
        self.function = self.expression = None
        if IMPORT_PATH.fullmatch(text):
            try:
                self.function = admitted_function(text)
            except ValueError as error:
                raise _error(str(error)) from error
            if self.function is None:
                raise _error(f"{text!r} may not be imported here")
        else:
            self.expression = self._parse()

    def _parse(self) -> ast.expr:
        try:
            expression = ast.parse(WORD.sub(self._name_of, self.text), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last two: of one that is nested deeply
            example = "expected a comparison such as 'batch_size <= 4 * num_worlds', or package.module:function"
            raise _error(f"{example}, got {self.text!r}") from None
        for node in ast.walk(expression):
            if type(node) not in KNOWN:
                what = ast.unparse(node) if isinstance(node, ast.expr) else type(node).__name__.lower()
                raise _error(f"expected keys, numbers, texts, lists and operators alone, got {what!r} in {self.text!r}")
        if not self.keys:
            raise _error(f"expected a comparison between keys, got {self.text!r}, which has none")
        return expression

    def _name_of(self, match: re.Match[str]) -> str:
        word = match[0]
        if word[0] in "'\"":
            return word
        if word in CONSTANTS:
            return repr(CONSTANTS[word])
        if word in WORDS:
            return word
        name = f"key_{len(self.keys)}_"
        self.keys[name] = word
        return name

    def full_keys(self, data: Mapping[str, Any]) -> dict[str, str] | None:
        """Return its keys in full, by their names; None if a config lacks one of them.

        Raises ConfigError for a key that means several.
        """
        found = {name: find_key(data, key) for name, key in self.keys.items()}
        known = {name: key for name, key in found.items() if key is not None}
        return known if len(known) == len(found) else None

    def require_keys(self, configs: Mapping[str, Mapping[str, Any]]) -> None:
        """Raise ConfigError if none of some configs, by name, has all of its keys, or a key means several in one."""
        for name, data in configs.items():
            try:
                self.full_keys(data)
            except ConfigError as error:
                where = f" in {name}" if len(configs) > 1 else ""
                raise _error(f"{'; '.join(map(str, error.errors))}{where}") from error
        if all(self.full_keys(data) is None for data in configs.values()):
            for key in self.keys.values():  # raises for the first one that is missing
                full_key(next(iter(configs.values())), key)

    def holds(self, data: Mapping[str, Any]) -> bool:
        """Return whether a config, as plain data, fulfils the constraint; True if the config lacks one of its keys.

        Raises ConfigError if it cannot be computed there.
        """
        if self.function is not None:
            try:
                return bool(self.function(data))
            except Exception as error:
                raise _error(f"{self.text} raised {type(error).__name__}: {error}") from error
        assert self.expression is not None
        if (keys := self.full_keys(data)) is None:
            return True
        try:
            values = {name: value_at(data, key) for name, key in keys.items()}
            return _truth(_compute(self.expression, values))
        except (TypeError, ArithmeticError, ValueError, RecursionError) as error:
            raise _error(f"{self.text!r} cannot be computed: {error}") from error


def _compute(node: ast.expr, values: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            return values[name]
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_compute(item, values) for item in items]
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not _truth(_compute(operand, values))
        case ast.UnaryOp(op=op, operand=operand):
            return UNARY[type(op)](_compute(operand, values))
        case ast.BoolOp(op=ast.And(), values=terms):
            return all(_truth(_compute(term, values)) for term in terms)
        case ast.BoolOp(values=terms):
            return any(_truth(_compute(term, values)) for term in terms)
        case ast.BinOp(left=left, op=op, right=right):
            one, other = _number(_compute(left, values)), _number(_compute(right, values))
            if isinstance(op, ast.Pow) and abs(other) > LARGEST_POWER:
                raise ValueError(f"expected a power of at most {LARGEST_POWER}, got {other}")
            return BINARY[type(op)](one, other)
        case ast.Compare(left=left, ops=ops, comparators=others):
            terms = [_compute(term, values) for term in (left, *others)]
            return all(_is_so(op, *pair) for op, pair in zip(ops, itertools.pairwise(terms), strict=True))
    raise TypeError(f"expected a comparison, got {ast.unparse(node)}")


def _is_so(op: ast.cmpop, one: Any, other: Any) -> bool:
    if isinstance(op, ast.Lt | ast.LtE | ast.Gt | ast.GtE):
        one, other = _number(one), _number(other)
    return bool(BINARY[type(op)](one, other))


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"expected a comparison, or a key that is true or false, got {shown(value)}")
    return value


def _number(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"expected a number, got {shown(value)}")
    if isinstance(value, int) and value.bit_length() > MOST_BITS:
        raise ValueError(f"expected a number below 2 to the power of {MOST_BITS}, got a larger one")
    return value


def _error(message: str) -> ConfigError:
    return ConfigError.at("", message)
