"""Finds what `palestra config` prints and `palestra train ALGORITHM GAME` trains.

That is a shipped config, or a first file for an algorithm and a game, or for a protocol and a scenario.
"""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import gymnasium

from palestra.config import IMPORT_PATH, ConfigError, checking, load_yaml
from palestra.config.errors import nearest
from palestra.config.own_classes import admits, load_named
from palestra.config.variants import members_of, names_of
from palestra.data.own_loaders import LoaderConfig
from palestra.games import AnyGameConfig
from palestra.games.dialogue.game import AnyScenarioConfig
from palestra.games.dialogue.protocols import AnyProtocolConfig
from palestra.runs.base import BaseRunConfig
from palestra.runs.config import AnyAlgorithm, RunConfig
from palestra.runs.fit import AnyDataConfig, AnyModelConfig
from palestra.runs.kinds import kind_of_run, read_config
from palestra.runs.shipped_configs import shipped_configs
from palestra.runs.starting import following, for_each_player, remedies, starting_data
from palestra.runs.starting_fit import NO_MODEL, starting_fit
from palestra.runs.starting_text import starting_text
from palestra.text.algorithms import AnyTextAlgorithm
from palestra.text.algorithms.algorithm import TextAlgorithm
from palestra.text.game import AnyTextScenarioConfig
from palestra.training import make_trainer
from palestra.training.trainable import apart_from_this_machine

GYMNASIUM = "gymnasium"
FIT = "fit"


def known_algorithms() -> list[str]:
    """Return the names of the algorithms of players in games, without the user's own."""
    return list(names_of(members_of(AnyAlgorithm)))


def text_algorithms() -> list[str]:
    """Return the names of the algorithms of players that talk in words, without the user's own."""
    return list(names_of(members_of(AnyTextAlgorithm)))


def is_algorithm(name: str) -> bool:
    """Return whether a text is the name of an algorithm, one of palestra's or package.module:Class, or fit."""
    known = (FIT, *known_algorithms(), *text_algorithms())
    return name in known or IMPORT_PATH.fullmatch(name) is not None


def _is_of_text(name: str) -> bool:
    """Return whether a text names an algorithm of players that talk in words; one of the user's own is imported."""
    found = None
    with suppress(ValueError):  # the user gets this error when the config is read
        found = load_named(name) if ":" in name and admits(name) else None
    return name in text_algorithms() or (isinstance(found, type) and issubclass(found, TextAlgorithm))


def starting_config(name: str, words: Sequence[str]) -> BaseRunConfig:
    """Return the shipped config of a name, or a config for an algorithm and a game, or for fit, a model and data.

    For an algorithm and a game it is a shipped one if there is one, else one that their parts make, and that is tried.
    words: the game, if there is one, and the overrides. Modules that they name are imported, and not trusted by that.
    Raises ConfigError.
    """
    with checking():
        if name == FIT:
            return _starting_fit(words)
        shipped = {path.stem: path for path in shipped_configs()}
        if not words or "=" in words[0]:
            if name not in shipped:
                raise ConfigError.at(name, expected_name(name, shipped))
            return followed(shipped[name], words) or read_config(shipped[name], words)
        if not is_algorithm(name):
            expected = f"expected one of the algorithms {_all_algorithms()}"
            raise ConfigError.at(name, f"{expected}, or a class of your own as package.module:Class, got {name!r}")
        if _is_of_text(name):
            return _starting_text(name, words, shipped)
        game, overrides = game_and_overrides(words)
        if (tuned := _tuned(name, game, shipped)) is not None:
            return followed(tuned, overrides) or read_config(tuned, overrides)
        if not _is_game(game):
            near = f"; did you mean {found!r}?" if (found := nearest(words[0], gymnasium.registry)) else ""
            raise ConfigError.at(f"{name} {words[0]}", _expected_game(name, repr(words[0]), shipped) + near)
        data = starting_data(name, game, overrides)
        with remedies(data, RunConfig):
            config: RunConfig = read_config(data, for_each_player(data, overrides))
        make_trainer(apart_from_this_machine(config))
        return config


def _starting_fit(words: Sequence[str]) -> BaseRunConfig:
    """Return a config for a model and data. words: both, and overrides; the data may be a protocol and a scenario."""
    models, sets = ([*names_of(members_of(each))] for each in (AnyModelConfig, AnyDataConfig))
    models.append(NO_MODEL)
    named = [word for word in words if "=" not in word]
    for place, (what, known) in enumerate((("a model", models), ("data", sets))):
        is_scenario = place == 1 and len(named) == 3
        if len(named) <= place or not (named[place] in known or ":" in named[place] or is_scenario):
            got = repr(named[place]) if len(named) > place else "none"
            others = ", or a protocol and a scenario" * place
            expected = f"expected {what} ({', '.join(known)}, or package.module:Class{others})"
            raise ConfigError.at(" ".join([FIT, *named[: place + 1]]), f"{expected}, got {got}")
    model, *about = named
    said: dict[str, Any] = {LoaderConfig.key if _is_function(about[0]) else "name": about[0]}
    if len(about) > 1:
        said = {"name": "scenario", "protocol": {"name": about[0]}, "scenario": {"name": about[1]}}
    overrides = [word for word in words if "=" in word]
    config = starting_fit(model, said, overrides)
    make_trainer(apart_from_this_machine(config))
    return config


def _is_function(name: str) -> bool:
    """Return whether a text names a function of the user's own, which is imported: as data, a loader."""
    with suppress(ValueError):  # the user gets this error when the config is read
        return ":" in name and admits(name) and not isinstance(load_named(name), type)
    return False


def _starting_text(name: str, words: Sequence[str], shipped: Mapping[str, Path]) -> BaseRunConfig:
    """Return a config for players that talk in words. words: a protocol and a scenario, and overrides."""
    protocols, scenarios = (list(names_of(members_of(each))) for each in (AnyProtocolConfig, AnyTextScenarioConfig))
    named = [word for word in words[:2] if "=" not in word]
    for place, (what, known) in enumerate((("a protocol", protocols), ("a scenario", scenarios))):
        if len(named) <= place or not (named[place] in known or ":" in named[place]):
            got = repr(named[place]) if len(named) > place else "none"
            expected = f"expected {what} ({', '.join(known)}, or package.module:Class), got {got}"
            raise ConfigError.at(" ".join([name, *named[: place + 1]]), f"{expected}{_shipped_of(name, shipped)}")
    protocol, scenario = named
    said = {"protocol": {"name": protocol}, "scenario": {"name": scenario}}
    config = starting_text(name, said, words[2:])
    make_trainer(apart_from_this_machine(config))
    return config


def followed(path: Path, overrides: Sequence[str]) -> RunConfig | None:
    """Return a shipped config with overrides, if other keys follow from these; else None. Raises ConfigError."""
    data = load_yaml(path)
    changed = following(data, overrides) if overrides and kind_of_run(data).is_played else data
    return None if changed == data else read_config(changed, overrides)


def _tuned(algorithm: str, game: Mapping[str, Any], shipped: Mapping[str, Path]) -> Path | None:
    """Return the shipped config of an algorithm for a game, if there is one: by the game, else by its own name."""
    if not _is_game(game):
        return shipped.get(f"{algorithm}-{game['name']}")
    own = (path for stem, path in shipped.items() if stem.split("-")[0] == algorithm)
    return next((path for path in own if game == {key: load_yaml(path)["game"].get(key) for key in game}), None)


def _is_game(game: Mapping[str, Any]) -> bool:
    """Return whether a mapping names a game of palestra's, an environment of Gymnasium, or a class of one's own."""
    return game["name"] in _games() or "id" in game or ":" in game["name"]


def game_and_overrides(words: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Split the words after an algorithm, of which there are some, into the key `game` and the overrides.

    A protocol and a scenario, each a name or package.module:Class, are the game `dialogue`. Raises ConfigError for a
    protocol without a known scenario.
    """
    protocols, scenarios = names_of(members_of(AnyProtocolConfig)), names_of(members_of(AnyScenarioConfig))
    first, *others = words
    second = others[0] if others and "=" not in others[0] else ""
    if first in protocols or (second and ":" in first):
        if second not in scenarios and ":" not in second:
            got = f"got {second!r}" if second else "got none"
            message = f"expected a scenario after the protocol ({', '.join(scenarios)}, or package.module:Class), {got}"
            raise ConfigError.at(first, message)
        return {"name": "dialogue", "protocol": {"name": first}, "scenario": {"name": second}}, others[1:]
    if re.search(r"-v\d+$", first):  # as ids of Gymnasium end
        return {"name": GYMNASIUM, "id": first}, others
    return {"name": first}, others


def _games() -> list[str]:
    return [name for name in names_of(members_of(AnyGameConfig)) if name != GYMNASIUM]


def expected_name(name: str, shipped: Mapping[str, Path]) -> str:
    """Say what a name alone may be."""
    if is_algorithm(name):
        return _expected_game(name, "none", shipped)
    near = nearest(name, shipped)
    hint = f"; did you mean {near!r}?" if near else ""
    return (
        f"expected one of the shipped configs ({', '.join(shipped)}), "
        f"or an algorithm ({_all_algorithms()}) and a game, got {name!r}{hint}"
    )


def _all_algorithms() -> str:
    return ", ".join([*known_algorithms(), *text_algorithms()])


def _expected_game(algorithm: str, got: str, shipped: Mapping[str, Path]) -> str:
    """Say what may follow an algorithm."""
    expected = (
        f"a game after {algorithm} (one of {', '.join(_games())}, the id of a Gymnasium environment such as "
        "CartPole-v1, or a class of your own as package.module:Class)"
    )
    if algorithm in text_algorithms():
        expected = f"a protocol and a scenario after {algorithm}, such as nip claims"
    return f"expected {expected}, got {got}{_shipped_of(algorithm, shipped)}"


def _shipped_of(algorithm: str, shipped: Mapping[str, Path]) -> str:
    own = ", ".join(stem for stem in shipped if stem.split("-")[0] == algorithm)
    return f"; shipped configs: {own or 'none'}"
