"""The files of prompts: sandboxed Jinja templates, found by role and part, and checked before anything is rendered."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from importlib.resources.abc import Traversable
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

from palestra.config import ByName, Config, ConfigError, ConfigErrorItem, NonEmptyStr
from palestra.config.errors import listed, nearest
from palestra.text.sandbox import Sandbox, SandboxError

SUFFIX = ".jinja"
MOST_BYTES = 1 << 20  # of a file
SHIPPED = "prompts"  # the folder of this package
COMMON = ("role", "roles", "side", "accept", "reject", "headers", "fields", "min_rounds", "max_rounds")
PARTS: dict[str, tuple[str, ...]] = {  # each with what it is told besides COMMON and the fields
    "system": (),
    "opening": (),
    "heard": ("name", "channel", "text", "round"),
    "last_chance": ("round",),
    "retry": ("fault", "round"),
}
Part = tuple[str, str, Mapping[str, Any]]  # a role, the part's name and its values


class ShippedPromptsConfig(Config):
    name: Literal["shipped"]
    """those that palestra has for the protocol and the scenario"""

    def folders(self, protocol: str, scenario: str) -> list[Traversable]:
        """Return the folders in which parts are looked for, the first one first."""
        root = files("palestra.text") / SHIPPED
        named = [root / protocol / scenario, root / scenario, root / protocol]
        return [folder for folder in named if folder.is_dir()] + [root]


class FolderPromptsConfig(Config):
    name: Literal["folder"]
    """files of your own; what is not there, but `system`, comes from the shipped ones"""
    path: NonEmptyStr
    """a folder on this machine with files ROLE.PART.jinja, or PART.jinja for all roles; PART is system, opening, heard,
    last_chance or retry; a relative path begins at the working directory"""

    def folders(self, protocol: str, scenario: str) -> list[Traversable]:
        """Return the folders in which parts are looked for. Raises ConfigError if there is no such folder."""
        folder = Path(self.path)
        if not folder.is_dir():
            raise ConfigError.at("path", f"expected a folder with prompts, got none (looked in {folder.absolute()})")
        return [folder, files("palestra.text") / SHIPPED]


AnyPromptsConfig = Annotated[ShippedPromptsConfig | FolderPromptsConfig, ByName(usual="shipped")]


class Templates:
    """The templates of a protocol and a scenario.

    config: where they are. protocol, scenario: their names. roles: those of the protocol. fields: of questions. copied:
    the `files` of earlier templates, which stand for those that the config names; None: there are none. Raises
    ConfigError, with paths relative to the config, for files that are missing or wrong.

    files: the text of every file that is used, by its name: a folder that holds these alone gives the same prompts.
    """

    def __init__(
        self,
        config: ShippedPromptsConfig | FolderPromptsConfig,
        protocol: str,
        scenario: str,
        roles: Sequence[str],
        fields: Sequence[str],
        copied: Mapping[str, str] | None = None,
    ) -> None:
        self.path = "path" if isinstance(config, FolderPromptsConfig) else ""
        self.names: dict[tuple[str, str], str] = {}
        self.files: dict[str, str] = {}
        self._places: dict[str, str] = {}
        if copied is None:
            self._read(config, config.folders(protocol, scenario), roles)
        else:
            self._take(copied, roles)
        self._sandbox = Sandbox("prompts", self.files, {})
        self._used: dict[str, set[str] | None] = {}  # variables by file; None: any, because it includes others
        ConfigError.require_none(ConfigErrorItem(self.path, fault) for fault in self._faults(roles, fields))

    def _read(
        self, config: ShippedPromptsConfig | FolderPromptsConfig, folders: Sequence[Traversable], roles: Sequence[str]
    ) -> None:
        if is_own := isinstance(config, FolderPromptsConfig):
            for file in sorted(Path(config.path).glob(f"*{SUFFIX}")):
                self._add(file)
        for role, part in product(roles, PARTS):
            among = folders[:1] if is_own and part == "system" else folders
            self.names[role, part] = self._add(self._find(among, role, part))

    def _take(self, copied: Mapping[str, str], roles: Sequence[str]) -> None:
        self.files, self._places = dict(copied), {name: f"{SHIPPED}/{name}" for name in copied}
        for role, part in product(roles, PARTS):
            names = _names_of(role, part)
            if (found := next((name for name in names if name in copied), None)) is None:
                raise ConfigError.at(self.path, f"expected {' or '.join(names)} in the run's prompts/, got neither")
            self.names[role, part] = found

    def _find(self, folders: Sequence[Traversable], role: str, part: str) -> Traversable:
        names = _names_of(role, part)
        for folder, name in product(folders, names):
            if (folder / name).is_file():
                return folder / name
        raise ConfigError.at(self.path, f"expected {' or '.join(names)} in {folders[0]}, got neither")

    def _add(self, file: Traversable) -> str:
        try:
            if isinstance(file, Path) and (not file.is_file() or file.stat().st_size > MOST_BYTES):
                raise OSError(f"no plain file of at most {MOST_BYTES:,} bytes")
            self.files[file.name] = file.read_text(encoding="utf-8-sig")  # without a byte-order mark
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError.at(self.path, f"expected a text file in UTF-8 at {file}, got: {error}") from error
        self._places[file.name] = str(file)
        return file.name

    def hashes(self) -> dict[str, str]:
        """Return the SHA-256 of every file, by its place in a run's folder."""
        return {f"{SHIPPED}/{name}": hashlib.sha256(text.encode()).hexdigest() for name, text in self.files.items()}

    # ---- what does not fit -----------------------------------------------------------------------------------

    def _faults(self, roles: Sequence[str], fields: Sequence[str]) -> Iterator[str]:
        every = {*COMMON, *fields, *(name for told in PARTS.values() for name in told)}
        for name in self.files:
            role, _, part = name.removesuffix(SUFFIX).rpartition(".")
            if part in PARTS and role and role not in roles:
                yield f"{self._places[name]}: expected one of the roles {', '.join(roles)}, got {role!r}"
            if role in roles and part not in PARTS:
                yield f"{self._places[name]}: expected one of the parts {', '.join(PARTS)}, got {part!r}"
            known = {*COMMON, *fields, *PARTS[part]} if part in PARTS else every
            yield from self._faults_of_file(name, known)

    def _faults_of_file(self, name: str, known: set[str]) -> Iterator[str]:
        try:
            [found] = self._sandbox.render([(name, None)])
        except SandboxError as error:
            yield f"{self._place(error, name)}: {error}"
            return
        self._used[name] = None if found["files"] else set(found["lines"])
        for unknown in sorted(found["lines"].keys() - known):
            near = nearest(unknown, known)
            hint = f"did you mean {near!r}?" if near else f"known ones are {listed(sorted(known))}"
            yield f"{self._places[name]}, line {found['lines'][unknown]}: unknown field {unknown!r}; {hint}"
        for used in found["files"]:
            if used is not None and used not in self.files:
                yield f"{self._places[name]}: expected a file {used!r} beside it, got none"

    # ---- rendering -------------------------------------------------------------------------------------------

    def render(self, jobs: Sequence[Part]) -> list[str]:
        """Render parts of prompts, each given by its role, its name and its values, which are inserted as they are.

        Raises ConfigError in one line.
        """
        named = [(self.names[role, part], values) for role, part, values in jobs]
        try:
            return self._sandbox.render([(name, self._needed(name, values)) for name, values in named])
        except SandboxError as error:
            place = self._place(error, named[error.index][0])
            raise ConfigError.at(self.path, f"{place}: for the role {jobs[error.index][0]!r}: {error}") from error

    def _needed(self, name: str, values: Mapping[str, Any]) -> Mapping[str, Any]:
        used = self._used[name]
        return values if used is None else {each: values[each] for each in values if each in used}

    def _place(self, error: SandboxError, name: str) -> str:
        place = self._places[error.name or name]
        return place if error.line is None else f"{place}, line {error.line}"


def _names_of(role: str, part: str) -> list[str]:
    """Return the names that the file of a part may have, the first one first."""
    return [f"{role}.{part}{SUFFIX}", f"{part}{SUFFIX}"]
