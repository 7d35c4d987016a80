"""Modules of the user's own: decides which may be imported, and imports them.

A config names them as `package.module:Class`, or as `module:Name-v0` for a Gymnasium environment. The user's own config
files may name any module. A stored run may come from another person: of the modules that it names, only those are
imported whose sources are listed in a file of the user's state folder, by module, file and SHA-256; who has trained by
a file of the working directory may edit it. `palestra train` and the option `--trust` add to that list. All commands
begin in `saying_nothing`: what they read is another person's, unless `reading_own` or `checking` says that it is the
user's own.
"""

import fcntl
import hashlib
import importlib
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType
from typing import Literal, TypeVar, get_args

OF_A_SCRIPT = "expected a name in a module; what stands in a script (__main__) can be used by that script alone"
IMPORT_PATH = re.compile(r"(\w+(?:\.\w+)*):\w+")
T = TypeVar("T")


@dataclass(frozen=True)
class Source:
    """A file that runs when a module is imported: its own, or that of a package above it. file: its real path."""

    module: str
    file: str
    sha256: str

    @property
    def whatever_it_holds(self) -> "Source":
        """What stands in the list for a file of the user's own, which may change."""
        return replace(self, sha256="")

    def lies_here(self) -> bool:
        """Whether it is a file of the working directory itself, which no installed package is."""
        place = os.path.join(os.getcwd(), *self.module.split("."))
        return self.file in map(os.path.realpath, (f"{place}.py", f"{place}/__init__.py"))

    def is_written_by_the_user_alone(self) -> bool:
        """Whether the file and its folder belong to the user, and nobody else may write to them."""
        found = [os.stat(path) for path in (self.file, os.path.dirname(self.file))]
        return all(each.st_uid == os.getuid() and not each.st_mode & 0o022 for each in found)


class UntrustedError(Exception):
    """A stored run names modules that the user does not trust, or the list of what is trusted cannot be used.

    The message has one line per file.
    """


# ---- what is trusted ---------------------------------------------------------------------------------


def trusted_file() -> Path:
    """`$XDG_STATE_HOME/palestra/trusted`; if that is no absolute path, `~/.local/state/palestra/trusted`.

    Raises UntrustedError for a user without a home.
    """
    state = Path(os.environ.get("XDG_STATE_HOME", ""))
    try:
        return (state if state.is_absolute() else Path("~/.local/state").expanduser()) / "palestra" / "trusted"
    except RuntimeError as error:
        raise UntrustedError(
            "the list of modules that you trust has no place, because you have no home: set XDG_STATE_HOME to a folder "
            "that you may write to"
        ) from error


def read_trusted() -> set[Source]:
    """The sources that the user trusts. Lines of another form are ignored."""
    try:
        lines = trusted_file().read_bytes().splitlines()
    except FileNotFoundError:
        return set()
    except OSError as error:
        raise _file_error("read", error) from error
    return {source for line in lines if (source := _source_of(line)) is not None}


def enter_trusted(sources: Sequence[Source]) -> None:
    """Add sources to those that the user trusts. Raises UntrustedError if the file cannot be written."""
    path = trusted_file()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        with open(descriptor, "a+b", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            known = read_trusted()
            if new := [source for source in sources if source not in known]:
                file.write(b"".join(b"\n" + json.dumps(asdict(source)).encode() for source in new) + b"\n")
                os.fsync(file.fileno())
    except OSError as error:
        raise _file_error("written", error) from error


def _source_of(line: bytes) -> Source | None:
    with suppress(ValueError, TypeError, RecursionError):
        source = Source(**json.loads(line))
        return source if all(isinstance(entry, str) for entry in asdict(source).values()) else None
    return None


def _file_error(done: str, error: OSError) -> UntrustedError:
    """The error for a list of trusted modules that cannot be read or written. No key of a config is at fault."""
    return UntrustedError(
        f"the list of modules that you trust, {trusted_file()}, cannot be {done}: {error.strerror}; another folder can "
        "hold it: set XDG_STATE_HOME to one that you may write to"
    )


# ---- which modules are imported ------------------------------------------------------------------------------------


Kind = Literal["all", "unsaid", "own", "trust", "check", "trusted", "no_others"]


@dataclass(frozen=True)
class Imports:
    """The rule for the modules that a config names, while the config is read.

    all: they are imported, because the config comes from the user's own Python. unsaid: nobody has said whose config it
    is, so all that is neither trusted nor imported already raises UntrustedError. own: they are imported, and trusted
    from now on, because the config is the user's own. trust: so they are for a stored config, too. check: they are
    imported, but not trusted, because the user's own config is only checked. trusted: the trusted ones are imported,
    and the others noted in `refused`. no_others: only the trusted ones are imported.
    """

    kind: Kind
    refused: list[str] = field(default_factory=list)

    def allows(self, untrusted: Callable[[], Sequence[str]]) -> bool:
        """Whether what is not trusted may be used. untrusted: gives the lines that refuse it; none: it is trusted."""
        if self.kind not in ("unsaid", *STRICT) or not (lines := untrusted()):
            return True
        if self.kind == "unsaid":
            raise UntrustedError("\n".join(lines))
        self.refused.extend(lines)
        return False


STRICT = ("trusted", "no_others")  # nothing that is entered inside them lets another module in
GENEROUS = ("own", "trust")  # what is named inside them becomes trusted
STORED = ("run.json", "sweep.json", "seeds.yml")  # in the folder of a run, of a sweep, of the runs of several seeds
ALL = Imports("all")
_imports: ContextVar[Imports] = ContextVar("imports", default=ALL)
_uses_outside: ContextVar[bool] = ContextVar("uses_outside", default=True)
_admitted: set[Source] = set()  # what this process may import
_handed_over: dict[str, Source] = {}  # what the process that started this one has imported, by module


@contextmanager
def _entered(kind: Kind, *inside: Kind) -> Iterator[Imports]:
    """A context with the rule of a kind. inside: the kinds in whose place it comes; the others stay."""
    outside = _imports.get()
    with _holding(_imports, Imports(kind) if outside.kind in inside else outside) as imports:
        yield imports


@contextmanager
def _holding(variable: ContextVar[T], value: T) -> Iterator[T]:
    """A context in which a variable has a value."""
    token = variable.set(value)
    try:
        yield value
    finally:
        variable.reset(token)


def saying_nothing() -> AbstractContextManager[object]:
    """A context in which no module is imported that is not trusted, unless another context inside it allows that."""
    return _entered("unsaid", "all")


def as_now() -> Callable[[], AbstractContextManager[object]]:
    """What makes contexts with the rule of the present one, for later."""
    return partial(_entered, _imports.get().kind, *get_args(Kind))


def trusting(trust: bool = True) -> AbstractContextManager[object]:
    """A context in which the sources that configs name become trusted, for good: those of stored ones, too (`--trust`).

    None do with trust=False, inside `checking`, and while a stored config is read.
    """
    return _entered("trust", "all", "unsaid", "own") if trust else nullcontext()


def reading_own() -> AbstractContextManager[object]:
    """A context for configs of the user's own, and for what the user types: the sources that they name become trusted.

    None do inside `checking`, and while a stored config is read.
    """
    return _entered("own", "all", "unsaid")


def checking() -> AbstractContextManager[object]:
    """A context for configs of the user's own that are only checked: modules are imported, but do not become trusted.

    While a stored config is read, only the trusted ones are imported here, too.
    """
    return _entered("check", "all", "unsaid", "own", "trust")


def importing_no_others() -> AbstractContextManager[object]:
    """A context in which only trusted modules are imported: sections of classes of others stay plain mappings."""
    return _entered("no_others", *get_args(Kind))


@contextmanager
def reading_stored(path: Path, trust: bool = False) -> Iterator[None]:
    """A context for reading the config of a stored run at `path`, which another person may have written.

    trust: as for `trusting`. Sources that are not trusted are not imported. Raises UntrustedError, in place of any
    other error of the config, if it names such sources.
    """
    with trusting(trust), _entered("trusted", "all", "unsaid", "own", "check") as imports:
        try:
            yield
        except Exception:  # a section that was not read can make the code that needs it raise anything
            if not imports.refused:
                raise
    if imports.refused:
        raise UntrustedError("\n".join(f"{path}: {line}" for line in dict.fromkeys(imports.refused)))


def is_stored(path: Path) -> bool:
    """Whether another person may have written a file, because it lies in the folder of a run or a sweep.

    It may lie there by its path, or by where links lead.
    """
    places = (Path(os.path.abspath(path)), Path(os.path.realpath(path)))
    # the farthest is SWEEP/trials/0003/config.yml
    return any(os.path.lexists(above / mark) for place in places for above in place.parents[:3] for mark in STORED)


def reading_file(path: Path) -> AbstractContextManager[object]:
    """A context for reading a file that the user names: `reading_stored` if it is a stored one, else as outside."""
    return reading_stored(path) if is_stored(path) else nullcontext()


def admit(module_name: str) -> bool:
    """Whether a module that a config names may be imported.

    True for a module that does not exist: importing it fails with a message. Raises UntrustedError in place of False if
    nobody has said whose config it is.
    """
    imports = _imports.get()
    try:
        sources = find_sources(module_name)
    except (ImportError, ValueError):
        return imports.kind != "no_others"
    if imports.kind == "no_others":
        return not _untrusted(sources)
    if imports.kind in GENEROUS:
        mine = [source.whatever_it_holds for source in sources if imports.kind == "own" and source.lies_here()]
        enter_trusted([*sources, *mine])
    is_here = imports.kind == "unsaid" and (module_name in sys.modules or _admitted.issuperset(sources))
    is_allowed = is_here or imports.allows(lambda: _untrusted(sources))
    _admitted.update(sources if is_allowed else ())
    return is_allowed


def admit_outside(place: str, why: str) -> bool:
    """Whether a config may make palestra use a place outside its own folder, such as a database.

    why: what it is used for. The config of a stored run or sweep may do so only if the user trusts the place, by the
    same list and the same option as modules. Inside `using_nothing_outside` it is not used, and not trusted either.
    """
    if not _uses_outside.get():
        return True
    imports, source = _imports.get(), Source(why, place, "")
    if imports.kind in GENEROUS:
        enter_trusted([source])
    refusal = f"{place} is not trusted, and was not used {why}; if you know it, trust it by --trust"
    return imports.allows(lambda: [] if source in read_trusted() else [refusal])


@contextmanager
def using_nothing_outside() -> Iterator[None]:
    """A context for reading a config by which no place outside of its folder will be used: none needs to be trusted."""
    with _holding(_uses_outside, False):
        yield


def admitted() -> frozenset[Source]:
    """The sources that this process may import, or has imported, to be handed to a process that it starts."""
    found = ((source, getattr(sys.modules.get(source.module), "__loader__", None)) for source in _admitted)
    return frozenset(loader.source if isinstance(loader, _Loader) else source for source, loader in found)


def admit_sources(sources: Iterable[Source]) -> None:
    """Let this process import the sources that the process which started it has imported or may import.

    It imports no other sources of these modules, as if they were edited meanwhile: they would compute something else.
    Of a module with several sources it is not known which one was imported.
    """
    _admitted.update(sources := [*sources])
    num_of = Counter(source.module for source in sources)
    _handed_over.update({source.module: source for source in sources if num_of[source.module] == 1})


def _untrusted(sources: Sequence[Source]) -> list[str]:
    """The refusals of those sources that are not trusted, one line each."""
    trusted = read_trusted()
    earlier = {(source.module, source.file) for source in trusted}
    remedy = "if you have read it, trust it by --trust, as in palestra evaluate RUN --trust (in Python: trust=True)"
    lines = []
    for source in sources:
        if source in trusted or (source.whatever_it_holds in trusted and source.is_written_by_the_user_alone()):
            continue
        if source.module == "__main__":
            lines.append(f"{OF_A_SCRIPT}, got one of another script than {source.file}")
            continue
        what = f"module {source.module!r}, file {source.file}, SHA-256 {source.sha256}"
        has_changed = (source.module, source.file) in earlier
        state = "has changed since it was trusted" if has_changed else "is not trusted"
        lines.append(f"{what} {state}, and was not imported; {remedy}")
    return lines


# ---- finding and importing ---------------------------------------------------------------------------


def find_sources(module_name: str) -> list[Source]:
    """Find the files that run when a module is imported, those of the packages above it first. None is run here.

    A package without `__init__.py` has no such file. The files that the module itself imports are not among them.
    Raises ValueError for a module without source (compiled, built in), ModuleNotFoundError for one that does not exist.
    """
    if not re.fullmatch(r"\w+(\.\w+)*", module_name):
        raise ValueError(f"expected the name of a module, got {module_name!r}")
    importlib.invalidate_caches()  # its file may be a moment old
    sources, path, name = [], None, ""
    for part in module_name.split("."):
        name = f"{name}.{part}" if name else part
        file, path = _find(name, path)
        if file is None and path is not None:
            continue
        if file is None or not file.endswith(".py") or not os.path.isfile(file):
            raise ValueError(f"expected a module in a .py file, got {name!r}, which has no source file")
        sources.append(Source(name, os.path.realpath(file), _sha256(Path(file).read_bytes())))
    return sources


def _find(name: str, path: list[str] | None) -> tuple[str | None, list[str] | None]:
    """The file of a module and, if it is a package, the folders of the modules inside it.

    path: the folders to search; None: the current directory and Python's path.
    """
    if (loaded := sys.modules.get(name)) is not None:
        inside = getattr(loaded, "__path__", None)
        return getattr(loaded, "__file__", None), None if inside is None else list(inside)
    places = [os.getcwd(), *sys.path] if path is None else path
    # the whole name would expect the packages above it in sys.modules
    spec = PathFinder.find_spec(name.rpartition(".")[2], places)
    others = (finder for finder in sys.meta_path if finder is not PathFinder)
    spec = spec or next(filter(None, (finder.find_spec(name, path) for finder in others)), None)
    if spec is None:
        raise ModuleNotFoundError(f"No module named {name!r}")
    inside = spec.submodule_search_locations
    return spec.origin if spec.has_location else None, None if inside is None else list(inside)


def import_own(module_name: str) -> ModuleType:
    """Import a module of the user's own from the current directory or Python's path.

    Only a source that was admitted or is trusted runs. Raises ValueError if the import fails, UntrustedError if it is
    not allowed.
    """
    if module_name in sys.modules:
        return sys.modules[module_name]
    here = os.getcwd()
    finder = None
    try:
        sources = find_sources(module_name)
        if not _admitted.issuperset(sources) and (untrusted := _untrusted(sources)):
            raise UntrustedError("\n".join(untrusted))
        if edited := [source.file for source in sources if _handed_over.get(source.module, source) != source]:
            raise ImportError(f"{edited[0]} was edited after the run had imported it; undo that, or resume the run")
        outermost = module_name.partition(".")[0]
        if here not in sys.path and PathFinder.find_spec(outermost, [here]) is not None:
            sys.path.append(here)  # the module may import its neighbours; installed packages take precedence
        finder = _Finder(sources)
        sys.meta_path.insert(0, finder)
        return importlib.import_module(module_name)
    except UntrustedError:
        raise
    except (Exception, SystemExit) as error:
        raise ValueError(
            f"importing {module_name!r} failed: {type(error).__name__}: {error}; looked in {here} and Python's path"
        ) from error
    finally:
        if finder is not None:
            sys.meta_path.remove(finder)


def hash_of(module_name: str) -> str:
    """Return the SHA-256 of a module's source: as it was imported, though its file may have been edited since.

    Raises as `find_sources`.
    """
    loader = getattr(sys.modules.get(module_name), "__loader__", None)
    return loader.source.sha256 if isinstance(loader, _Loader) else find_sources(module_name)[-1].sha256


class _Finder(MetaPathFinder):
    """Finds modules in the files where `find_sources` found them."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self.sources = {source.module: source for source in sources}

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if (source := self.sources.get(name)) is None:
            return None
        folder, file = os.path.split(source.file)
        inside, loader = [folder] if file == "__init__.py" else None, _Loader(source)
        return spec_from_file_location(name, source.file, loader=loader, submodule_search_locations=inside)


class _Loader(SourceFileLoader):
    """Compiles the source, and ignores compiled files beside it, which may hold other code."""

    def __init__(self, source: Source) -> None:
        super().__init__(source.module, source.file)
        self.source = source

    def get_code(self, name: str) -> CodeType:
        content = self.get_data(self.source.file)
        if _sha256(content) != self.source.sha256:
            raise ImportError(f"{self.source.file} has changed while it was read")
        return self.source_to_code(content, self.source.file)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
