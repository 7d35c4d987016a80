"""Classes and functions of the user's own that a config names, as package.module:Class: found, imported, hashed."""

import ast
import inspect
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any, TypeVar

from palestra.config.base import Config, walk
from palestra.config.errors import ConfigError, listed, nearest, nearest_hint
from palestra.config.own_modules import IMPORT_PATH, OF_A_SCRIPT, admit, admit_outside, hash_of, import_own

T = TypeVar("T")
HOOKS = ("before_", "after_")  # with which the names of most hooks begin
LIBRARIES = "/site-packages/", "/dist-packages/", "/torchinductor_", "<eval_with_key", "<frozen "
# in the names of files with code that no user has written
NOT_OWN = (f"{Path(__file__).parent.parent}/", *map(sysconfig.get_path, ("stdlib", "scripts")), *LIBRARIES)


def admits(name: str) -> bool:
    """Whether the module of `package.module:Class` may be imported.

    True for names of another form: loading them fails with a message.
    """
    match = IMPORT_PATH.fullmatch(name)
    return match is None or admit(match[1])


def load_named(name: str, kind: str = "Class") -> Any:
    """The object that `package.module:name` names, imported if it may be; None if the module has none of that name.

    kind: what it should be, for messages. Raises ValueError if there is no such module, or if the name belongs to
    another script than this one.
    """
    if not IMPORT_PATH.fullmatch(name):
        raise ValueError(f"expected 'package.module:{kind}', got {name!r}")
    module_name, inside = name.split(":")
    if (found := getattr(import_own(module_name), inside, None)) is None and module_name == "__main__":
        raise ValueError(f"{OF_A_SCRIPT}, got {name!r}")
    return found


def import_path(named: Any) -> str:
    """The `package.module:name` by which a function or a class can be imported.

    Raises ValueError if there is none: for a lambda, for a definition inside a function, in a notebook or in a script.
    """
    name = f"{getattr(named, '__module__', None)}:{getattr(named, '__qualname__', None)}"
    module = sys.modules.get(name.partition(":")[0])
    is_there = IMPORT_PATH.fullmatch(name) and getattr(module, name.partition(":")[2], None) is named
    if not is_there or name.startswith("__main__:"):
        raise ValueError(f"expected a function or a class that can be imported from a module, got {named!r}")
    return name


def load_class(name: str, base: type[T]) -> type[T]:
    """The class that `package.module:Class` names, imported if it may be (palestra.config.own_modules).

    Raises ValueError if there is no such module or class, if the class is no subclass of `base`, or has a name that
    looks like one of `base` and is none.
    """
    found = load_named(name)
    if not isinstance(found, type):
        raise _missing(name, "class", lambda it: isinstance(it, type) and it is not base and issubclass(it, base))
    if not issubclass(found, base):
        raise ValueError(f"expected a subclass of {base.__module__}.{base.__qualname__}, got {name!r}")
    require_used(found, names_of_ours(base))
    return found


def is_ours(cls: type) -> bool:
    return cls.__module__.startswith("palestra.")


def names_of_ours(base: type) -> list[str]:
    """The public names that a class of ours has, and those that it derives from."""
    return [name for each in filter(is_ours, base.__mro__) for name in vars(each) if not name.startswith("_")]


def require_used(cls: type, known: Sequence[str], key: str = "") -> None:
    """Raise ConfigError for a name in a user's own class that looks like one of its base and is none, if none uses it.

    known: those names of the base that it may define; one that it does define is not the one that is meant. A name is
    used that is read anywhere in the module; nothing is said of a class whose source is not known.
    """
    ours = next(filter(is_ours, cls.__mro__), object)
    classes = [each for each in cls.__mro__ if each not in ours.__mro__]
    own, used = {name: value for each in classes for name, value in vars(each).items()}, set[str]()
    for module in {each.__module__: sys.modules.get(each.__module__) for each in classes}.values():
        try:
            nodes = ast.walk(ast.parse(inspect.getsource(module)))  # type: ignore[arg-type]
        except (OSError, TypeError, SyntaxError):
            return
        used |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    hooks = HOOKS if any(name.startswith(HOOKS) for name in known) else ()
    for name in sorted(name for name in own.keys() - used - set(dir(ours)) if not name.startswith("_")):
        is_method = callable(getattr(cls, name))
        left = [each for each in known if each not in own and callable(getattr(ours, each, None)) == is_method]
        if (is_method and name.startswith(hooks)) or nearest(name, left, 0.85):
            expected = f"expected {', '.join(left)} and other names that do not look like one"
            got = f"{name!r} of {cls.__name__}, which nothing uses"
            raise ConfigError.at(key, f"{expected}, got {got}{nearest_hint(name, left)}")


def admitted_function(name: str) -> Callable[..., Any] | None:
    """The function that `package.module:function` names; None if its module may not be imported. Raises ValueError."""
    return load_function(name) if admits(name) else None


def load_function(name: str) -> Callable[..., Any]:
    """The function that `package.module:function` names, imported as `load_class` does. Raises ValueError."""
    found: Callable[..., Any] = load_named(name, "function")
    if not callable(found) or isinstance(found, type):
        raise _missing(name, "function", lambda it: isinstance(it, FunctionType))
    return found


def _missing(name: str, kind: str, is_one: Callable[[Any], bool]) -> ValueError:
    """The error for a name that is none of its module's classes or functions, which it lists."""
    module_name, inside = name.split(":")
    known = [key for key, thing in vars(import_own(module_name)).items() if is_one(thing)]
    return ValueError(f"expected a {kind} of module {module_name!r} ({listed(known) or 'none'}), got {inside!r}")


def own_frames(error: BaseException) -> list[tuple[FrameType, int]]:
    """The frames, with their lines, of an error's traceback that lie in a user's own code, the outermost first."""
    frames = traceback.walk_tb(error.__traceback__)
    written = [each for each in frames if each[0].f_code.co_filename.endswith(".py") or _is_main(each[0])]
    return [each for each in written if not any(place in each[0].f_code.co_filename for place in NOT_OWN)]


def _is_main(frame: FrameType) -> bool:
    return frame.f_globals.get("__name__") == "__main__"  # as of a notebook's cell, which lies in no file


def failure(error: BaseException) -> str:
    """Say what went wrong in a user's own code, and where: `ValueError: too small (mine.py, line 34)`."""
    where = "".join(f" ({Path(f.f_code.co_filename).name}, line {line})" for f, line in own_frames(error)[-1:])
    return f"{type(error).__name__}: {' '.join(str(error).split())}{where}"


def raised(error: BaseException) -> str:
    """Say which code of a user's own has raised an error, and how, after the lines of its traceback that are theirs."""
    frames = own_frames(error)
    code = f"{frames[0][0].f_globals.get('__name__')}:{frames[0][0].f_code.co_qualname}"
    told = [f"{code} raises {failure(error)}", *getattr(error, "__notes__", [])]
    lines = traceback.StackSummary.extract(iter(frames)).format()
    return "".join(["in your own code (most recent call last):\n", *lines, "; ".join(told)])


@contextmanager
def running_own(path: str, what_fails: str) -> Iterator[None]:
    """A context in which code of the user's own runs: an exception becomes a ConfigError at a path, which says why.

    A ConfigError stays as it is. what_fails: begins the message, such as "'mine:Net' fails".
    """
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError.at(path, f"{what_fails}: {failure(error)}") from error


def admit_modules(config: Any) -> None:
    """Admit the modules of the user's own that a config names, and places outside, as a check of the config does."""
    for _, value in walk(config):
        if isinstance(value, Config):
            for module in value.own_modules():
                admit(module)
            for place, why in value.uses_outside():
                admit_outside(place, why)


def user_class_hashes(config: Any) -> dict[str, str]:
    """The SHA-256 of the source of each class and function of the user's own in a config, by `package.module:name`.

    Raises ConfigError for one without a source file.
    """
    names = [name for _, value in walk(config) if isinstance(value, Config) for name in value.user_names()]
    try:
        return {name: hash_of(name.partition(":")[0]) for name in names}
    except (ImportError, ValueError) as error:
        raise ConfigError.at("", str(error)) from error


def find_named(name: str) -> Any:
    """Return the class or function of the user's own that a text names; None if it names none."""
    with suppress(ValueError):  # the user gets this error when the config is read
        return load_named(name) if ":" in name and admits(name) else None
    return None
