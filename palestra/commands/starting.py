"""Finds what the argument FILE of a command names: a file, a shipped config, or parts of which one is made."""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from palestra.config import IMPORT_PATH, ConfigError, ConfigErrorItem, apply_overrides, checking, load_yaml
from palestra.config.errors import nearest_hint
from palestra.config.own_classes import find_named
from palestra.run.base import BaseRunConfig
from palestra.run.kinds import Kind, followed, kinds, read_config
from palestra.run.shipped import is_path, named_file, shipped_configs, shipped_tournaments, why_no_file
from palestra.sweeps.config import is_sweep


class NamedConfig(NamedTuple):
    """A config as a command names it.

    title: for messages. name: of its runs. source: the file, or the config itself. overrides: those that are not yet in
    the config. note: a line for the user, or None.
    """

    title: str
    name: str
    source: Path | BaseRunConfig
    overrides: list[str]
    note: str | None


def begun_by(name: str) -> Kind | None:
    """Return the kind of run whose first file a word begins: the name of an algorithm, or `fit`; None if none does.

    A class of the user's own, as package.module:Class, is an algorithm, too.
    """
    for kind in kinds():
        if name in kind.first_words():
            return kind
    if IMPORT_PATH.fullmatch(name) is None:
        return None
    own = find_named(name)
    return next(kind for kind in reversed(kinds()) if kind.begins(own))


def starting_config(name: str, words: Sequence[str]) -> BaseRunConfig:
    """Return the shipped config of a name, or a config for an algorithm and a game, or for fit, a model and data.

    For an algorithm and a game it is a shipped one if there is one, else one that their parts make, and that is tried.
    words: the game, if there is one, and the overrides. Modules that they name are imported, and not trusted by that.
    Raises ConfigError.
    """
    with checking():
        shipped = shipped_configs()
        is_alone = not words or "=" in words[0]
        if is_alone and name in shipped:
            return followed(shipped[name], words) or read_config(shipped[name], words)
        if (kind := begun_by(name)) is not None:
            return kind.starting_config(name, words, shipped)
        if is_alone:
            raise ConfigError.at(name, expected_name(name, shipped))
        expected = f"expected one of the algorithms {_all_first_words()}"
        raise ConfigError.at(name, f"{expected}, or a class of your own as package.module:Class, got {name!r}")


def expected_name(name: str, shipped: Mapping[str, Path]) -> str:
    """Say what a name alone may be."""
    return (
        f"expected one of the shipped configs ({', '.join(shipped)}), "
        f"or an algorithm ({_all_first_words()}) and a game, got {name!r}{nearest_hint(name, shipped)}"
    )


def _all_first_words() -> str:
    return ", ".join(word for kind in kinds() for word in kind.first_words())


@contextmanager
def naming_remedies(found: NamedConfig) -> Iterator[None]:
    """Let errors name the command that helps: that of sweeps if the file is one, else the one that prints a config.

    The latter is named at the end of the last error, if an override names another game, algorithm or loss.
    """
    try:
        yield
    except ConfigError as error:
        if _is_sweep(found.source):
            file = found.source
            raise ConfigError.at(str(file), f"this is a sweep; to work on it: palestra sweep {file}") from None
        unknown = any(re.fullmatch(r"game(\.id)?|.*\.(name|module)", item.path) for item in error.errors)
        if unknown or not (remedy := _remedy(found)):
            raise
        *others, last = error.errors
        raise ConfigError([*others, ConfigErrorItem(last.path, f"{last.message}; {remedy}")]) from error


def _is_sweep(config: Path | BaseRunConfig) -> bool:
    with suppress(ConfigError):
        return isinstance(config, Path) and is_sweep(load_yaml(config))
    return False


def _remedy(found: NamedConfig) -> str | None:
    if isinstance(found.source, BaseRunConfig):
        return None
    try:
        data = load_yaml(found.source)
        before = _parts(data)
        for override in found.overrides:
            with suppress(ConfigError):
                data = apply_overrides(data, [override])
        algorithm, game, loss = after = _parts(data)
    except (ConfigError, LookupError, TypeError, AttributeError):
        return None
    if after == before:
        return None
    own = [f"loss={loss}"] if loss not in (None, before[-1]) else []
    return f"a config that fits: {shlex.join(['palestra', 'config', algorithm, game, *own])} > x.yml"


def _parts(data: Mapping[str, Any]) -> tuple[str, str, str | None]:
    """Return the names of the first learning player's algorithm, of the game or environment, and of the loss."""
    learners = [player["algorithm"] for player in data["players"].values() if "algorithm" in player]
    algorithm, game, loss = learners[0], data["game"], None
    if isinstance(algorithm, dict) and "loss" in algorithm:
        loss = _name(algorithm["loss"])
    is_of_gymnasium = isinstance(game, dict) and game["name"] == "gymnasium"
    return _name(algorithm), game["id"] if is_of_gymnasium else _name(game), loss


def _name(part: Any) -> str:
    """Return the name of a part, which an override may have put in the part's place."""
    return part if isinstance(part, str) else part["name"]


def find_config(file: str, words: Sequence[str]) -> NamedConfig:
    """Find the config that the first arguments of a command name.

    words: all arguments after the first; the first of them is a game if it has no '='. Raises ConfigError for a name
    that is unknown.

    A file in the working directory, NAME or NAME.yml, comes before a shipped config of that name. With another loss, a
    shipped config changes in what goes with the loss; a file of the user's own does not.
    """
    if words and "=" not in words[0] and begun_by(file) is not None:
        title = " ".join([file, *(word for word in words[:2] if "=" not in word)])
        return NamedConfig(title, re.sub(r"[^\w.]+", "-", title), starting_config(file, words), [], None)
    shipped = shipped_configs()
    path = named_file(file)
    if path is not None and path == shipped.get(file):
        with checking():  # the user has typed what they name
            changed = followed(path, words)
        return NamedConfig(file, file, changed or path, [] if changed else list(words), None)
    if path is not None:
        note = f"{path}: this file is used, not the config {file} that palestra ships" if file in shipped else None
        return NamedConfig(str(path), path.stem, path, list(words), note)
    if file in shipped_tournaments() and not Path(file).exists():
        raise ConfigError.at(file, f"this is a tournament; to play it: palestra evaluate {file}")
    if not Path(file).exists():
        is_name = not is_path(file) and not Path(f"{file}.yml").is_file()
        if is_name and begun_by(file) is not None:
            starting_config(file, words)  # raises, and says what may follow
        raise ConfigError.at(file, expected_name(file, shipped) if is_name else why_no_file(file))
    return NamedConfig(file, Path(file).stem, Path(file), list(words), None)  # a folder
