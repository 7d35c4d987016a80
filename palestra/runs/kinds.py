"""The kinds of run, and how a config of any of them is read.

To register one, add the names of its trainers to KINDS.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

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
from palestra.config.errors import listed, nearest
from palestra.runs.base import BaseRunConfig, TrainingClass
from palestra.runs.config import RunConfig
from palestra.runs.fit import FitConfig
from palestra.runs.shipped import file_of
from palestra.runs.text import TextConfig
from palestra.storage.disk import RunFolderError
from palestra.storage.facts import git_commit, versions
from palestra.storage.run_folder import RunFolder

K = TypeVar("K", bound=BaseRunConfig)
KINDS: dict[str, type[BaseRunConfig]] = {
    "in_turn": RunConfig,
    "together": RunConfig,
    "fit": FitConfig,
    "text": TextConfig,
}
"""the kinds by the names of the trainers that ship; of a class of the user's own, it says which"""


def is_tournament(data: Any) -> bool:
    """Whether plain data describe a tournament (palestra.runs.tournament), in which nobody learns."""
    return isinstance(data, dict) and "pairings" in data and "trainer" not in data


def kind_of_run(data: Any) -> type[BaseRunConfig]:
    """The kind of run that plain data describe: that of their trainer.

    RunConfig if the data name no trainer, or one that may not be imported; checking the data then says what is wrong.
    Raises ConfigError for a tournament, and for a trainer that is unknown or cannot be imported: what else is said
    depends on it.
    """
    if is_tournament(data):
        message = "expected a config in which a player learns, got that of a tournament"
        raise ConfigError.at("", f"{message}; palestra evaluate FILE plays it")
    trainer = data.get("trainer") if isinstance(data, dict) else None
    name = trainer.get("name") if isinstance(trainer, dict) else None
    if name in KINDS:
        return KINDS[name]
    if isinstance(name, str) and ":" in name:
        try:
            return load_class(name, TrainingClass).run_config if admits(name) else RunConfig
        except ValueError as error:
            raise ConfigError.at("trainer.name", str(error)) from error
    if isinstance(name, str):
        hint = f"; did you mean {near!r}?" if (near := nearest(name, KINDS)) else ""
        expected = f"expected one of {listed(list(KINDS))}, or a class of your own as 'package.module:Class'"
        raise ConfigError.at("trainer.name", f"{expected}, got {name!r}{hint}")
    return RunConfig


def kind_of_stored(data: Any, tell: Callable[[str], object] = lambda line: None) -> type[BaseRunConfig]:
    """The kind of run whose records a folder holds, by its config as plain data.

    RunConfig if they are those of a tournament, or name a trainer that is not trusted or cannot be imported. tell:
    called with a line if the trainer's module is not trusted.
    """
    with suppress(ConfigError), importing_no_others():
        name = under(data, "trainer", "name")
        if isinstance(name, str) and not admits(name):
            why = "is of a module that is not here or that you do not trust, and was not imported"
            tell(f"trainer.name: {name} {why}; the run is read as {RunConfig.in_words}")
        return kind_of_run(data)
    return RunConfig


def require_kind(config: BaseRunConfig, kind: type[K], place: Path) -> K:
    """Return the config of a stored run that is of this kind. Raises RunFolderError for one of another kind."""
    if isinstance(config, kind):
        return config
    raise RunFolderError(f"expected {kind.in_words}, got {place}, {config.in_words}")


def read_config(config: str | Path | dict[str, Any] | BaseRunConfig, overrides: Sequence[str] = ()) -> Any:
    """The config of a run, from a path, the name of a shipped config, a mapping or a config.

    It is a RunConfig if players play, else another BaseRunConfig. Raises ConfigError with every fault at once.
    """
    if isinstance(config, str | Path):
        return load_config(file_of(config), overrides, kind_of_run)
    if isinstance(config, BaseRunConfig) and not overrides:
        admit_modules(config)
        return config  # it was checked when it was made
    data = config.model_dump() if isinstance(config, BaseRunConfig) else config
    return check_overridden(data, overrides, kind_of_run)


def read_stored_config(path: Path, overrides: Sequence[str] = ()) -> Any:
    """The config of a stored run: a RunConfig if players play, else another BaseRunConfig.

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
