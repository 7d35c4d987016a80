"""What `palestra config` prints: a shipped config, or a complete one for an algorithm and a game. For a Gymnasium
environment that is a shipped config of the same algorithm with networks that fit the observations: a starting point
that is not tuned."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from palestra.commands.fitting_nets import with_fitting_nets
from palestra.commands.suggest_loss import with_loss
from palestra.commands.suggest_tensor_game import (
    DISCRETE_ENTROPY,
    config_that_trains,
    tensor_game_config,
    with_overrides_of_game,
)
from palestra.config import ConfigError, ConfigErrorItem, below, check, checking, load_yaml
from palestra.config.errors import nearest
from palestra.config.variants import members_of, names_of
from palestra.games import AnyGameConfig
from palestra.games.gymnasium import GymnasiumConfig, GymnasiumGame
from palestra.games.gymnasium.arguments import is_atari, known_arguments
from palestra.games.gymnasium.environments import has_limit, make_environment, registered
from palestra.games.gymnasium.wrappers import has_fire
from palestra.games.spaces import Box, Discrete
from palestra.runs.config import AnyAlgorithm, RunConfig, read_config
from palestra.runs.shipped_configs import shipped_configs

GYMNASIUM = "gymnasium"
MAX_ROUNDS = 1000  # of an evaluation where the environment has no limit
MAX_ROUNDS_OF_ATARI = 27_000  # half an hour
ATARI_PREPROCESSING = {
    "name": "gymnasium.wrappers:AtariPreprocessing",
    "arguments": {
        "noop_max": 30,
        "frame_skip": 4,
        "screen_size": 84,
        "terminal_on_life_loss": False,
        "grayscale_obs": True,
        "grayscale_newaxis": False,
        "scale_obs": False,
    },
}
FRAME_STACK = {
    "name": "gymnasium.wrappers:FrameStackObservation",
    "arguments": {"stack_size": 4, "padding_type": "reset"},
}


def known_algorithms() -> list[str]:
    """The names of the algorithms, without the user's own."""
    return list(names_of(members_of(AnyAlgorithm)))


def suggested_config(name: str, game: str | None, overrides: Sequence[str] = ()) -> RunConfig:
    """The shipped config of that name, or that of an algorithm and a game, which may be made for them; then the
    overrides. Modules that they name are imported, and not trusted by that. Raises ConfigError."""
    with checking():
        return _suggested(name, game, overrides)


def _suggested(name: str, game: str | None, overrides: Sequence[str]) -> RunConfig:
    shipped = {path.stem: path for path in shipped_configs()}
    if game is None:
        if name not in shipped:
            raise ConfigError.at(name, expected_name(name, shipped))
        return read_config(with_loss(load_yaml(shipped[name]), overrides), overrides)
    if name not in known_algorithms():
        own = "; print the file of one of these, and replace its keys under `algorithm` by yours" if ":" in name else ""
        raise ConfigError.at(name, f"expected one of the algorithms {', '.join(known_algorithms())}, got {name!r}{own}")
    if _is_batched(game):
        data = {stem: load_yaml(path) for stem, path in shipped.items()}
        data |= {stem: with_loss(each, overrides) for stem, each in data.items() if stem.split("-")[0] == name}
        for stem in (f"{name}-{game}", f"{name}-{game}-batched"):
            if stem in data and data[stem]["game"]["name"] == game:
                return read_config(data[stem], overrides)
        bases = {stem: each for stem, each in data.items() if not is_atari(each["game"].get("id", ""))}
        return tensor_game_config(name, game, overrides, bases)
    if f"{name}-{game}" in shipped:
        return read_config(with_loss(load_yaml(shipped[f"{name}-{game}"]), overrides), overrides)
    if "-" not in game:
        raise ConfigError.at(f"{name} {game}", _expected_game(name, repr(game), shipped))
    return fitted_config(name, game, list(shipped.values()), overrides)


def _is_batched(game: str) -> bool:
    """Whether it names a game of palestra, or a class of the user's own; ids of Gymnasium end with their version."""
    return game in _batched_games() or (":" in game and "-" not in game)


def is_known_game(name: str) -> bool:
    """Whether it is a game of palestra, or an environment that is registered with Gymnasium. Imports nothing."""
    return name in _batched_games() or known_arguments(name, vector=False) is not None


def _batched_games() -> list[str]:
    return [name for name in names_of(members_of(AnyGameConfig)) if name != GYMNASIUM]


def expected_name(name: str, shipped: Mapping[str, Path]) -> str:
    """What a name alone may be."""
    if name in known_algorithms():
        return _expected_game(name, "none", shipped)
    near = nearest(name, shipped)
    hint = f"; did you mean {near!r}?" if near else ""
    algorithms = ", ".join(known_algorithms())
    return (
        f"expected one of the shipped configs ({', '.join(shipped)}), or an algorithm ({algorithms}) and a game, got "
        f"{name!r}{hint}"
    )


def _expected_game(algorithm: str, got: str, shipped: Mapping[str, Path]) -> str:
    """What may follow an algorithm."""
    own = ", ".join(stem for stem in shipped if stem.split("-")[0] == algorithm)
    return (
        f"expected a game after {algorithm} (one of {', '.join(_batched_games())}, the id of a Gymnasium environment "
        f"such as CartPole-v1, or a class of your own as package.module:Class), got {got}; shipped configs: {own}"
    )


def fitted_config(algorithm: str, env_id: str, shipped: Sequence[Path], overrides: Sequence[str]) -> RunConfig:
    """A config for an environment: the first shipped Gymnasium config of that algorithm that fits its actions, with its
    usual arguments and with networks that fit its observations. If a config for this environment is shipped, it is
    given, with the loss that an override names. Atari games only use configs of Atari games, and
    other environments only those of others.

    shipped: the shipped config files. overrides: of all keys; those of the game count before it is made. Raises
    ConfigError if the environment cannot be made, or if the algorithm cannot play it.
    """
    bases = [with_loss(load_yaml(path), overrides) for path in shipped if path.stem.split("-")[0] == algorithm]
    bases = [base for base in bases if base["game"]["name"] == "gymnasium"]
    own = [base for base in bases if base["game"]["id"] == env_id]
    if own:
        return read_config(own[0], overrides)
    game = with_overrides_of_game(_usual_game(env_id), overrides)
    fitted = _made(game)
    spaces, actions = fitted.spaces["agent"], fitted.action_spaces["agent"]
    errors: list[ConfigErrorItem] = []
    for base in bases:
        if is_atari(base["game"]["id"]) != is_atari(env_id):
            continue
        data = with_fitting_nets(base, spaces, isinstance(actions, Box)) | {
            "game": game | {"reward": base["game"]["reward"]}
        }
        if algorithm == "sac" and isinstance(actions, Discrete):
            data["players"]["agent"]["algorithm"] |= {"log_std": None, "entropy_coefficient": DISCRETE_ENTROPY}
        data["evaluations"] = [each | _length_of_games(fitted.config) for each in data["evaluations"]]
        if isinstance(actions, Box) and not actions.is_bounded:
            for each in data["evaluations"]:  # nobody can draw uniformly there
                each["pairings"] = [pairing for pairing in each["pairings"] if pairing != {"agent": "random"}]
        if (found := config_that_trains(data, overrides, errors)) is not None:
            return found
    if not errors:
        message = "no shipped config of this algorithm plays Gymnasium environments"
        if bases:
            message = "no shipped config of this algorithm plays " + ("Atari" if is_atari(env_id) else "such games")
        errors = [ConfigErrorItem(f"{algorithm} {env_id}", message)]
    raise ConfigError(errors)


def _length_of_games(game: GymnasiumConfig) -> dict[str, Any]:
    """The keys of an evaluation that say how long its games may last. Where nothing ends an episode, the first
    evaluation would look like a hang."""
    limit = game.arguments.get("max_episode_steps")
    if limit is not None:
        return {"max_rounds": limit}
    if has_limit(game):
        return {"max_rounds": MAX_ROUNDS_OF_ATARI if is_atari(game.id) else MAX_ROUNDS}
    return {"max_rounds": MAX_ROUNDS, "at_start": False}


def _made(game: dict[str, Any]) -> GymnasiumGame:
    with below("game"):
        config = check(game, GymnasiumConfig)
    try:
        return GymnasiumGame(config, torch.device("cpu"))
    except ConfigError as error:
        items = []
        for item in error.errors:
            given = "game.arguments.NAME=VALUE" if "required" in item.message else ""  # Python's word for no default
            if item.path == "game.observation.channels":
                given = "game.observation.channels=last"
            remedy = f"; give it after {game['id']}, as {given}" if given else ""
            items.append(ConfigErrorItem(item.path, item.message + remedy))
        raise ConfigError(items) from error


def _usual_game(env_id: str) -> dict[str, Any]:
    """The config of an environment with its usual arguments; for Atari also the usual wrappers: frames of 84 x 84 grey
    pixels, four of them stacked."""
    game: dict[str, Any] = {
        "name": "gymnasium",
        "id": env_id,
        "arguments": _usual_arguments(env_id),
        "wrappers": [],
        "vectorization": {"name": "sync", "autoreset": "same_step"},
        "observation": {"normalize": None, "clip": None, "channels": None},
        "reward": {"normalize": None, "clip": None},
    }
    if is_atari(env_id):
        game["arguments"] |= {"frameskip": 1, "obs_type": "grayscale"}  # the wrapper skips frames and reads the screen
        env = make_environment(check(game, GymnasiumConfig))
        game["wrappers"] = [ATARI_PREPROCESSING, *([{"name": "fire"}] if has_fire(env) else []), FRAME_STACK]
        env.close()
    return game


def _usual_arguments(env_id: str) -> dict[str, Any]:
    def plain(value: Any) -> Any:
        if isinstance(value, tuple):
            return [plain(item) for item in value]
        return None if isinstance(value, float) and math.isinf(value) else value

    known = known_arguments(env_id, vector=False)
    if known is None:
        spec = registered(env_id)
        return {} if spec is None else {"max_episode_steps": spec.max_episode_steps}
    return {name: plain(argument.usual) for name, argument in known.items()}
