"""Puts a first file together, for players that learn in a game by one algorithm, from the usual values of the parts.

The game says its rules, and may say who trains and who sits where. The algorithm says its keys, which depend on what
each role observes and does. The kind of run says the rest.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch

from palestra.config import Config, ConfigError, ConfigErrorItem, apply_overrides, check
from palestra.config.files import find_key, keys_ending_in, value_at
from palestra.config.places import Place, place_of
from palestra.config.usual import completed, joined, lacking, rebased
from palestra.games import OneGame, make_game
from palestra.games.config import GameConfig, NotDeclared, without_environments
from palestra.games.game import Game
from palestra.games.spaces import RoleSpaces
from palestra.players import SCRIPTED, scripts_for
from palestra.runs.config import AnyAlgorithm, RunConfig
from palestra.runtime.scores import return_of

ALGORITHM = place_of(AnyAlgorithm)
FEW_GAMES = {"num_games": 20, "final_num_games": 100}  # of an evaluation
MANY_GAMES = {"num_games": 500, "final_num_games": 3000}  # where shares of them are measured

Data = dict[str, Any]


def starting_data(algorithm: str, said: Data, overrides: Sequence[str]) -> Data:
    """A file in which an algorithm learns in all roles of a game; keys for which no part has a value are left out.

    said: of the key `game`. overrides: those of the game count before it is made; any other counts where parts that go
    with what it names are chosen, but is not applied. Raises ConfigError if the game cannot be made.
    """
    rules = _rules(said, overrides)
    config: GameConfig = check({"game": rules}, OneGame).game
    game = config.build(torch.device("cpu"), "numba")
    model: Any = ALGORITHM.model_of({"name": algorithm})
    beside = joined(getattr(model, "usual_run", {}), dict(config.usual_run))
    roles = beside.get("roles") or {role: role for role in game.roles}
    players: Data = {}
    for role, player in roles.items():
        if player not in players:
            players[player] = {"algorithm": completed({"name": algorithm}, ALGORITHM, spaces_of(game, role))}
    data = {"game": rules, "roles": roles, "players": players, **_evaluations(config, game, roles)}
    data = completed(joined(data, beside), Place(RunConfig))
    return following(data, for_each_player(data, overrides), game)


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


def _rules(said: Data, overrides: Sequence[str]) -> Data:
    """The key `game`, with the overrides that are about it, of which a usual value may depend on some."""
    own = [override for override in overrides if override.strip().startswith("game.")]
    data = {"game": said}
    for override in own:
        with suppress(ConfigError):
            data = apply_overrides(data, [override], OneGame)
    data = apply_overrides(completed(data, Place(OneGame), None), own, OneGame)
    with remedies(data, OneGame):
        check(data, OneGame)
    return data["game"]


def spaces_of(game: Game, role: str) -> RoleSpaces:
    """The spaces of a role, which the parts of its player are told."""
    return RoleSpaces(game.spaces[role], game.action_spaces[role], dict(game.critic_spaces.get(role, {})))


def _evaluations(config: GameConfig, game: Game, roles: dict[str, str]) -> Data:
    """The keys `evaluations` and `best`.

    Pairings are each role against the scripted players of the game, all learning players together, and only random
    ones, if actions can be drawn at random in the game.
    """
    scripts = {
        role: [name for name in scripts_for(game, config, role) if name == "random" or SCRIPTED[name].game_config]
        for role in roles
    }
    alone = [
        {each: roles[each] if each == role else name for each in roles}
        for role in roles
        for name in SCRIPTED
        if all(name in scripts[other] for other in roles if other != role) and (len(roles) > 1 or name == "random")
    ]
    together = [dict(roles)] if len(roles) > 1 or not alone else []
    nobody = [dict.fromkeys(roles, "random")] if all("random" in names for names in scripts.values()) else []
    returns = {return_of(role) for role in roles}
    measures = [score.name for score in config.declared_scores() if score.name not in returns]
    best: Data = {"pairing": 0, "measure": return_of(next(iter(roles)))}
    if measures:
        best = {"pairing": len(alone + together) - 1, "measure": measures[0]}
    evaluation = {
        **(MANY_GAMES if len(roles) > 1 or measures else FEW_GAMES),
        "at_start": config.unset_limit() is None,  # an evaluation without an end would look like a hang
        "max_rounds": config.usual_rounds(),
        "pairings": [*alone, *together, *nobody],
    }
    return {"evaluations": [evaluation], "best": {"evaluation": "main", **best, "goal": "max"}}


@contextmanager
def remedies(data: Data, model: type[Config]) -> Iterator[None]:
    """A context in which errors about keys that have no usual value say how to give them."""
    try:
        yield
    except ConfigError as error:
        unsaid = set(lacking(data, Place(model)))
        remedy = {path: f"; give it, as {path}=VALUE" for path in unsaid}
        items = [ConfigErrorItem(each.path, each.message + remedy.get(each.path, "")) for each in error.errors]
        raise ConfigError(items) from error


def following(data: Data, overrides: Sequence[str], game: Game | None = None) -> Data:
    """Change the data of a file, before its overrides, to what fits the parts that the overrides name.

    Another loss, for instance, brings its heads, its estimator, and how the player acts. game: None: that of the file,
    without environments.
    """
    after = data
    for override in overrides:
        with suppress(ConfigError):  # the user gets this error when the file is read
            after = apply_overrides(after, [override], RunConfig)
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
