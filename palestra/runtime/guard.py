"""Whether functions are still those that a hand-written kernel was written for.

A kernel computes what some methods of an object say, much faster. Somebody may have edited one of these methods or a
function that they call, overridden it in a subclass, or assigned another one; then the kernel would be wrong, and must
step aside. So a file beside the kernels, mirrors.json, holds the SHA-256 of all these functions, by kernel. `make
kernels` writes it, after the tests have shown that kernels and methods give the same numbers.

A function's SHA-256 is that of its source, its defaults, what the global names in it stand for, and the constants of
its class and of the classes that it names. Functions and constants are looked up as they would be used: those of
classes through every object that can be reached from the one that owns the kernel.
"""

import hashlib
import inspect
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import _lru_cache_wrapper, cache
from importlib import import_module
from itertools import chain
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Generic, Self, TypeVar, overload

import numpy as np
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

PACKAGE = __name__.partition(".")[0]
SIMPLE = (bool, int, float, complex, str, bytes, type(None), type(...))
CONSTANT = (*SIMPLE, list, tuple, set, frozenset, dict, Tensor, np.ndarray, np.generic)
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
CALL = nn.Module.__call__
T = TypeVar("T")
Hashes = Mapping[str, str]


@dataclass(frozen=True)
class Kernel:
    """A kernel, and what it stands in for.

    module: where it is written. mirrors: methods of its owner, also of the owner's parts ("config.exploration.choose").
    cost: what it costs to do without, a clause such as "updates take about 3 times as long".
    """

    module: str
    name: str
    mirrors: tuple[str, ...]
    cost: str

    @property
    def file(self) -> Path:
        """Where the hashes lie."""
        source = import_module(self.module).__file__
        assert source is not None
        return Path(source).with_name("mirrors.json")

    @property
    def hashes(self) -> Hashes:
        """The SHA-256 of every function, by its name."""
        return _read(self.file).get(self.name, {})


@cache
def _read(file: Path) -> dict[str, dict[str, str]]:
    """Nothing where the file is missing or broken: then no kernel runs."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        found = None
    return {name: each for name, each in found.items() if isinstance(each, dict)} if isinstance(found, dict) else {}


class kernel_property(Generic[T]):  # noqa: N801 (it is used as `property` is)
    """An attribute that is computed when it is first asked for, and again after `forget_kernels`."""

    def __init__(self, choose: Callable[[Any], T]) -> None:
        self.choose, self.__doc__ = choose, choose.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...
    def __get__(self, instance: object | None, owner: type) -> Self | T:
        if instance is None:
            return self
        value = instance.__dict__[self.name] = self.choose(instance)
        return value


def kernel_properties(cls: type) -> list[str]:
    """The names of those that a class has, its own last."""
    names = [name for base in reversed(cls.__mro__) for name, value in vars(base).items() if _is_chosen(value)]
    return list(dict.fromkeys(names))


def _is_chosen(value: object) -> bool:
    return isinstance(value, kernel_property)


def forget_kernels(owner: object) -> None:
    """Let every kernel_property of an object, and of all that can be reached from it, be computed again."""
    for part in reachable(owner):
        for name in kernel_properties(type(part)):
            vars(part).pop(name, None)


# ---- is something edited? ----------------------------------------------------------------------------


def find_edit(kernel: Kernel, owner: object) -> str | None:
    """The first function that is not what the kernel was written for, in words; None: all are."""
    hashes = kernel.hashes
    if not hashes:
        return f"{kernel.file.name} has no hashes for {kernel.name}; `make kernels` writes them"
    known: dict[FunctionType, str | None] = {}
    looked_up = ((_called(owner, path), f"{type(owner).__name__}.{path}") for path in kernel.mirrors)
    defined = ((_defined(name), name.partition(":")[2]) for name in hashes)
    for function, name in chain(looked_up, defined, _methods(hashes, owner)):
        if function is None:
            return f"{name} is no function with a source"
        if function not in known:
            known[function] = _edit_of(function, hashes)
        if (what := known[function]) is not None:
            return (
                f"{name} {what} ({Path(function.__code__.co_filename).name}, line {function.__code__.co_firstlineno})"
            )
    others = (f"{name} differs from palestra's" for name in _other_constants(hashes, owner))
    return next(chain(others, _other_calls(hashes, owner)), None)


def _edit_of(function: FunctionType, hashes: Hashes) -> str | None:
    """What is wrong with a function, in words; None: it is what the kernel was written for."""
    name = name_of(function)
    if name not in hashes:
        return "differs from palestra's"
    sha256 = fingerprint(function)
    if sha256 is None or sha256 != hashes[name]:
        return "was edited"
    called = [other for value in globals_of(function).values() if (other := _function(value)) is not None]
    missing = sorted(other for other in map(name_of, called) if _is_of_ours(other) and other not in hashes)
    return next(chain((f"calls {other}, which has no hash" for other in missing), _patched(function)), None)


def _patched(function: FunctionType) -> Iterator[str]:
    """What a function calls of torch or another library, where somebody has put a function from elsewhere."""
    modules: list[Any] = [each for _, each in sorted(globals_of(function).items()) if isinstance(each, ModuleType)]
    for library in [Tensor, *(module for module in modules if not _is_of_ours(module.__name__))]:
        place = _library(library.__module__ if isinstance(library, type) else library.__name__)
        for name in sorted(names_in(function) & vars(library).keys()):
            value = _function(vars(library)[name])
            if value is not None and _library(value.__globals__.get("__name__", "")) != place:
                yield f"calls {library.__name__}.{name}, which is not the library's own"


def find_other_call(module: nn.Module) -> str | None:
    """What makes a call of a module more than, or other than, its class's `forward`, in words; None: nothing."""
    name, forward = type(module).__name__, _called(module, "forward")
    if any(getattr(module, hooks) for hooks in HOOKS) or nn.modules.module._has_any_global_hook():
        return f"{name} has hooks"
    if any(parameter._backward_hooks for parameter in module.parameters(recurse=False)):
        return f"{name} has hooks on its weights"
    if is_parametrized(module):
        return f"{name} is parametrized"
    if type(module).__call__ is not CALL or forward is None:
        return f"{name} is called otherwise"
    if _library(forward.__globals__.get("__name__", "")) not in ("torch", PACKAGE):
        return f"{name}.forward is not the library's own"
    return next((f"{name}.forward {what}" for what in _patched(forward)), None)


def _other_calls(names: Iterable[str], owner: object) -> Iterator[str]:
    """What is wrong with calls of the modules whose methods are among the functions."""
    modules = (part for part, _, _ in _parts_with_methods(names, owner) if isinstance(part, nn.Module))
    yield from filter(None, map(find_other_call, modules))


def _methods(names: Iterable[str], owner: object) -> Iterator[tuple[FunctionType | None, str]]:
    """Those of the functions that are methods, as they are called on the objects that can be reached."""
    for part, _, methods in _parts_with_methods(names, owner):
        for method in methods:
            yield _called(part, method), f"{type(part).__name__}.{method}"


def _other_constants(names: Iterable[str], owner: object) -> Iterator[str]:
    """Constants of the classes of these methods which objects that can be reached, or their classes, have otherwise."""
    for part, cls, _ in _parts_with_methods(names, owner):
        for name, value in constants_of(cls).items():
            if _described(inspect.getattr_static(part, name, None)) != _described(value):
                yield f"{type(part).__name__}.{name}"


def _parts_with_methods(names: Iterable[str], owner: object) -> Iterator[tuple[Any, type, list[str]]]:
    """The objects that can be reached, with the classes that they derive from and those of the functions that are
    methods of these."""
    methods: dict[str, list[str]] = {}
    for name in names:
        place, _, method = name.rpartition(".")
        if ":" in place:
            methods.setdefault(place, []).append(method)
    for part in reachable(owner):
        for cls in type(part).__mro__:
            if found := methods.get(f"{cls.__module__}:{cls.__qualname__}"):
                yield part, cls, found


def _called(owner: object, path: str) -> FunctionType | None:
    """The function behind owner.path, as it would be called."""
    *parts, method = path.split(".")
    for part in parts:
        owner = getattr(owner, part)
    static = inspect.getattr_static(type(owner), method, None)
    is_special = method.startswith("__")  # Python looks these up in the class
    if is_special or not isinstance(static, FunctionType | MethodType | staticmethod | classmethod | None):
        return _function(static)
    value = getattr(owner, method, None)
    is_of_another = isinstance(value, MethodType) and value.__self__ not in (owner, type(owner))
    return None if is_of_another else _function(value)


def _defined(name: str) -> FunctionType | None:
    """The function of that name, where it is defined."""
    return _function(_found(name))


def _found(name: str) -> Any:
    """What has that name, where it is defined; None where nothing has."""
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module) or import_module(module)
    for part in path.split("."):
        found = inspect.getattr_static(found, part, None)
    return found


def _function(value: Any) -> FunctionType | None:
    """The plain function in a method, a property or a compiled kernel."""
    if isinstance(value, MethodType | staticmethod | classmethod):
        value = value.__func__
    if isinstance(value, property):
        value = value.fget
    if isinstance(value, _lru_cache_wrapper):
        value = value.__wrapped__
    value = getattr(value, "py_func", value)
    return value if isinstance(value, FunctionType) else None


def reachable(owner: object) -> Iterator[Any]:
    """The object, and those among its attributes, and so on: ours, networks, and objects of classes that derive from
    these."""
    found, waiting = set(), [owner]
    while waiting:
        value = waiting.pop()
        cls: Any = type(value)
        if id(value) in found or isinstance(value, Tensor | np.ndarray | type | FunctionType):
            continue
        found.add(id(value))
        if isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, list | tuple | set):
            waiting += value
        elif _is_ours(cls) and hasattr(value, "__dict__"):
            yield value
            waiting += vars(value).values()


@cache
def _is_ours(cls: Any) -> bool:
    return any(base is nn.Module or _is_of_ours(base.__module__) for base in cls.__mro__)


# ---- what a function is ------------------------------------------------------------------------------


def name_of(function: FunctionType) -> str:
    """By its code, for names can be lent: package.module:Class.method."""
    return f"{function.__globals__.get('__name__')}:{function.__code__.co_qualname}"


def fingerprint(function: FunctionType) -> str | None:
    """The SHA-256 of all that a function computes by, other functions aside; None where it has no source."""
    source = _source(function)
    if source is None:
        return None
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    known = [_described(value) for value in (function.__defaults__, function.__kwdefaults__, cells)]
    named = [f"{name} = {_described(value)}" for name, value in sorted(globals_of(function).items())]
    constants = [f"{name} = {_described(value)}" for name, value in sorted(_constants_for(function).items())]
    return hashlib.sha256("\n".join([source, *known, *named, *constants]).encode()).hexdigest()


def globals_of(function: FunctionType) -> dict[str, Any]:
    """What the global names in a function stand for."""
    return {name: function.__globals__[name] for name in names_in(function) if name in function.__globals__}


def names_in(function: FunctionType) -> set[str]:
    """All names of globals and of attributes."""
    return {name for code in _codes(function.__code__) for name in code.co_names}


def _constants_for(function: FunctionType) -> dict[str, Any]:
    """The constants, by name, of a function's class, and of the classes and modules of ours that it names."""
    place, _, _ = name_of(function).rpartition(".")
    values = [*globals_of(function).values(), _found(place) if ":" in place and "<" not in place else None]
    constants: dict[str, Any] = {}
    for module in [value for value in values if isinstance(value, ModuleType) and _is_of_ours(value.__name__)]:
        named = {name: vars(module)[name] for name in names_in(function) & vars(module).keys()}
        values += named.values()
        constants |= {f"{module.__name__}.{name}": each for name, each in named.items() if isinstance(each, CONSTANT)}
    for cls in [value for value in values if isinstance(value, type) and _is_ours(value)]:
        constants |= {f"{cls.__qualname__}.{name}": each for name, each in constants_of(cls).items()}
    return constants


def constants_of(cls: type) -> dict[str, Any]:
    """The numbers, texts and collections that stand in a class, its own and inherited ones."""
    bases = [base for base in reversed(cls.__mro__) if _is_ours(base) and _library(base.__module__) != "torch"]
    attributes = {name: value for base in bases for name, value in vars(base).items() if not name.startswith("__")}
    return {name: value for name, value in attributes.items() if isinstance(value, CONSTANT)}


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _described(value: Any) -> str:
    """What a global name stands for, in words that are the same in every process."""
    if isinstance(value, SIMPLE):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"{type(value).__name__}({', '.join(map(_described, value))})"
    if isinstance(value, set | frozenset):
        return f"{type(value).__name__}({', '.join(sorted(map(_described, value)))})"
    if isinstance(value, dict):
        return f"dict({', '.join(f'{_described(key)}: {_described(item)}' for key, item in value.items())})"
    if isinstance(value, Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray | np.generic):
        return f"{value.dtype}{value.shape} {hashlib.sha256(value.tobytes()).hexdigest()}"
    if isinstance(value, ModuleType):
        return f"module {value.__name__}"
    function = _function(value)
    if function is not None:
        return f"function {_place(function.__globals__.get('__name__'))}:{function.__code__.co_qualname}"
    named: Any = value if callable(value) and hasattr(value, "__name__") else type(value)
    return f"{_place(getattr(named, '__module__', None))}:{getattr(named, '__qualname__', named.__name__)}"


def _place(module: str | None) -> str:
    """A module of ours, or the library of another one, in which things may move from module to module."""
    return "" if module is None else module if _is_of_ours(module) else _library(module)


def _is_of_ours(module: str) -> bool:
    return _library(module) == PACKAGE


def _library(name: str) -> str:
    """The package of a module or of what lies in it."""
    return name.partition(":")[0].partition(".")[0]


_sources: dict[int, tuple[CodeType, str | None]] = {}


def _source(function: FunctionType) -> str | None:
    """The text that its code was compiled from; None where there is none, or the file has changed since."""
    code = function.__code__
    if id(code) not in _sources:
        try:
            text = inspect.getsource(code)
            same = _codes_in(function.__globals__["__name__"]).get((code.co_qualname, code.co_firstlineno))
            is_whole = same is not None and _computed(same) == _computed(code)
        except (OSError, TypeError, ImportError, AttributeError):
            is_whole = False
        _sources[id(code)] = code, text if is_whole else None  # with the code, whose id no other one gets now
    return _sources[id(code)][1]


@cache
def _codes_in(module: str) -> dict[tuple[str, int], CodeType]:
    """All code of a module, as its file stands now, by name and line."""
    loader: Any = getattr(sys.modules[module], "__loader__", None)
    return {(code.co_qualname, code.co_firstlineno): code for code in _codes(loader.get_code(module))}


def _computed(code: CodeType) -> tuple[Any, ...]:
    """All of a code object that says what it computes."""
    constants = [_computed(each) if isinstance(each, CodeType) else _described(each) for each in code.co_consts]
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    kind = code.co_flags & ~inspect.CO_OPTIMIZED  # numba takes this flag away
    return code.co_code, constants, names, code.co_argcount, code.co_kwonlyargcount, kind
