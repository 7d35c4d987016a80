"""The arguments of known environments, each with its usual value, so that a config must name all of them.

Known are the environments of gymnasium, whose arguments are read from its source, and of ale-py. Arguments of
rendering (`render_mode`, `default_camera_config`) are left out, because they do not change what is learned.
`max_episode_steps` is an argument of gymnasium itself: an episode is truncated after so many steps; None: never.
"""

import ast
import difflib
import math
import re
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from palestra.config import ConfigErrorItem
from palestra.config.errors import listed, nearest, shown


@dataclass(frozen=True)
class Argument:
    """One argument: its usual value, and the types that it accepts; float accepts integers too."""

    usual: Any
    kinds: tuple[type, ...]


class Range(tuple):
    """A lower and an upper bound; null in a config means no bound."""


GYMNASIUMS_OWN = r"gymnasium\.envs\.(classic_control|toy_text|box2d|mujoco)\.\w+:\w+"
RENDERING = ("render_mode", "default_camera_config")
STEPS = (int, type(None))
KINDS = {"bool": bool, "int": int, "float": float, "str": str, "list": list, "tuple": tuple, "None": type(None)}
KIND_NAMES = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "a string",
    list: "a list",
    tuple: "a list",
    Range: "a list of two numbers (null: no bound)",
    type(None): "null",
}

_INF = float("inf")
_ATARI = {
    "mode": Argument(None, (int, type(None))),
    "difficulty": Argument(None, (int, type(None))),
    "obs_type": "rgb",
    "frameskip": Argument(4, (int, tuple)),
    "repeat_action_probability": 0.25,
    "full_action_space": False,
    "continuous": False,
    "continuous_action_threshold": 0.5,
    "max_num_frames_per_episode": Argument(108000, (int, type(None))),
    "sound_obs": False,
    "max_episode_steps": Argument(None, STEPS),
}


# Environments that come as a vector of their own (`vectorization: {name: entry_point}`) have other arguments.
VECTOR_ENVIRONMENTS: dict[str, dict[str, Any]] = {
    "CartPole-v0": {"max_episode_steps": Argument(200, (int,)), "sutton_barto_reward": False},
    "CartPole-v1": {"max_episode_steps": Argument(500, (int,)), "sutton_barto_reward": False},
}
_ATARI_VECTOR = {
    "batch_size": 0,
    "num_threads": 0,
    "thread_affinity_offset": -1,
    "max_num_frames_per_episode": 108000,
    "repeat_action_probability": 0.25,
    "full_action_space": False,
    "continuous": False,
    "continuous_action_threshold": 0.5,
    "autoreset_mode": "NextStep",
    "img_height": 84,
    "img_width": 84,
    "grayscale": True,
    "stack_num": 4,
    "frameskip": 4,
    "maxpool": True,
    "noop_max": 30,
    "episodic_life": False,
    "life_loss_info": False,
    "reward_clipping": True,
    "use_fire_reset": True,
}


def is_atari(env_id: str) -> bool:
    """Tell whether ale-py registers such an id: ALE/Pong-v5, PongNoFrameskip-v4."""
    return re.fullmatch(r"ALE/\w+-v5|\w+NoFrameskip-v[04]", env_id) is not None


def known_arguments(env_id: str, vector: bool) -> dict[str, Argument] | None:
    """Return the arguments of a known environment, or None. vector: those of its own vector environment."""
    found: dict[str, Any] | None
    if is_atari(env_id):
        found = _ATARI_VECTOR if vector else _ATARI
        if "NoFrameskip" in env_id:
            sticky = 0.25 if env_id.endswith("v0") else 0.0
            found = found | {"frameskip": Argument(1, (int, tuple)), "repeat_action_probability": sticky}
    else:
        found = VECTOR_ENVIRONMENTS.get(env_id) if vector else _gymnasium_arguments(env_id)
    if found is None:
        return None
    return {
        name: usual if isinstance(usual, Argument) else Argument(usual, (type(usual),)) for name, usual in found.items()
    }


def _gymnasium_arguments(env_id: str) -> dict[str, Argument] | None:
    """Return the arguments of an environment of gymnasium; None for other ones."""
    spec = gymnasium.registry.get(env_id)
    if spec is None or not re.fullmatch(GYMNASIUMS_OWN, str(spec.entry_point)):
        return None
    found = {"max_episode_steps": Argument(spec.max_episode_steps, STEPS)} | _read_signature(str(spec.entry_point))
    return found | {name: replace(found[name], usual=value) for name, value in spec.kwargs.items() if name in found}


@cache
def _read_signature(entry_point: str) -> dict[str, Argument]:
    """Read the arguments of a class of gymnasium from its source, because importing it may need an extra."""
    module, _, name = entry_point.partition(":")
    source = Path(gymnasium.__file__).parents[1].joinpath(*module.split(".")).with_suffix(".py").read_text("utf-8")
    (found,) = (node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == name)
    (init,) = (node for node in found.body if isinstance(node, ast.FunctionDef) and node.name == "__init__")
    usual = zip(init.args.args[1:], init.args.defaults, strict=True)
    return {
        each.arg: _argument(each.annotation, eval(ast.unparse(value), {"np": np}))  # such as (0.7, float("inf"))
        for each, value in usual
        if each.arg not in RENDERING
    }


def _argument(annotation: ast.expr | None, usual: Any) -> Argument:
    """Return an argument with the types of its annotation; without one, with the type of its usual value."""
    said = type(usual).__name__ if annotation is None else ast.unparse(annotation)
    kinds = tuple(KINDS[name.partition("[")[0]] for name in said.split(" | "))
    if kinds == (float,) or (annotation is None and kinds == (int,)):
        return Argument(float(usual), (float,))
    if kinds == (tuple,):
        kind = Range if len(usual) == 2 else tuple
        return Argument(kind(map(float, usual)), (kind,))
    return Argument(usual, kinds)


def plain_argument(value: Any) -> Any:
    """Convert a usual value to what a config has for it."""
    if isinstance(value, tuple):
        return [plain_argument(item) for item in value]
    return None if isinstance(value, float) and math.isinf(value) else value


def id_error(env_id: str) -> str | None:
    """Say why an environment cannot be made, or return None; imports nothing but gymnasium.

    `module:Name-v0` and the names of ale-py are looked up when the environment is made.
    """
    if ":" in env_id or is_atari(env_id) or env_id in gymnasium.registry:
        return None
    others = "Atari games are named as 'ALE/Pong-v5', your own as 'module:Name-v0'"
    return f"expected an environment that gymnasium knows, got {env_id!r}; {nearest_ids(env_id)}; {others}"


def nearest_ids(env_id: str) -> str:
    """Name the registered ids nearest to an unknown one; for `module:Name-v0`, among those of that module."""
    module, _, name = env_id.rpartition(":")
    package = module.partition(".")[0]
    ids = [known for known, spec in gymnasium.registry.items() if str(spec.entry_point).startswith(package)]
    if near := difflib.get_close_matches(name, sorted(ids, reverse=True), n=3, cutoff=0.5):
        return f"the nearest known: {listed(f'{module}:{known}' if module else known for known in near)}"
    return f"{module!r} has registered {listed(ids) or 'none'}" if module else "an example is 'CartPole-v1'"


def argument_errors(env_id: str, arguments: dict[str, Any], vector: bool) -> list[ConfigErrorItem]:
    """Find arguments that are missing, unknown or of a wrong type; their paths are below `arguments`.

    For an environment that is not in the table, only max_episode_steps is checked, which every environment has.
    """
    if (known := known_arguments(env_id, vector)) is None:
        limit = arguments.get("max_episode_steps")  # an argument of gymnasium.make for every environment
        return [] if limit is None else _number_of_steps_errors(limit)
    errors = [
        ConfigErrorItem(name, f"expected {_expected(argument)}, but the key is missing")
        for name, argument in known.items()
        if name not in arguments
    ]
    for name, value in arguments.items():
        if name not in known:
            near = nearest(name, known)
            hint = f"did you mean {near!r}? " if near else ""
            message = f"unknown key; {hint}{env_id} has the arguments {listed(known) or 'none'}"
            errors.append(ConfigErrorItem(name, message))
        elif not any(_fits(value, kind, known[name].usual) for kind in known[name].kinds):
            place, wrong = _fault(name, value, known[name])
            errors.append(ConfigErrorItem(place, f"expected {_expected(known[name])}, got {shown(wrong)}"))
        elif name == "max_episode_steps" and value is not None:
            errors += _number_of_steps_errors(value)
    return errors


def _number_of_steps_errors(value: Any) -> list[ConfigErrorItem]:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return []
    return [ConfigErrorItem("max_episode_steps", f"expected an integer >= 1, or null (never), got {shown(value)}")]


def _fault(name: str, value: Any, argument: Argument) -> tuple[str, Any]:
    """Return the path of a wrong value, and the value: a number of a list of the right length, or all of it."""
    if isinstance(value, list) and isinstance(argument.usual, tuple) and len(value) == len(argument.usual):
        for index, item in enumerate(value):
            if not _is_number(item) and not (item is None and isinstance(argument.usual, Range)):
                return f"{name}.{index}", item
    return name, value


def _expected(argument: Argument) -> str:
    kinds = " or ".join(KIND_NAMES[kind] for kind in argument.kinds)
    usual = argument.usual
    if isinstance(usual, tuple):
        text = f"[{', '.join('null' if abs(v) == _INF else repr(v) for v in usual)}]"
    else:
        text = shown(usual)
    return f"{kinds} (usually {text})"


def _fits(value: Any, kind: type, usual: Any) -> bool:
    if isinstance(value, bool):
        return kind is bool
    if kind is Range:
        return isinstance(value, list | tuple) and len(value) == 2 and all(_is_number(v) or v is None for v in value)
    if kind is tuple:
        length = len(usual) if isinstance(usual, tuple) else 2
        return isinstance(value, list | tuple) and len(value) == length and all(map(_is_number, value))
    if kind is float:
        return _is_number(value)
    return isinstance(value, kind)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def passed_arguments(env_id: str, arguments: dict[str, Any], vector: bool) -> dict[str, Any]:
    """Convert arguments to those that `gymnasium.make` takes."""
    known = known_arguments(env_id, vector) or {}
    passed = {}
    for name, value in arguments.items():
        kinds = known[name].kinds if name in known else ()
        if Range in kinds:
            value = tuple(bound if v is None else v for v, bound in zip(value, (-_INF, _INF), strict=True))
        elif tuple in kinds and isinstance(value, list):
            value = tuple(value)
        passed[name] = value
    if passed.get("max_episode_steps", 0) is None:
        passed["max_episode_steps"] = -1  # means no limit to gymnasium.make
    return passed
