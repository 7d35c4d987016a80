"""Finds edits of the functions that a hand-written kernel mirrors.

A kernel computes what some methods of an object say, much faster. If somebody has edited one of these methods or a
function that they call, overridden it in a subclass, or assigned another one, the kernel would be wrong, and must step
aside. So a file beside the kernels, mirrors.json, holds a SHA-256 of all these functions, by kernel. `make kernels`
writes it, after the tests have shown that kernels and methods give the same numbers.

The SHA-256 covers what a function means: its syntax tree, without comments, docstrings, annotations and the names of
its variables; its defaults; the meaning of the global names in it; and the constants that it reads from its class.
"""

import ast
import hashlib
import inspect
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import _lru_cache_wrapper, cache, cached_property, reduce
from importlib import import_module
from pathlib import Path
from tokenize import TokenError
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, TypeVar

import numpy as np
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

PACKAGE = __name__.partition(".")[0]
COLLECTION, ARRAY = (list, tuple, set, frozenset, dict), (Tensor, np.ndarray, np.generic)
CONSTANT = (bool, int, float, complex, str, bytes, type(None), type(...), *COLLECTION, *ARRAY)
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
MEANS_NOTHING = ("annotation", "returns", "type_comment", "type_params", "kind", "ctx", "simple")
CALL = nn.Module.__call__
NO_PARTS = (str, int, float, type(None), Tensor, np.ndarray, type, FunctionType)  # in which nothing is followed
T = TypeVar("T")


@dataclass(frozen=True)
class Kernel:
    """A kernel, and the methods that it stands in for.

    module: the module that defines it. mirrors: methods of its owner, or of an attribute ("config.exploration.choose").
    cost: the cost of doing without it, a clause such as "updates take about 3 times as long".
    """

    module: str
    name: str
    mirrors: tuple[str, ...]
    cost: str

    @property
    def file(self) -> Path:
        return Path(inspect.getfile(import_module(self.module))).with_name("mirrors.json")

    @property
    def hashes(self) -> Mapping[str, str]:
        """The SHA-256 of every function, by its name; {} if the file is missing or broken."""
        try:
            return dict(_read(self.file.read_text(encoding="utf-8"))[self.name])
        except (OSError, ValueError, TypeError, KeyError):
            return {}


_read = cache(json.loads)


class kernel_property(cached_property[T]):  # noqa: N801 (it is used as `property` is)
    """An attribute that is computed when it is first asked for, and again when a run begins."""


@cache
def kernel_properties(cls: Any) -> list[str]:
    """Return the names of a class's kernel properties, its own last."""
    named = [each for base in reversed(cls.__mro__) for each in vars(base).items()]
    return list(dict.fromkeys(name for name, value in named if isinstance(value, kernel_property)))


# ---- is something edited? ----------------------------------------------------------------------------


def find_edit(kernel: Kernel, owner: object) -> str | None:
    """Return a sentence on the first function that differs from what the kernel was written for; None if none does."""
    if not (hashes := kernel.hashes):
        return f"{kernel.file.name} has no hashes for {kernel.name}; `make kernels` writes them"
    for holder, method in _calls(kernel.mirrors, hashes, owner):
        function, cls = called(holder, method), holder if isinstance(holder, type) else type(holder)
        name = method if cls is ModuleType else f"{cls.__name__}.{method}"
        if function is None:
            return f"{name} is no function with a source"
        if name_of(function) not in hashes or function.__code__.co_name != method:
            return f"{name} differs from palestra's {_where(function)}"
        if hashes[name_of(function)] != fingerprint(function, holder):
            return f"{name}, or a constant that it reads, was edited {_where(function)}"
        if isinstance(holder, nn.Module) and (edit := find_other_call(holder)) is not None:
            return edit
    return None


def _where(function: FunctionType) -> str:
    return f"({Path(function.__code__.co_filename).name}, line {function.__code__.co_firstlineno})"


def _calls(mirrors: Collection[str], names: Collection[str], owner: object) -> Iterator[tuple[Any, str]]:
    """Yield all functions that must be unedited, each as a holder and a name in it.

    They are methods of the owner, functions where they are defined, and methods of all objects that can be reached.
    """
    yield from (_at(owner, path) for path in mirrors)
    functions = [defined(name) for name in names]
    yield from functions
    for part in reachable(owner):
        yield from ((part, method) for cls, method in functions if cls in type(part).__mro__)


def find_other_call(module: nn.Module) -> str | None:
    """Say why a call of a module does not just run its class's `forward`; None if it does."""
    forward, parameters = called(module, "forward"), module.parameters(recurse=False)
    is_stock = forward is not None and _library(name_of(forward)) in ("torch", PACKAGE)
    others = {
        "has hooks": nn.modules.module._has_any_global_hook() or any(getattr(module, hooks) for hooks in HOOKS),
        "has hooks on its weights": any(parameter._backward_hooks for parameter in parameters),
        "is parametrized": is_parametrized(module),
        "is called otherwise": type(module).__call__ is not CALL or not is_stock,
    }
    return next((f"{type(module).__name__} {what}" for what, is_so in others.items() if is_so), None)


def reachable(owner: object) -> Iterator[Any]:
    """Yield an object, those among its attributes, theirs, and so on.

    Only palestra's own objects and networks are followed, and those of classes that derive from them.
    """
    found, waiting = set(), [owner]
    while waiting:
        value: Any = waiting.pop()
        if (kind := _kind(value.__class__)) is None or id(value) in found:
            continue
        found.add(id(value))
        if kind is dict:
            waiting += value.values()
        elif kind is list:
            waiting += value
        elif hasattr(value, "__dict__"):
            yield value
            waiting += vars(value).values()


@cache
def _kind(cls: Any) -> type | None:
    """Say how to find what objects of a class hold: as in a dict, a list, or an object of ours; None for others."""
    if issubclass(cls, NO_PARTS):
        return None
    if issubclass(cls, dict | list | tuple | set):
        return dict if issubclass(cls, dict) else list
    return object if any(base is nn.Module or _library(base.__module__) == PACKAGE for base in cls.__mro__) else None


# ---- what a function is ------------------------------------------------------------------------------


def name_of(function: FunctionType) -> str:
    """Return the name of a function by its code, because another name may stand for it: package.module:Class.method."""
    return f"{function.__globals__.get('__name__')}:{function.__code__.co_qualname}"


def defined(name: str) -> tuple[Any, str]:
    """Return the module or class that holds the function of that name, and the function's name in it."""
    module, _, path = name.partition(":")
    return _at(import_module(module), path)


def _at(owner: object, path: str) -> tuple[Any, str]:
    *parts, name = path.split(".")
    return reduce(getattr, parts, owner), name


def called(holder: Any, name: str) -> FunctionType | None:
    """Return the function behind holder.name, as a class or a module defines it, or as an object calls it."""
    is_place = isinstance(holder, type | ModuleType)
    value = vars(holder).get(name) if is_place else inspect.getattr_static(holder, name, None)
    is_of_another = isinstance(value, MethodType) and value.__self__ is not holder
    return None if is_of_another else plain_function(value)


def plain_function(value: Any) -> FunctionType | None:
    """Return the function in a method, a property, a cached function or a compiled one."""
    value = value.__wrapped__ if isinstance(value, _lru_cache_wrapper) else value
    for inside in ("__func__", "fget", "py_func"):
        value = getattr(value, inside, value)
    return value if isinstance(value, FunctionType) else None


def fingerprint(function: FunctionType, holder: object = None) -> str:
    """Return the SHA-256 of all that determines what a function computes, except for other functions.

    holder: the class or the object whose constants it reads.
    """
    text, names = meaning(function.__code__)
    cls = holder if isinstance(holder, type) else type(holder)
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    read = [text, _described([function.__defaults__, function.__kwdefaults__, cells])]
    for name in sorted(names):
        if hasattr(cls, name) and isinstance(getattr(cls, name), CONSTANT):
            read.append(f"self.{name} = {_described(inspect.getattr_static(holder, name))}")
        if name in function.__globals__:
            read.append(f"{name} = {_described(function.__globals__[name])}")
    return hashlib.sha256("\n".join(read).encode()).hexdigest()


def _described(value: Any) -> str:
    """Describe a value in words that are the same in every process."""
    if isinstance(value, COLLECTION):
        items = [_described(item) for item in (value.items() if isinstance(value, dict) else value)]
        return f"{type(value).__name__}{items if isinstance(value, list | tuple) else sorted(items)}"
    if isinstance(value, ARRAY):
        return f"{value.dtype} {value.tolist()}"
    if isinstance(value, CONSTANT):
        return repr(value)
    if (function := plain_function(value)) is not None:
        module, _, name = name_of(function).partition(":")
    else:
        named = value if hasattr(value, "__name__") else type(value)
        module, name = getattr(named, "__module__", None) or "", named.__name__
    return f"{module if _library(module) == PACKAGE else _library(module)}:{name}"  # others move things about


def _library(name: str) -> str:
    return name.partition(":")[0].partition(".")[0]


@cache
def meaning(code: CodeType) -> tuple[str, frozenset[str]]:
    """Return a function's syntax tree as text, and the names of globals and attributes in it.

    The text has numbers in place of variables. It depends neither on the version of Python nor on how the source is
    laid out. Both are empty if a function has no source of its own.
    """
    try:
        source = inspect.getsource(code)
        tree = ast.parse(f"if 1:\n{source}" if source[:1].isspace() else source)
        function = next(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    except (OSError, TypeError, ValueError, SyntaxError, TokenError, StopIteration):
        return "", frozenset()
    own = {arg.arg for arg in [*function.args.posonlyargs, *function.args.args]}  # others are called by their names
    own |= {node.id for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    numbers, names = dict[str, int](), set[str]()

    def written(node: Any) -> str:
        match node:
            case list():
                return f"[{' '.join(filter(None, map(written, node)))}]"
            case ast.AnnAssign(value=None) | ast.Expr(value=ast.Constant()):
                return ""  # an annotation, a docstring
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                return written(ast.Assign([target], value))
            case ast.Name(id=name) | ast.arg(arg=name) if name in own:
                return f"#{numbers.setdefault(name, len(numbers))}"
            case ast.Name(id=name) | ast.Attribute(attr=name):
                names.add(name)
        if not isinstance(node, ast.AST):
            return repr(node)
        fields = [(name, value) for name, value in ast.iter_fields(node) if name not in MEANS_NOTHING]
        said = [f"{name}={written(value)}" for name, value in fields if value is not None and value != []]
        return f"{type(node).__name__}({' '.join(said)})"

    text, read = written([function.args, function.body]), frozenset(names)
    return text + written(function.decorator_list), read  # it does not read what decorates it
