"""What `palestra config` prints: a shipped config, or a complete one for any Gymnasium environment, which is a shipped
config of the same algorithm with networks that fit the observations. That is a starting point that is not tuned."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from palestra.config import ConfigError, ConfigErrorItem, check, load_config, load_yaml
from palestra.games.gymnasium import GymnasiumConfig, GymnasiumGame
from palestra.games.gymnasium.arguments import is_atari, known_arguments
from palestra.games.gymnasium.environments import make_environment
from palestra.games.gymnasium.wrappers import has_fire
from palestra.games.spaces import Box, Discrete, Space
from palestra.runs.config import RunConfig, read_config
from palestra.training import make_trainer

NATURE_CNN = {
    "name": "nature_cnn",
    "channels": [32, 64, 64],
    "kernels": [8, 4, 3],
    "strides": [4, 2, 1],
    "hidden_widths": [512],
}
IMPALA_CNN = {"name": "impala_cnn", "channels": [16, 32, 32], "hidden_widths": [256]}
MLP = {"name": "mlp", "net_arch": [64, 64], "activation": "relu"}
NETS = ("mlp", "nature_cnn", "impala_cnn", "multi_input")
LEAST_SIDE_OF_NATURE_CNN = 36
DISCRETE_ENTROPY = {  # of SAC (Christodoulou 2019)
    "name": "automatic",
    "initial": 1.0,
    "target_entropy": {"name": "per_log_actions", "factor": 0.98},
    "optimizer": {"name": "adam", "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0},
    "learning_rate": {"name": "constant", "value": 3e-4},
}
ACTION = {"action": Space((1,), torch.float32, padded=False)}  # of any length
MAX_ROUNDS = 27_000  # of an evaluation where the environment has no limit: half an hour of Atari
ATARI_PREPROCESSING = {
    "name": "atari_preprocessing",
    "noop_max": 30,
    "frame_skip": 4,
    "screen_size": 84,
    "terminal_on_life_loss": False,
    "grayscale_obs": True,
    "grayscale_newaxis": False,
    "scale_obs": False,
}
FRAME_STACK = {"name": "frame_stack", "stack_size": 4, "padding_type": "reset"}


def shipped_configs() -> list[Path]:
    """The config files that come with palestra."""
    package = Path(__file__).parents[1]
    folders = (package / "configs", package.parent / "configs")  # installed; in a checkout
    return sorted(path for folder in folders for path in folder.glob("*.yml"))


def suggested_config(name: str, game: str | None) -> RunConfig:
    """The shipped config of an algorithm and a game (None: of the first), or `fitted_config`. Raises ConfigError."""
    known = {path.stem: path for path in shipped_configs()}
    of_name = [stem for stem in known if stem.split("-")[0] == name]
    wanted = [stem for stem in of_name if game is None or stem == f"{name}-{game}"]
    if wanted:
        return load_config(known[wanted[0]], (), RunConfig)
    if of_name and game is not None and "-" in game:
        return fitted_config(name, game, list(known.values()))
    asked = name if game is None else f"{name} {game}"
    there = ", ".join(stem.replace("-", " ", 1) for stem in known)
    raise ConfigError([ConfigErrorItem("config", f"expected one of {there}, got {asked!r}")])


def fitted_config(algorithm: str, env_id: str, shipped: Sequence[Path]) -> RunConfig:
    """A config for an environment: the first shipped Gymnasium config of that algorithm that fits its actions, with its
    usual arguments and with networks that fit its observations. If a config for this environment is shipped, it is
    given unchanged. Atari games only use configs of Atari games, and other environments only those of others.

    shipped: the shipped config files. Raises ConfigError if the environment cannot be made, or if the algorithm cannot
    play it.
    """
    bases = [load_yaml(path) for path in shipped if path.stem.split("-")[0] == algorithm]
    bases = [base for base in bases if base["game"]["name"] == "gymnasium"]
    own = [base for base in bases if base["game"]["id"] == env_id]
    if own:
        return read_config(own[0])
    game = _usual_game(env_id)
    fitted = GymnasiumGame(check(game, GymnasiumConfig), torch.device("cpu"))
    spaces, actions = fitted.spaces["agent"], fitted.action_spaces["agent"]
    errors: list[ConfigErrorItem] = []
    for base in bases:
        if is_atari(base["game"]["id"]) != is_atari(env_id):
            continue
        data = _with_fitting_nets(base, spaces, isinstance(actions, Box)) | {
            "game": game | {"reward": base["game"]["reward"]}
        }
        if algorithm == "sac" and isinstance(actions, Discrete):
            data["players"]["agent"]["algorithm"] |= {"log_std": None, "entropy_coefficient": DISCRETE_ENTROPY}
        max_rounds = game["arguments"].get("max_episode_steps") or MAX_ROUNDS
        data["evaluations"] = [each | {"max_rounds": max_rounds} for each in data["evaluations"]]
        try:
            make_trainer(data)
            return read_config(data)
        except ConfigError as error:
            errors = errors or list(error.errors)
    if not errors:
        message = "no shipped config of this algorithm plays Gymnasium environments"
        if bases:
            message = "no shipped config of this algorithm plays " + ("Atari" if is_atari(env_id) else "such games")
        errors = [ConfigErrorItem(f"{algorithm} {env_id}", message)]
    raise ConfigError(errors)


def _usual_game(env_id: str) -> dict[str, Any]:
    """The config of an environment with its usual arguments; for Atari also the usual wrappers: frames of 84 x 84 grey
    pixels, four of them stacked."""
    game: dict[str, Any] = {
        "name": "gymnasium",
        "id": env_id,
        "arguments": _usual_arguments(env_id),
        "wrappers": [],
        "vectorization": {"name": "sync", "autoreset": "same_step"},
        "observation": {"normalize": None, "clip": None},
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

    known = known_arguments(env_id, vector=False) or {}
    return {name: plain(argument.usual) for name, argument in known.items()}


def _with_fitting_nets(data: Any, spaces: dict[str, Space], is_box: bool) -> Any:
    """The same data, with other networks in place of those that do not fit these observations. is_box: whether critics
    receive an action too."""
    if isinstance(data, list):
        return [_with_fitting_nets(item, spaces, is_box) for item in data]
    if not isinstance(data, dict):
        return data
    if data.get("name") in NETS:
        is_flat = not any(space.is_image for space in spaces.values())
        return data if data["name"] == "mlp" and is_flat else _fitting_net(spaces)
    inputs = {key: spaces | ACTION if key == "critic_net" and is_box else spaces for key in data}
    return {key: _with_fitting_nets(value, inputs[key], is_box) for key, value in data.items()}


def _fitting_net(spaces: dict[str, Space]) -> dict[str, Any]:
    nets = {name: _net_of(space) for name, space in spaces.items()}
    if len(nets) == 1:
        return next(iter(nets.values()))
    return {"name": "multi_input", "entries": nets, "entry_width": 64, "net_arch": [64], "activation": "relu"}


def _net_of(space: Space) -> dict[str, Any]:
    if not space.is_image:
        return MLP
    return NATURE_CNN if min(space.shape[1:]) >= LEAST_SIDE_OF_NATURE_CNN else IMPALA_CNN
