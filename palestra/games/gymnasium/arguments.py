"""The arguments of known environments, each with its usual value, so that a config must name all of them.

Known are the environments of gymnasium and ale-py that still run. Arguments of rendering (`render_mode`,
`default_camera_config`, `width`, ...) are left out, because they do not change what is learned. `max_episode_steps` is
an argument of gymnasium itself: an episode is truncated after so many steps; None: never.
"""

import difflib
import math
import re
from dataclasses import dataclass
from typing import Any

import gymnasium

from palestra.config import ConfigErrorItem
from palestra.config.errors import listed, nearest, shown


@dataclass(frozen=True)
class Argument:
    """One argument: its usual value, and the types that it accepts; float accepts integers too."""

    usual: Any
    kinds: tuple[type, ...]


class Range(tuple):
    """A lower and an upper bound; null in a config means no bound."""


STEPS = (int, type(None))
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
_MOTION = {"forward_reward_weight": 1.0, "reset_noise_scale": 0.1, "exclude_current_positions_from_observation": True}
_CHEETAH = _MOTION | {"ctrl_cost_weight": 0.1}
_SWIMMER = _MOTION | {"ctrl_cost_weight": 1e-4}
_ANT: dict[str, Any] = {
    "xml_file": "ant.xml",
    "ctrl_cost_weight": 0.5,
    "contact_cost_weight": 5e-4,
    "healthy_reward": 1.0,
    "terminate_when_unhealthy": True,
    "healthy_z_range": Range((0.2, 1.0)),
    "contact_force_range": Range((-1.0, 1.0)),
    "reset_noise_scale": 0.1,
    "exclude_current_positions_from_observation": True,
}
_WALKER = _MOTION | {
    "ctrl_cost_weight": 1e-3,
    "healthy_reward": 1.0,
    "terminate_when_unhealthy": True,
    "healthy_z_range": Range((0.8, 2.0)),
    "healthy_angle_range": Range((-1.0, 1.0)),
    "reset_noise_scale": 5e-3,
}
_HOPPER = _WALKER | {
    "healthy_state_range": Range((-100.0, 100.0)),
    "healthy_z_range": Range((0.7, _INF)),
    "healthy_angle_range": Range((-0.2, 0.2)),
}
_HUMANOID = _MOTION | {
    "forward_reward_weight": 1.25,
    "ctrl_cost_weight": 0.1,
    "healthy_reward": 5.0,
    "terminate_when_unhealthy": True,
    "healthy_z_range": Range((1.0, 2.0)),
    "reset_noise_scale": 1e-2,
}
_HUMANOID_SEES = {
    "exclude_current_positions_from_observation": True,
    "include_cinert_in_observation": True,
    "include_cvel_in_observation": True,
    "include_qfrc_actuator_in_observation": True,
    "include_cfrc_ext_in_observation": True,
}
_LANDER = {
    "continuous": False,
    "gravity": -10.0,
    "enable_wind": False,
    "wind_power": 15.0,
    "turbulence_power": 1.5,
}
_LAKE = {
    "desc": Argument(None, (list, type(None))),
    "map_name": "4x4",
    "is_slippery": True,
    "success_rate": 1.0 / 3.0,
    "reward_schedule": (1.0, 0.0, 0.0),
}
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


def _mujoco(max_steps: int, xml_file: str, frame_skip: int, **others: Any) -> dict[str, Any]:
    return {"max_episode_steps": max_steps, "xml_file": xml_file, "frame_skip": frame_skip, **others}


def _limited(max_steps: int | None, **others: Any) -> dict[str, Any]:
    return {"max_episode_steps": max_steps, **others}


ENVIRONMENTS: dict[str, dict[str, Any]] = {
    "Acrobot-v1": _limited(500),
    "CartPole-v0": _limited(200, sutton_barto_reward=False),
    "CartPole-v1": _limited(500, sutton_barto_reward=False),
    "MountainCar-v0": _limited(200, goal_velocity=0.0),
    "MountainCarContinuous-v0": _limited(999, goal_velocity=0.0),
    "Pendulum-v1": _limited(200, g=10.0),
    "Blackjack-v1": _limited(None, natural=False, sab=True),
    "CliffWalking-v1": _limited(None, is_slippery=False),
    "CliffWalkingSlippery-v1": _limited(None, is_slippery=True),
    "FrozenLake-v1": _limited(100, **_LAKE),
    "FrozenLake8x8-v1": _limited(200, **_LAKE | {"map_name": "8x8"}),
    "Taxi-v4": _limited(200, is_rainy=False, fickle_passenger=False, rainy_probability=0.8, fickle_probability=0.3),
    "BipedalWalker-v3": _limited(1600, hardcore=False),
    "BipedalWalkerHardcore-v3": _limited(2000, hardcore=True),
    "CarRacing-v3": _limited(1000, verbose=False, lap_complete_percent=0.95, domain_randomize=False, continuous=True),
    "LunarLander-v3": _limited(1000, **_LANDER),
    "LunarLanderContinuous-v3": _limited(1000, **_LANDER | {"continuous": True}),
    "Ant-v4": _limited(1000, **_ANT, use_contact_forces=False),
    "HalfCheetah-v4": _limited(1000, **_CHEETAH),
    "Hopper-v4": _limited(1000, **_HOPPER),
    "Humanoid-v4": _limited(1000, **_HUMANOID),
    "HumanoidStandup-v4": _limited(1000),
    "InvertedDoublePendulum-v4": _limited(1000),
    "InvertedPendulum-v4": _limited(1000),
    "Pusher-v4": _limited(100),
    "Reacher-v4": _limited(50),
    "Swimmer-v4": _limited(1000, **_SWIMMER),
    "Walker2d-v4": _limited(1000, **_WALKER),
    "Ant-v5": _mujoco(
        1000,
        frame_skip=5,
        **_ANT,
        forward_reward_weight=1.0,
        main_body=Argument(1, (int, str)),
        include_cfrc_ext_in_observation=True,
    ),
    "HalfCheetah-v5": _mujoco(1000, "half_cheetah.xml", 5, **_CHEETAH),
    "Hopper-v5": _mujoco(1000, "hopper.xml", 4, **_HOPPER),
    "Humanoid-v5": _mujoco(
        1000,
        "humanoid.xml",
        5,
        **_HUMANOID | _HUMANOID_SEES,
        contact_cost_weight=5e-7,
        contact_cost_range=Range((-_INF, 10.0)),
    ),
    "HumanoidStandup-v5": _mujoco(
        1000,
        "humanoidstandup.xml",
        5,
        **_HUMANOID_SEES,
        uph_cost_weight=1.0,
        ctrl_cost_weight=0.1,
        impact_cost_weight=5e-7,
        impact_cost_range=Range((-_INF, 10.0)),
        reset_noise_scale=1e-2,
    ),
    "InvertedDoublePendulum-v5": _mujoco(
        1000, "inverted_double_pendulum.xml", 5, healthy_reward=10.0, reset_noise_scale=0.1
    ),
    "InvertedPendulum-v5": _mujoco(1000, "inverted_pendulum.xml", 2, reset_noise_scale=0.01),
    "Pusher-v5": _mujoco(
        100, "pusher_v5.xml", 5, reward_near_weight=0.5, reward_dist_weight=1.0, reward_control_weight=0.1
    ),
    "Reacher-v5": _mujoco(50, "reacher.xml", 2, reward_dist_weight=1.0, reward_control_weight=1.0),
    "Swimmer-v5": _mujoco(1000, "swimmer.xml", 4, **_SWIMMER),
    "Walker2d-v5": _mujoco(1000, "walker2d_v5.xml", 4, **_WALKER),
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
    found = (VECTOR_ENVIRONMENTS if vector else ENVIRONMENTS).get(env_id)
    if is_atari(env_id):
        found = _ATARI_VECTOR if vector else _ATARI
        if "NoFrameskip" in env_id:
            sticky = 0.25 if env_id.endswith("v0") else 0.0
            found = found | {"frameskip": Argument(1, (int, tuple)), "repeat_action_probability": sticky}
    if found is None:
        return None
    return {name: _argument(name, usual) for name, usual in found.items()}


def plain_argument(value: Any) -> Any:
    """Convert a usual value to what a config has for it."""
    if isinstance(value, tuple):
        return [plain_argument(item) for item in value]
    return None if isinstance(value, float) and math.isinf(value) else value


def _argument(name: str, usual: Any) -> Argument:
    if isinstance(usual, Argument):
        return usual
    return Argument(usual, STEPS if name == "max_episode_steps" else (type(usual),))


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
    near = difflib.get_close_matches(name, sorted(ids, reverse=True), n=3, cutoff=0.5)
    if near:
        return f"the nearest known: {listed(f'{module}:{known}' if module else known for known in near)}"
    return f"{module!r} has registered {listed(ids) or 'none'}" if module else "an example is 'CartPole-v1'"


def argument_errors(env_id: str, arguments: dict[str, Any], vector: bool) -> list[ConfigErrorItem]:
    """Find arguments that are missing, unknown or of a wrong type; their paths are below `arguments`.

    For an environment that is not in the table, only max_episode_steps is checked, which every environment has.
    """
    known = known_arguments(env_id, vector)
    if known is None:
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
    message = f"expected an integer >= 1, or null (never), got {shown(value)}"
    return [ConfigErrorItem("max_episode_steps", message)]


def _fault(name: str, value: Any, argument: Argument) -> tuple[str, Any]:
    """Return the path of a wrong value, and the value: a number of a list of the right length, or all of it."""
    if isinstance(value, list) and isinstance(argument.usual, tuple) and len(value) == len(argument.usual):
        may_be_none = isinstance(argument.usual, Range)
        for index, item in enumerate(value):
            if not _is_number(item) and not (may_be_none and item is None):
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
