"""The spaces of known environments, so that a config can be checked without making them and without their extras.

Inside `without_environments` (palestra.games.config) a stand-in with these spaces takes the place of every environment,
inside the same wrappers.
"""

import re
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete, Space

from palestra.games.config import NotDeclared
from palestra.games.gymnasium.arguments import is_atari, known_arguments
from palestra.games.gymnasium.config import EnvironmentConfig
from palestra.games.gymnasium.wrappers import AnyWrapper, FireConfig, WrapperConfig, wrap

# By id: how many numbers an observation has; how many actions there are, or the length and bound of a vector.
SPACES: dict[str, tuple[int, int | tuple[int, float]]] = {
    "Acrobot-v1": (6, 3),
    "CartPole-v0": (4, 2),
    "CartPole-v1": (4, 2),
    "MountainCar-v0": (2, 3),
    "MountainCarContinuous-v0": (2, (1, 1.0)),
    "Pendulum-v1": (3, (1, 2.0)),
    "BipedalWalker-v3": (24, (4, 1.0)),
    "BipedalWalkerHardcore-v3": (24, (4, 1.0)),
    "LunarLander-v3": (8, 4),
    "LunarLanderContinuous-v3": (8, (2, 1.0)),
    "Ant-v5": (105, (8, 1.0)),
    "HalfCheetah-v5": (17, (6, 1.0)),
    "Hopper-v5": (11, (3, 1.0)),
    "Humanoid-v5": (348, (17, 0.4)),
    "HumanoidStandup-v5": (348, (17, 0.4)),
    "InvertedDoublePendulum-v5": (9, (1, 1.0)),
    "InvertedPendulum-v5": (4, (1, 3.0)),
    "Pusher-v5": (23, (7, 2.0)),
    "Reacher-v5": (10, (2, 1.0)),
    "Swimmer-v5": (8, (2, 1.0)),
    "Walker2d-v5": (17, (6, 1.0)),
}
ATARI_ACTIONS = {"Pong": 6, "Breakout": 4}  # the numbers of actions of the games in shipped configs
ALL_ATARI_ACTIONS = 18  # the largest number; a game may have fewer
ATARI_SHAPES = {"rgb": (210, 160, 3), "grayscale": (210, 160), "ram": (128,)}
SHAPE_ARGUMENTS = ("continuous", "xml_file", "exclude_current_positions_from_observation", "include_", "sound_obs")
# Wrappers that need only the spaces of the environment that they wrap.
WRAPPERS_OF_SPACES = (
    *("TimeLimit", "FrameStackObservation", "MaxAndSkipObservation", "FlattenObservation", "ReshapeObservation"),
    *("DelayObservation", "RepeatAction", "StickyAction", "ClipAction", "RescaleAction", "DiscretizeAction"),
)


class StandIn(gymnasium.Env[Any, Any]):
    """Has the spaces of an environment, and observations of zeros."""

    def __init__(self, observation_space: Space[Any], action_space: Space[Any]) -> None:
        self.observation_space, self.action_space = observation_space, action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return np.zeros(self.observation_space.shape or (), self.observation_space.dtype), {}

    def step(self, action: Any) -> Any:
        raise NotImplementedError("a stand-in has only the spaces of an environment, and cannot be stepped")


def has_exact_actions(config: EnvironmentConfig) -> bool:
    """Tell whether a stand-in has as many actions as the environment.

    Of most Atari games the number is only known once they are made.
    """
    arguments = config.arguments
    has_known_set = arguments.get("full_action_space") or arguments.get("continuous") or _atari_actions(config)
    return not is_atari(config.id) or bool(has_known_set)


def _atari_actions(config: EnvironmentConfig) -> int | None:
    return ATARI_ACTIONS.get(re.sub(r"^ALE/|NoFrameskip|-v\d+$", "", config.id))


def make_stand_in(config: EnvironmentConfig) -> StandIn:
    """Make a stand-in for an environment. Raises NotDeclared if id and arguments do not determine its spaces."""
    arguments = config.arguments
    if config.is_vector:
        raise NotDeclared
    if is_atari(config.id) and not arguments["sound_obs"]:
        observation = Box(0, 255, ATARI_SHAPES.get(arguments["obs_type"], ATARI_SHAPES["rgb"]), np.uint8)
        if arguments["continuous"]:
            low, high = np.array([0.0, -np.pi, 0.0], np.float32), np.array([1.0, np.pi, 1.0], np.float32)
            return StandIn(observation, Box(low, high))
        num_actions = None if arguments["full_action_space"] else _atari_actions(config)
        return StandIn(observation, Discrete(num_actions or ALL_ATARI_ACTIONS))
    known = known_arguments(config.id, vector=False)
    if (
        config.id not in SPACES
        or known is None
        or any(arguments[name] != known[name].usual for name in known if name.startswith(SHAPE_ARGUMENTS))
    ):
        raise NotDeclared
    num_numbers, action = SPACES[config.id]
    numbers = Box(-np.inf, np.inf, (num_numbers,), np.float32)
    if isinstance(action, int):
        return StandIn(numbers, Discrete(action))
    num, bound = action
    return StandIn(numbers, Box(-bound, bound, (num,), np.float32))


def wrap_stand_in(env: gymnasium.Env, wrapper: AnyWrapper) -> gymnasium.Env:
    """Wrap a stand-in. Raises NotDeclared for a wrapper that needs the environment itself, or an extra."""
    if isinstance(wrapper, FireConfig):
        return env
    class_name = wrapper.name.partition(":")[2]
    if class_name == "AtariPreprocessing" and isinstance(wrapper, WrapperConfig) and isinstance(env, StandIn):
        said = wrapper.arguments
        size = tuple(said["screen_size"]) if isinstance(said["screen_size"], list) else (said["screen_size"],) * 2
        is_gray = said["grayscale_obs"]
        shape = (*size, 1) if is_gray and said["grayscale_newaxis"] else size if is_gray else (*size, 3)
        observation = Box(0, 1, shape, np.float32) if said["scale_obs"] else Box(0, 255, shape, np.uint8)
        return StandIn(observation, env.action_space)
    if class_name not in WRAPPERS_OF_SPACES:
        raise NotDeclared
    return wrap(env, wrapper)
