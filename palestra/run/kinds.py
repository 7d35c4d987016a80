"""The kinds of run, and how a config of any of them is read.

A kind is a folder below palestra/kinds, known here by name alone: `palestra.run.KINDS` says where each Kind is found.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar

from palestra.config import (
    ConfigError,
    admit_modules,
    admits,
    check_overridden,
    importing_no_others,
    load_class,
    load_config,
    load_stored_config,
    load_yaml,
    reading_own,
    under,
)
from palestra.config.errors import listed, nearest_hint
from palestra.run import KINDS
from palestra.run.base import BaseRunConfig, TrainingClass
from palestra.run.shipped import file_of
from palestra.storage.disk import RunFolderError
from palestra.storage.facts import git_commit, versions
from palestra.storage.run_folder import RunFolder

K = TypeVar("K", bound=BaseRunConfig)


class Terminal(NamedTuple):
    """Where a person reads and types. say, warn: print a line. ask: prints without an end. lines: what is typed."""

    say: Callable[[str], None]
    warn: Callable[[str], None]
    ask: Callable[[str], None]
    lines: Iterator[str]


class ExportOptions(NamedTuple):
    """Those of `palestra export`."""

    player: str | None
    checkpoint: str
    onnx: bool
    role: str | None
    weights: str | None
    trust: bool


class PlayOptions(NamedTuple):
    """Those of `palestra play`. person: the role in which one sits; None: one watches. is_drawn: the seed was."""

    person: str | None
    against: str | None
    pairing: Mapping[str, str]
    board: str | None
    seed: int
    is_drawn: bool
    checkpoint: str
    trust: bool


class Kind:
    """A kind of run, as the rest of the house knows it. Each method imports what it needs.

    config: the model of its files. parts: what these may name, each as a heading, and the module and name of a union of
    configs, or of scripted players by name. A kind without `export` or `play` has nothing to export, or nobody who
    plays.
    """

    config: ClassVar[type[BaseRunConfig]]
    parts: ClassVar[Sequence[tuple[str, str, str]]] = ()

    def trainers(self) -> Mapping[str, tuple[type[Any], ...]]:
        """Return the classes by the names that `trainer` has in a file.

        First the one that is built, then others that train in the same way.
        """
        raise NotImplementedError

    def first_words(self) -> Sequence[str]:
        """Return what stands after `palestra config` before a game or data, so that a file is made of its parts."""
        return ()

    def begins(self, own: Any) -> bool:
        """Return whether a class of the user's own may stand there, too."""
        return False

    def starting_config(self, name: str, words: Sequence[str], shipped: Mapping[str, Path]) -> BaseRunConfig:
        """Return the config that such a word and those after it name. shipped: files by name. Raises ConfigError."""
        raise NotImplementedError

    def following(self, data: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
        """Return the data of a shipped file, changed to what fits the parts that overrides name."""
        return data

    def export(self, run: Path, options: ExportOptions, person: Terminal) -> list[str]:
        """Export what has learned in a run; return lines that say what was written, and how it is used."""
        raise NotImplementedError

    def play(self, run: Path, options: PlayOptions, person: Terminal) -> None:
        """Play one game in the terminal. Raises ConfigError for players that cannot sit there, EvaluationFailed."""
        raise NotImplementedError

    def sections(self, groups: Sequence[Any], figures: Any) -> list[Any]:
        """Return the sections of a report that only runs of this kind have."""
        return []


def kind_named(trainer: str) -> Kind:
    """Return the kind of runs with a trainer of palestra's, by its name in a file."""
    module, _, name = KINDS[trainer].partition(":")
    found: Kind = getattr(import_module(module), name)()
    return found


def kinds() -> list[Kind]:
    """Return all kinds, each once."""
    return [kind_named(trainer) for trainer in {where: trainer for trainer, where in KINDS.items()}.values()]


def kind_of(config: type[BaseRunConfig]) -> Kind:
    """Return the kind of run to which a model of files belongs; one that answers nothing for a user's own."""
    return next((kind for kind in kinds() if issubclass(config, kind.config)), Kind())


def is_tournament(data: Any) -> bool:
    """Whether plain data describe a tournament (palestra.kinds.games.tournament), in which nobody learns."""
    return isinstance(data, dict) and "pairings" in data and "trainer" not in data


def kind_of_run(data: Any) -> type[BaseRunConfig]:
    """The kind of run that plain data describe: that of their trainer.

    That of players in games if the data name no trainer, or one that may not be imported; checking the data then says
    what is wrong.
    Raises ConfigError for a tournament, and for a trainer that is unknown or cannot be imported: what else is said
    depends on it.
    """
    if is_tournament(data):
        message = "expected a config in which a player learns, got that of a tournament"
        raise ConfigError.at("", f"{message}; palestra evaluate FILE plays it")
    trainer = data.get("trainer") if isinstance(data, dict) else None
    name = trainer.get("name") if isinstance(trainer, dict) else None
    unknown = kind_named("in_turn").config
    if name in KINDS:
        return kind_named(name).config
    if isinstance(name, str) and ":" in name:
        try:
            return load_class(name, TrainingClass).run_config if admits(name) else unknown
        except ValueError as error:
            raise ConfigError.at("trainer.name", str(error)) from error
    if isinstance(name, str):
        expected = f"expected one of {listed(list(KINDS))}, or a class of your own as 'package.module:Class'"
        raise ConfigError.at("trainer.name", f"{expected}, got {name!r}{nearest_hint(name, KINDS)}")
    return unknown


def kind_of_stored(data: Any, tell: Callable[[str], object] = lambda line: None) -> type[BaseRunConfig]:
    """The kind of run whose records a folder holds, by its config as plain data.

    That of players in games if they are those of a tournament, or name a trainer that is not trusted or cannot be
    imported. tell: called with a line if the trainer's module is not trusted.
    """
    unknown = kind_named("in_turn").config
    with suppress(ConfigError), importing_no_others():
        name = under(data, "trainer", "name")
        if isinstance(name, str) and not admits(name):
            why = "is of a module that is not here or that you do not trust, and was not imported"
            tell(f"trainer.name: {name} {why}; the run is read as {unknown.in_words}")
        return kind_of_run(data)
    return unknown


def require_kind(config: BaseRunConfig, kind: type[K], place: Path) -> K:
    """Return the config of a stored run that is of this kind. Raises RunFolderError for one of another kind."""
    if isinstance(config, kind):
        return config
    raise RunFolderError(f"expected {kind.in_words}, got {place}, {config.in_words}")


def read_config(config: str | Path | dict[str, Any] | BaseRunConfig, overrides: Sequence[str] = ()) -> Any:
    """The config of a run, from a path, the name of a shipped config, a mapping or a config.

    Its class is that of the kind of run. Raises ConfigError with every fault at once.
    """
    if isinstance(config, str | Path):
        return load_config(file_of(config), overrides, kind_of_run)
    if isinstance(config, BaseRunConfig) and not overrides:
        admit_modules(config)
        return config  # it was checked when it was made
    data = config.model_dump() if isinstance(config, BaseRunConfig) else config
    return check_overridden(data, overrides, kind_of_run)


def followed(path: Path, overrides: Sequence[str]) -> BaseRunConfig | None:
    """Return a shipped config with overrides, if other keys follow from these; else None. Raises ConfigError."""
    data = load_yaml(path)
    changed = kind_of(kind_of_run(data)).following(data, overrides) if overrides else data
    return None if changed == data else read_config(changed, overrides)


def read_stored_config(path: Path, overrides: Sequence[str] = ()) -> Any:
    """The config of a stored run, of the class of its kind.

    The modules that overrides name are trusted, because the user typed them. Raises RunFolderError for a file that
    palestra did not write, ConfigError for overrides that do not fit, UntrustedError if the file names modules that the
    user does not trust.
    """
    if overrides:
        read_stored_config(path)
        with reading_own():
            return load_config(path, overrides, kind_of_run)
    try:
        if is_tournament(load_yaml(path)):
            raise RunFolderError(f"expected a run in which a player learns, got a tournament: {path.parent}")
        return load_stored_config(path, kind_of_run)
    except ConfigError as error:
        if code := [str(each) for each in error.errors if each.is_about_code]:
            raise RunFolderError(
                "\n".join((f"{path} names code that is not here as the run needs it:", *code))
            ) from error
        other = _other_palestra(path) if any(each.is_about_a_key for each in error.errors) else None
        raise RunFolderError(f"{path} {other or 'differs from what was written'}:\n{error}") from error


def _other_palestra(path: Path) -> str | None:
    """Say which palestra has written the config of a run; None if it is this one, or if the run does not say."""
    with suppress(RunFolderError):
        facts = RunFolder(path.parent).facts()
        before, now = _in_words(facts.versions, facts.commit), _in_words(versions(), git_commit())
        if before != now:
            return f"was written by another palestra, {before}, which had other keys than this one, {now}; use that one"
    return None


def _in_words(versions: Mapping[str, str | None], commit: str | None) -> str:
    return f"{versions.get('palestra')}{'' if commit is None else f', commit {commit[:12]}'}"
