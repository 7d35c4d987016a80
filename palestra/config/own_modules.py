"""Modules of a user's own: which may be imported, and importing them.

A config names them as `package.module:Class`, or as `module:Name-v0` where a Gymnasium environment stands. Whoever
writes a config means what it names. A stored run may be a stranger's: of what it names, only those sources are imported
that a file of the user's state folder holds, by module, file and SHA-256. `palestra train` enters them there, and so
does whoever trusts them (`--trust`).
"""

import fcntl
import hashlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import CodeType, ModuleType
from typing import Literal

from palestra.config.errors import ConfigError, ConfigErrorItem

IMPORT_PATH = re.compile(r"(\w+(?:\.\w+)*):\w+")


@dataclass(frozen=True)
class Source:
    """A file that importing a module runs: of the module itself, or of a package above it. file: its real path."""

    module: str
    file: str
    sha256: str


class UntrustedError(Exception):
    """A stored run names modules that the user has not trusted; one line for each file."""


# ---- what is trusted ---------------------------------------------------------------------------------


def trusted_file() -> Path:
    """`$XDG_STATE_HOME/palestra/trusted`; where that is no absolute path, below ~/.local/state."""
    state = Path(os.environ.get("XDG_STATE_HOME", ""))
    return (state if state.is_absolute() else Path("~/.local/state").expanduser()) / "palestra" / "trusted"


def read_trusted() -> set[Source]:
    """What the user has trusted. A line that was not written so counts for nothing."""
    try:
        lines = trusted_file().read_bytes().splitlines()
    except FileNotFoundError:
        return set()
    except OSError as error:
        raise _refused_by_the_disk(error) from error
    return {source for line in lines if (source := _source_of(line)) is not None}


def enter_trusted(sources: Sequence[Source]) -> None:
    """Add sources to those that the user trusts. Raises ConfigError where the disk refuses."""
    path = trusted_file()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        with open(descriptor, "a+b", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            known = read_trusted()
            new = [source for source in sources if source not in known]
            if new:
                file.write(b"".join(b"\n" + json.dumps(asdict(source)).encode() for source in new) + b"\n")
                os.fsync(file.fileno())
    except OSError as error:
        raise _refused_by_the_disk(error) from error


def _source_of(line: bytes) -> Source | None:
    try:
        source = Source(**json.loads(line))
    except (ValueError, TypeError, RecursionError):
        return None
    return source if all(isinstance(entry, str) for entry in asdict(source).values()) else None


def _refused_by_the_disk(error: OSError) -> ConfigError:
    message = f"the disk refuses: {error.strerror}; XDG_STATE_HOME says where the list of trusted sources lies"
    return ConfigError([ConfigErrorItem(str(trusted_file()), message)])


# ---- who is asked ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Imports:
    """What becomes of the modules that a config names while it is read.

    given: they are imported, for the config is the user's own. entered: as given, and from now on they are trusted.
    checked: as given, for who looks at a config and does not train by it.
    trusted: those that are trusted are imported, the others noted in `refused`. nothing: none is imported.
    """

    kind: Literal["given", "entered", "checked", "trusted", "nothing"]
    refused: list[str] = field(default_factory=list)


GIVEN = Imports("given")
_imports: ContextVar[Imports] = ContextVar("imports", default=GIVEN)
_admitted: set[Source] = set()  # what this process may import


@contextmanager
def trusting(trust: bool = True) -> Iterator[None]:
    """Sources that configs name inside are trusted from now on; trust: False, and while a config is checked: as
    outside."""
    outside = _imports.get()
    token = _imports.set(Imports("entered") if trust and outside.kind != "checked" else outside)
    try:
        yield
    finally:
        _imports.reset(token)


@contextmanager
def checking() -> Iterator[None]:
    """Inside, what configs name is imported, and nothing is trusted by that."""
    token = _imports.set(Imports("checked"))
    try:
        yield
    finally:
        _imports.reset(token)


@contextmanager
def importing_nothing() -> Iterator[None]:
    """Inside, no module of a user's own is imported: its sections of a config stay the mappings that they are."""
    token = _imports.set(Imports("nothing"))
    try:
        yield
    finally:
        _imports.reset(token)


@contextmanager
def reading_stored(path: Path) -> Iterator[None]:
    """For the config of a run, which lies at `path` and may be a stranger's. Raises UntrustedError for what it names
    that is not trusted, in place of any error in it; nothing of that was imported."""
    imports = Imports("trusted") if _imports.get().kind in ("given", "checked") else _imports.get()
    token = _imports.set(imports)
    try:
        yield
    except ConfigError:
        if not imports.refused:
            raise
    finally:
        _imports.reset(token)
    if imports.refused:
        lines = dict.fromkeys(imports.refused)
        raise UntrustedError("\n".join(f"{path}: {line}" for line in lines))


def admit(module_name: str) -> bool:
    """Whether a module that a config names may be imported. What cannot be found may: importing it says why not."""
    imports = _imports.get()
    if imports.kind == "nothing":
        return False
    try:
        sources = find_sources(module_name)
    except (ImportError, ValueError):
        return True
    if imports.kind == "entered":
        enter_trusted(sources)
    if imports.kind == "trusted" and (strange := _strange(sources)):
        imports.refused.extend(strange)
        return False
    _admitted.update(sources)
    return True


def _strange(sources: Sequence[Source]) -> list[str]:
    """What keeps sources from being imported: a line for each that is not trusted."""
    trusted = read_trusted()
    earlier = {(source.module, source.file) for source in trusted}
    return [_told(source, (source.module, source.file) in earlier) for source in sources if source not in trusted]


def _told(source: Source, has_changed: bool) -> str:
    what = f"module {source.module!r}, file {source.file}, SHA-256 {source.sha256}"
    state = "has changed since it was trusted" if has_changed else "is not trusted"
    remedy = "who has read it can trust it, as by palestra evaluate RUN --trust (in Python: trust=True)"
    return f"{what} {state}, and was not imported; {remedy}"


# ---- finding and importing ---------------------------------------------------------------------------


def find_sources(module_name: str) -> list[Source]:
    """The files that importing a module runs, those of the packages above it first, found without running any.

    A package without `__init__.py` runs none. What a module imports itself is not among them. Raises ValueError for a
    module that has no source (compiled, built in), ModuleNotFoundError for one that is not there.
    """
    if not re.fullmatch(r"\w+(\.\w+)*", module_name):
        raise ValueError(f"{module_name!r} names no module")
    importlib.invalidate_caches()  # its file may be a moment old
    sources, path, name = [], None, ""
    for part in module_name.split("."):
        name = f"{name}.{part}" if name else part
        file, path = _find(name, path)
        if file is None and path is not None:
            continue
        if file is None or not file.endswith(".py") or not os.path.isfile(file):
            raise ValueError(f"module {name!r} has no source file; expected a module in a .py file")
        sources.append(Source(name, os.path.realpath(file), _sha256(Path(file).read_bytes())))
    return sources


def _find(name: str, path: list[str] | None) -> tuple[str | None, list[str] | None]:
    """The file of a module, and where the modules inside it lie, if it is a package. path: where to look; None: in the
    current directory, and on Python's path."""
    if (loaded := sys.modules.get(name)) is not None:
        inside = getattr(loaded, "__path__", None)
        return getattr(loaded, "__file__", None), None if inside is None else list(inside)
    spec = importlib.machinery.PathFinder.find_spec(name, [os.getcwd(), *sys.path] if path is None else path)
    others = (finder for finder in sys.meta_path if finder is not importlib.machinery.PathFinder)
    for finder in others if spec is None else ():
        spec = finder.find_spec(name, path)
        if spec is not None:
            break
    if spec is None:
        raise ModuleNotFoundError(f"No module named {name!r}")
    inside = spec.submodule_search_locations
    return spec.origin if spec.has_location else None, None if inside is None else list(inside)


def import_own(module_name: str) -> ModuleType:
    """A module of the user's own, from the current directory or Python's path; exactly the source that was admitted or
    is trusted. Raises ValueError if it fails, UntrustedError if it may not be imported."""
    if _imports.get().kind == "nothing":
        raise UntrustedError(f"module {module_name!r} is the run's own, and was not imported")
    if module_name in sys.modules:
        return sys.modules[module_name]
    here = os.getcwd()
    finder = None
    try:
        sources = find_sources(module_name)
        strange = [] if _admitted.issuperset(sources) else _strange(sources)
        if strange:
            raise UntrustedError("\n".join(strange))
        outermost = module_name.partition(".")[0]
        if here not in sys.path and importlib.machinery.PathFinder.find_spec(outermost, [here]) is not None:
            sys.path.append(here)  # the module may import its neighbours; what is installed goes before them
        finder = _Finder(sources)
        sys.meta_path.insert(0, finder)
        return importlib.import_module(module_name)
    except UntrustedError:
        raise
    except (Exception, SystemExit) as error:
        raise ValueError(
            f"importing {module_name!r} failed: {type(error).__name__}: {error}; looked in {here}"
        ) from error
    finally:
        if finder is not None:
            sys.meta_path.remove(finder)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds modules where they were found before."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self.sources = {source.module: source for source in sources}

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        source = self.sources.get(name)
        if source is None:
            return None
        inside = [os.path.dirname(source.file)] if os.path.basename(source.file) == "__init__.py" else None
        loader = _Loader(source)
        return importlib.util.spec_from_file_location(
            name, source.file, loader=loader, submodule_search_locations=inside
        )


class _Loader(importlib.machinery.SourceFileLoader):
    """Compiles a source itself: compiled code that lies beside it may be anything."""

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
