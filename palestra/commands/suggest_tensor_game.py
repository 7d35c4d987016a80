"""Complete configs for the batched games, those of palestra and those of a user's own class: the rules and the seats
from the game, the rest from a shipped config of the algorithm. That is a starting point that is not tuned."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from palestra.commands.fitting_nets import DEEP_SETS, NEWTON_SETS, with_fitting_nets
from palestra.config import ConfigError, ConfigErrorItem, admitted_class, apply_overrides, check
from palestra.config.variants import members_of, names_of
from palestra.games import AnyGameConfig, OneGame, make_game
from palestra.games.game import Game, TensorGame
from palestra.games.normalization import ObservationConfig
from palestra.games.spaces import Box, Discrete
from palestra.runs.config import RunConfig, read_config
from palestra.runtime.scores import return_of
from palestra.training import make_trainer
from palestra.training.trainable import apart_from_this_machine

DISCRETE_ENTROPY = {  # of SAC (Christodoulou 2019)
    "name": "automatic",
    "initial": 1.0,
    "target_entropy": {"name": "per_log_actions", "factor": 0.98},
    "optimizer": {"name": "adam", "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0},
    "learning_rate": {"name": "constant", "value": 3e-4},
}
MANY_GAMES = {"num_games": 500, "final_num_games": 3000}
MAX_ROUNDS = 1000  # of an evaluation where the game has no limit

Data = dict[str, Any]


def tensor_game_config(algorithm: str, game: str, overrides: Sequence[str], shipped: Mapping[str, Data]) -> RunConfig:
    """A config in which every role of a batched game learns by that algorithm.

    game: its name, or package.module:Class. overrides: those of keys of the game count before it is made, so that they
    can say what no config says yet, and those of `centralized_critic` before networks are chosen. shipped: the shipped
    configs by name, without those of Atari games. Raises ConfigError if the game cannot be made or the algorithm cannot
    play it.
    """
    has_usual = bool(getattr(_model(game), "usual", {}))  # then its roles may be others than those of a shipped config
    same_game = [data for data in shipped.values() if data["game"]["name"] == game and not has_usual]
    rules = _rules(game, same_game, overrides)
    made = _made(rules)
    declared = check({"game": rules}, OneGame).game
    returns = {return_of(role) for role in made.roles}
    measures = [score.name for score in declared.declared_scores() if score.name not in returns]
    seats = _seats_of(same_game[0]) if same_game else _seats(rules, made, measures)
    trainer = same_game[0]["trainer"] if same_game else {"name": declared.usual_trainer}
    errors: list[ConfigErrorItem] = []
    has_many_games = len(made.roles) > 1 or bool(measures)  # in evaluations: shares of games want them
    for base in _bases(algorithm, game, has_many_games, shipped):
        data = base | {"game": rules} | _players(base, seats["roles"], made, game)
        [evaluation, *_] = base["evaluations"]
        if has_many_games:
            evaluation = evaluation | {key: max(evaluation[key], num) for key, num in MANY_GAMES.items()}
        data |= {"evaluations": [evaluation | seats["evaluation"]], "best": seats["best"]}
        data["trainer"] = trainer
        data["output"] = base["output"] | {"info": []}
        data = _with_nets_of_critics(data, made, overrides)
        if (found := config_that_trains(data, overrides, errors)) is not None:
            return found
    raise ConfigError([ConfigErrorItem(f"{algorithm} {game}", str(error)) for error in errors])


def config_that_trains(data: Data, overrides: Sequence[str], errors: list[ConfigErrorItem]) -> RunConfig | None:
    """The config that a base and the overrides make together; None if it cannot be trained, and why goes into `errors`
    if these are the first. Raises ConfigError if the base alone could be trained: then the overrides are at fault."""
    try:
        config: RunConfig = read_config(data, overrides)
        make_trainer(apart_from_this_machine(config))
        return config
    except ConfigError as error:
        try:
            make_trainer(data)
        except ConfigError:
            errors += [] if errors else error.errors
            return None
        raise


# ---- the game --------------------------------------------------------------------------------------


def _rules(game: str, same_game: Sequence[Data], overrides: Sequence[str]) -> Data:
    """The key `game`: as its class finds it usual, or as a shipped config has it; then the overrides."""
    model = _model(game)
    usual = dict(getattr(model, "usual", {}))
    rules: Data = dict(same_game[0]["game"]) if same_game else {"name": game} | usual
    observation = getattr(model, "model_fields", {}).get("observation")
    if observation is not None and observation.annotation is ObservationConfig:
        rules.setdefault("observation", {"normalize": None, "clip": None})
    return with_overrides_of_game(rules, overrides)


def with_overrides_of_game(rules: Data, overrides: Sequence[str]) -> Data:
    """The key `game` with those overrides that are about it; they may also say what is not there yet."""
    for override in overrides:
        path, _, _ = override.partition("=")
        first, _, key = path.strip().partition(".")
        if first != "game" or not key:
            continue
        rules = copy.deepcopy(rules)
        *parents, last = key.split(".")
        place: Any = rules
        for parent in parents:
            place = place.get(parent) if isinstance(place, dict) else None
        if isinstance(place, dict):
            place.setdefault(last, None)  # an override replaces a value
        rules = apply_overrides({"game": rules}, [override])["game"]
    return rules


def _model(game: str) -> Any:
    """The config class of a game; None for a class of the user's own that has none."""
    if ":" in game:
        base: Any = TensorGame
        try:
            return getattr(admitted_class(game, base), "Config", None)
        except ValueError as error:
            raise ConfigError.at(game, str(error)) from error
    return names_of(members_of(AnyGameConfig))[game]


def _made(rules: Data) -> Game:
    try:
        return make_game(rules)
    except ConfigError as error:
        raise ConfigError([_with_remedy(item, rules) for item in error.errors]) from error


def _with_remedy(item: ConfigErrorItem, rules: Data) -> ConfigErrorItem:
    """A key without a usual value must be given in the command."""
    if not item.message.endswith("the key is missing"):
        return item
    return ConfigErrorItem(item.path, f"{item.message}; give it after {rules['name']}, as {item.path}=VALUE")


# ---- who plays -------------------------------------------------------------------------------------


def _seats_of(shipped: Data) -> Data:
    """Roles, pairings and the measure of a shipped config of the same game."""
    [evaluation, *_] = shipped["evaluations"]
    played = {key: evaluation[key] for key in ("pairings", "max_rounds")}
    return {"roles": shipped["roles"], "evaluation": played, "best": shipped["best"]}


def _seats(rules: Data, game: Game, measures: Sequence[str]) -> Data:
    """A player for every role; evaluations of all of them together, and of each among random ones."""
    roles = game.roles
    random = dict.fromkeys(roles, "random")
    alone = [random | {role: role} for role in roles]
    together = [{role: role for role in roles}] if len(roles) > 1 else []
    best: Data = {"pairing": 0, "measure": f"return/{roles[0]}"}
    if measures:  # of all of them together, or of the one that there is
        best = {"pairing": len(alone + together) - 1, "measure": measures[0]}
    return {
        "roles": {role: role for role in roles},
        "evaluation": {"pairings": [*alone, *together, random], "max_rounds": rules.get("max_rounds") or MAX_ROUNDS},
        "best": {"evaluation": "main", **best, "goal": "max"},
    }


def _players(base: Data, roles: Mapping[str, str], game: Game, name: str) -> Data:
    """The keys `roles` and `players`: everybody learns as the first player of the base does, with fitting networks."""
    learner = next(player for player in base["players"].values() if "algorithm" in player)
    sets_net = NEWTON_SETS if name == "polyhedra" else DEEP_SETS
    players: Data = {}
    for role, player in roles.items():
        actions = game.action_spaces[role]
        algorithm = with_fitting_nets(learner["algorithm"], game.spaces[role], isinstance(actions, Box), sets_net)
        if algorithm["name"] == "sac" and isinstance(actions, Discrete):
            algorithm |= {"log_std": None, "entropy_coefficient": DISCRETE_ENTROPY}
        players.setdefault(player, {"algorithm": algorithm, "warm_start": None, "updates": {"name": "constant"}})
    return {"roles": dict(roles), "players": players}


def _with_nets_of_critics(data: Data, game: Game, overrides: Sequence[str]) -> Data:
    """With networks of values that fit what the game shows critics, too, where overrides ask for it."""
    asking = [each for each in overrides if each.partition("=")[0].strip().endswith("centralized_critic")]
    data = apply_overrides(data, asking)
    for role, player in data["roles"].items():
        algorithm = data["players"][player]["algorithm"]
        if algorithm.get("centralized_critic") is True and "value" in algorithm["body"]:
            spaces = {**game.spaces[role], **game.critic_spaces.get(role, {})}
            algorithm["body"]["value"] = with_fitting_nets(algorithm["body"]["value"], spaces, is_box=False)
    return data


def _bases(algorithm: str, game: str, has_many_games: bool, shipped: Mapping[str, Data]) -> list[Data]:
    """The shipped configs of that algorithm, the most similar first: that of the environment of the same name, then
    those of several roles, whose evaluations play many games, or of one role, short runs first."""

    def distance(stem: str) -> tuple[bool, bool, float]:
        base = shipped[stem]
        return stem != f"{algorithm}-{game}", (len(base["roles"]) > 1) != has_many_games, base["stop"]["after"]

    stems = [stem for stem in shipped if stem.split("-")[0] == algorithm]
    return [shipped[stem] for stem in sorted(stems, key=distance)]
