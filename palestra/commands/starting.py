"""Finds what the argument FILE of a command names: a file, a shipped config, or an algorithm and a game."""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium

from palestra.config import (
    IMPORT_PATH,
    Config,
    ConfigError,
    ConfigErrorItem,
    apply_overrides,
    check,
    checking,
    load_yaml,
)
from palestra.config.errors import nearest
from palestra.config.own_classes import admits, load_named
from palestra.config.places import Place
from palestra.config.usual import completed
from palestra.config.variants import members_of, names_of
from palestra.data.own_loaders import LoaderConfig
from palestra.games import AnyGameConfig
from palestra.games.dialogue.game import AnyScenarioConfig
from palestra.games.dialogue.protocols import AnyProtocolConfig
from palestra.games.dialogue.tryout import make_protocol
from palestra.runs.base import BaseRunConfig
from palestra.runs.config import AnyAlgorithm, RunConfig
from palestra.runs.fit import AnyDataConfig, AnyModelConfig
from palestra.runs.kinds import kind_of_run, read_config
from palestra.runs.shipped import is_path, named_file, shipped_configs, shipped_tournaments, why_no_file
from palestra.runs.starting import following, for_each_player, remedies, starting_data
from palestra.runs.starting_fit import NO_MODEL, starting_fit
from palestra.runs.text import AnyTextGameConfig, TextConfig
from palestra.sweeps.config import is_sweep
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


def _imported(name: str) -> Any:
    """Return the class or function of the user's own that a text names; None if it names none."""
    with suppress(ValueError):  # the user gets this error when the config is read
        return load_named(name) if ":" in name and admits(name) else None
    return None


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
        own = _imported(name)
        if name in text_algorithms() or (isinstance(own, type) and issubclass(own, TextAlgorithm)):
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
    said: dict[str, Any] = {"name" if isinstance(_imported(about[0]), type | None) else LoaderConfig.key: about[0]}
    if len(about) > 1:
        said = {"name": "scenario", "protocol": {"name": about[0]}, "scenario": {"name": about[1]}}
    overrides = [word for word in words if "=" in word]
    config = starting_fit(model, said, overrides)
    make_trainer(apart_from_this_machine(config))
    return config


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


Data = dict[str, Any]


class _Game(Config):
    game: AnyTextGameConfig
    """the rules"""


def starting_text(algorithm: str, said: Data, overrides: Sequence[str]) -> TextConfig:
    """Return the config of a run in which a player learns by an algorithm in every role of dialogues in words.

    said: of the key `game`: a protocol and a scenario. overrides: those of the game count before it is made. Raises
    ConfigError.
    """
    game = _rules(said, overrides)
    protocol = make_protocol(check({"game": game}, _Game).game.protocol)
    roles = {role: role for role in protocol.roles}
    players = {role: {"algorithm": {"name": algorithm}} for role in roles}
    data: Data = {"game": game, "roles": roles, "players": players, **_evaluations(roles)}
    # What is usual may depend on overrides. Late are those of keys that only the complete file has, and of keys by
    # their last words, which mean one of the complete file.
    late = []
    for override in overrides:
        early = override.partition("=")[0].strip().split(".")[0] in data
        try:
            data = apply_overrides(data, [override] if early else [], TextConfig)
        except ConfigError:
            early = False
        late += [] if early else [override]
    data = completed(data, Place(TextConfig), None)
    with remedies(data, TextConfig):
        config: TextConfig = read_config(data, late)
    return config


def _rules(said: Data, overrides: Sequence[str]) -> Data:
    """Return the key `game`, with the overrides that are about it, of which a usual value may depend on some."""
    own = [override for override in overrides if override.strip().startswith("game.")]
    data: Data = {"game": {**said, "name": "text_dialogue"}}
    for override in own:
        with suppress(ConfigError):  # of a key that only the complete file has
            data = apply_overrides(data, [override], _Game)
    data = apply_overrides(completed(data, Place(_Game), None), own, _Game)
    with remedies(data, _Game):
        check(data, _Game)
    rules: Data = data["game"]
    return rules


def _evaluations(roles: Data) -> Data:
    """Return the keys `evaluations` and `best`: all players together, each beside honest ones, and random ones."""
    alone = [{role: player if role == own else "honest" for role, player in roles.items()} for own in roles]
    pairings = [roles, *(alone if len(roles) > 1 else []), dict.fromkeys(roles, "random")]
    best = {"evaluation": "main", "pairing": 0, "measure": "accuracy", "goal": "max"}
    return {"evaluations": [{"pairings": pairings}], "best": best}


@contextmanager
def naming_remedies(found: "NamedConfig") -> Iterator[None]:
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


def _remedy(found: "NamedConfig") -> str | None:
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
    is_of_gymnasium = isinstance(game, dict) and game["name"] == GYMNASIUM
    return _name(algorithm), game["id"] if is_of_gymnasium else _name(game), loss


def _name(part: Any) -> str:
    """Return the name of a part, which an override may have put in the part's place."""
    return part if isinstance(part, str) else part["name"]


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


def find_config(file: str, words: Sequence[str]) -> NamedConfig:
    """Find the config that the first arguments of a command name.

    words: all arguments after the first; the first of them is a game if it has no '='. Raises ConfigError for a name
    that is unknown.

    A file in the working directory, NAME or NAME.yml, comes before a shipped config of that name. With another loss, a
    shipped config changes in what goes with the loss; a file of the user's own does not.
    """
    if words and "=" not in words[0] and is_algorithm(file):
        title = " ".join([file, *(word for word in words[:2] if "=" not in word)])
        return NamedConfig(title, re.sub(r"[^\w.]+", "-", title), starting_config(file, words), [], None)
    shipped = {path.stem: path for path in shipped_configs()}
    path = named_file(file)
    if path is not None and path == shipped.get(file):
        changed = followed(path, words)
        source, overrides = (path, list(words)) if changed is None else (changed, [])
        return NamedConfig(file, file, source, overrides, None)
    if path is not None:
        note = f"{path}: this file is used, not the config {file} that palestra ships" if file in shipped else None
        return NamedConfig(str(path), path.stem, path, list(words), note)
    if file in shipped_tournaments() and not Path(file).exists():
        raise ConfigError.at(file, f"this is a tournament; to play it: palestra evaluate {file}")
    if not Path(file).exists():
        is_name = not is_path(file) and not Path(f"{file}.yml").is_file()
        raise ConfigError.at(file, expected_name(file, shipped) if is_name else why_no_file(file))
    return NamedConfig(file, Path(file).stem, Path(file), list(words), None)  # a folder
