"""Puts a first file together, for players that learn in a game by one algorithm, from the usual values of the parts.

The game says its rules, and may say who trains and who sits where. The algorithm says its keys, which depend on what
each role observes and does. The kind of run says the rest.
"""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import gymnasium
import torch

from palestra.algorithms.off_policy import AnyOffPolicyLoss
from palestra.algorithms.on_policy import AnyOnPolicyLoss
from palestra.config import ConfigError, check, load_yaml
from palestra.config.errors import nearest_hint
from palestra.config.files import apply_fitting, apply_overrides, find_key, keys_ending_in, value_at
from palestra.config.places import Place, place_of
from palestra.config.usual import completed, joined, rebased, remedies
from palestra.config.validation import completed_part
from palestra.config.variants import members_of, names_of
from palestra.data.columns import read_columns
from palestra.data.minari import PREFIX, find_references
from palestra.games import AnyGameConfig, OneGame, make_game
from palestra.games.config import GameConfig, NotDeclared, without_environments
from palestra.games.dialogue.game import AnyScenarioConfig
from palestra.games.dialogue.protocols import AnyProtocolConfig
from palestra.games.game import Game
from palestra.games.spaces import RoleSpaces
from palestra.games.spaces_game import LONE_ROLE, find_spaces
from palestra.kinds.games.config import AnyAlgorithm, RunConfig
from palestra.kinds.games.recorded import find_columns
from palestra.players import SCRIPTED, scripts_for
from palestra.run.base import BaseRunConfig
from palestra.run.kinds import followed, read_config
from palestra.run.shipped import shipped_of
from palestra.runtime.scores import return_of
from palestra.training.opening import make_trainer
from palestra.training.trainable import apart_from_this_machine

ALGORITHM = place_of(AnyAlgorithm)
LOSSES = {"off_policy": AnyOffPolicyLoss, "on_policy": AnyOnPolicyLoss}
FEW_GAMES = {"num_games": 20, "final_num_games": 100}  # of an evaluation
MANY_GAMES = {"num_games": 500, "final_num_games": 3000}  # where shares of them are measured

Data = dict[str, Any]


def starting_data(algorithm: str, said: Data, overrides: Sequence[str]) -> Data:
    """A file in which an algorithm learns in all roles of a game; keys for which no part has a value are left out.

    algorithm: its name, or that of a loss by which one learns. said: of the key `game`. overrides: those of the game
    count before it is made; any other counts where parts that go with what it names are chosen, but is not applied. One
    that names a file of recorded play fills its columns, and, with the game `spaces`, roles and spaces; players of whom
    none is named play at random. Raises ConfigError if the game cannot be made.
    """
    files = _recorded_by(overrides)
    file = next(iter(files.values()), None)
    if file is not None and said["name"] == "spaces":
        columns = find_columns(file, None, LONE_ROLE, overrides)  # first, because its errors name the key
        said = find_spaces(read_columns(file), columns, LONE_ROLE) | said
    rules: Data = completed_part("game", said, overrides, OneGame)
    config: GameConfig = check({"game": rules}, OneGame).game
    game = config.build(torch.device("cpu"), "numba")
    losses = known_losses()
    learner: Data = {"name": algorithm}
    if algorithm in losses:
        learner = {"name": losses[algorithm], "loss": {"name": algorithm}}
    model: Any = ALGORITHM.model_of(learner)
    if file is not None and model is not None and "replay_buffer" not in model.model_fields:
        known = names_of(tuple(each for each in members_of(AnyAlgorithm) if "replay_buffer" in each.model_fields))
        message = f"expected an algorithm with a replay buffer ({', '.join(known)}), got {algorithm!r}"
        raise ConfigError.at("replay_buffer.file", f"{message}, which learns from its own play alone")
    beside = joined(getattr(model, "usual_run", {}), dict(config.usual_run))
    beside |= {} if file is None else {"trainer": "in_turn"}  # with `together` all learners play
    roles = beside.get("roles") or {role: role for role in game.roles}
    players: Data = {}
    for whose in files.keys() - {None, *roles.values()}:
        names = ", ".join(dict.fromkeys(roles.values()))
        raise ConfigError.at(f"players.{whose}", f"unknown key; the known players: {names}")
    for role, player in roles.items():
        if player in players:
            continue
        own = files.get(player, files.get(None))
        if own is not None or not files or "random" not in scripts_for(game, config, role):
            given = {} if own is None else _learning_from(own, find_columns(own, game, role, overrides, player))
            players[player] = {"algorithm": completed(learner | given, ALGORITHM, spaces_of(game, role))}
        else:
            players[player] = {"scripted": "random"}
    learning = [role for role, player in roles.items() if "algorithm" in players[player]]
    data = {"game": rules, "roles": roles, "players": players, **_evaluations(config, game, roles, learning, file)}
    data = completed(joined(data, beside), Place(RunConfig))
    return following(data, for_each_player(data, overrides), game)


def _recorded_by(overrides: Sequence[str]) -> dict[str | None, str]:
    """Return the files of recorded play that overrides name, by whose they are; None: all players'."""
    found = {}
    for override in overrides:
        path, _, value = override.partition("=")
        if f".{path.strip()}".endswith(".replay_buffer.file"):
            read = apply_overrides({"file": ""}, [f"file={value}"])["file"]
            found[path.split(".")[1] if path.startswith("players.") else None] = str(read)
    return found


def _learning_from(file: str, columns: Data) -> Data:
    """What a first file says of an algorithm that learns from recorded play alone."""
    return {
        "replay_buffer": {"name": "data_set", "file": file, "columns": columns},
        "rollout_length": None,
        "warmup_env_steps": 0,
    }


def for_each_player(data: Data, overrides: Sequence[str]) -> list[str]:
    """Overrides of which one of a key that all players have, and nothing else has, becomes one for each player."""
    found: list[str] = []
    for override in overrides:
        path, _, value = override.partition("=")
        keys = keys_ending_in(data, path.strip())
        same = {tuple(key.split(".")[2:]) for key in keys if key.startswith("players.")}
        is_of_all = len(same) == 1 and len(keys) == len(data["players"]) > 1
        found += [f"{key}={value}" for key in keys] if is_of_all else [override]
    return found


def spaces_of(game: Game, role: str) -> RoleSpaces:
    """The spaces of a role, which the parts of its player are told."""
    return RoleSpaces(game.spaces[role], game.action_spaces[role], dict(game.critic_spaces.get(role, {})))


def _evaluations(
    config: GameConfig, game: Game, roles: dict[str, str], learning: Sequence[str], file: str | None
) -> Data:
    """The keys `evaluations` and `best`. learning: the roles in which somebody learns.

    Pairings are each of these against the scripted players of the game, all learning players together, and only random
    ones, if actions can be drawn at random in the game. A data set of Minari's, `file`, may say references.
    """
    if not config.can_be_played:
        return {"evaluations": [], "best": None}
    scripts = {
        role: [name for name in scripts_for(game, config, role) if name == "random" or SCRIPTED[name].game_config]
        for role in roles
    }
    alone = [
        {each: roles[each] if each == role else name for each in roles}
        for role in learning
        for name in SCRIPTED
        if all(name in scripts[other] for other in roles if other != role) and (len(roles) > 1 or name == "random")
    ]
    together = [dict(roles)] if len(roles) > 1 or not alone else []
    nobody = [dict.fromkeys(roles, "random")] if all("random" in names for names in scripts.values()) else []
    returns = {return_of(role) for role in roles}
    measures = [score.name for score in config.declared_scores() if score.name not in returns]
    best: Data = {"pairing": 0, "measure": return_of(learning[0])}
    if measures:
        best = {"pairing": len(alone + together) - 1, "measure": measures[0]}
    evaluation = {
        **(MANY_GAMES if len(roles) > 1 or measures else FEW_GAMES),
        "at_start": config.unset_limit() is None,  # an evaluation without an end would look like a hang
        "max_rounds": config.usual_rounds(),
        "pairings": [*alone, *together, *nobody],
    }
    if file is not None and file.startswith(PREFIX) and (references := find_references(file)) is not None:
        evaluation["references"] = dict.fromkeys(roles, references)
    return {"evaluations": [evaluation], "best": {"evaluation": "main", **best, "goal": "max"}}


def following(data: Data, overrides: Sequence[str], game: Game | None = None) -> Data:
    """Change the data of a file, before its overrides, to what fits the parts that the overrides name.

    Another loss, for instance, brings its heads, its estimator, and how the player acts. game: None: that of the file,
    without environments.
    """
    after = apply_fitting(data, overrides, RunConfig)
    players = dict(data["players"])
    for role, name in data["roles"].items():
        before, now = (_algorithm(each, name) for each in (data, after))
        if before == now or None in (before, now) or before["name"] != now["name"]:
            continue
        with suppress(ConfigError, NotDeclared), without_environments():
            spaces = spaces_of(game or make_game(after["game"]), role)
            made = [completed({"name": now["name"]}, ALGORITHM, spaces, said) for said in (before, now)]
            players[name] = players[name] | {"algorithm": rebased(before, *made)}
    return data | {"players": players}


def _algorithm(data: Data, player: str) -> Any:
    """The mapping by which a player learns; None where an override has put anything else in its place."""
    found = value_at(data, f"players.{player}.algorithm") if find_key(data, f"players.{player}.algorithm") else None
    return found if isinstance(found, dict) and "name" in found else None


# ---- what the user has typed ----------------------------------------------------------------------

GYMNASIUM = "gymnasium"


def known_algorithms() -> list[str]:
    """Return the names of the algorithms of players in games, without the user's own."""
    return list(names_of(members_of(AnyAlgorithm)))


def known_losses() -> dict[str, str]:
    """Return the algorithm that learns by each loss of a name that no algorithm has, without the user's own."""
    names = {name: algorithm for algorithm, union in LOSSES.items() for name in names_of(members_of(union))}
    return {name: names[name] for name in names if ":" not in name and name not in known_algorithms()}


def named_game(name: str, words: Sequence[str], shipped: Mapping[str, Path]) -> BaseRunConfig:
    """Return a config for an algorithm or loss and a game: a shipped one if there is one, else one of their parts.

    words: the game, and overrides. Raises ConfigError.
    """
    if not words or "=" in words[0]:
        raise ConfigError.at(name, _expected_game(name, "none", shipped))
    game, overrides = game_and_overrides(words)
    tuned = None if _recorded_by(overrides) else _tuned(name, game, shipped)  # those play
    if tuned is not None:
        return followed(tuned, overrides) or read_config(tuned, overrides)
    if not _is_game(game):
        near = nearest_hint(words[0], gymnasium.registry)
        raise ConfigError.at(f"{name} {words[0]}", _expected_game(name, repr(words[0]), shipped) + near)
    data = starting_data(name, game, overrides)
    with remedies(data, RunConfig):
        config: RunConfig = read_config(data, for_each_player(data, overrides))
    make_trainer(apart_from_this_machine(config))
    return config


def _tuned(algorithm: str, game: Mapping[str, Any], shipped: Mapping[str, Path]) -> Path | None:
    """Return the shipped config of an algorithm for a game, if there is one: by the game, else by its own name."""
    if not _is_game(game):
        return shipped.get(f"{algorithm}-{game['name']}")
    own = (shipped[stem] for stem in sorted(shipped, key=len) if stem.split("-")[0] == algorithm)  # leagues last
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


def _expected_game(algorithm: str, got: str, shipped: Mapping[str, Path]) -> str:
    """Say what may follow an algorithm."""
    expected = (
        f"a game after {algorithm} (one of {', '.join(_games())}, the id of a Gymnasium environment such as "
        "CartPole-v1, or a class of your own as package.module:Class)"
    )
    return f"expected {expected}, got {got}{shipped_of(algorithm, shipped)}"
