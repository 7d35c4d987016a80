"""Wrappers of Gymnasium environments: gymnasium's own, one of ours for Atari, and a user's own.

Gymnasium's are named by path, with all of their arguments. Left out: wrappers that keep statistics or change rewards
(the config's `observation` and `reward` do that, and their state goes into checkpoints), that render, or that take a
function.
"""

from typing import Annotated, Any, ClassVar, Literal, Self, SupportsFloat

import gymnasium
from pydantic import model_validator

from palestra.config import ByName, Config, LibraryClass, UserConfig, load_class
from palestra.games.gymnasium.memory import OwnMemory

KEEPING = (  # observations, or an action
    *("FrameStackObservation", "DelayObservation", "MaxAndSkipObservation", "StickyAction", "RepeatAction"),
)


class WrapperConfig(LibraryClass):
    library = "gymnasium.wrappers"
    base = "gymnasium:Wrapper"
    classes = (
        *KEEPING,
        *("TimeLimit", "AtariPreprocessing", "ClipAction", "RescaleAction", "DiscretizeAction", "TimeAwareObservation"),
        *("ResizeObservation", "GrayscaleObservation", "FlattenObservation", "ReshapeObservation"),
        *("FilterObservation", "RescaleObservation", "DiscretizeObservation"),
    )
    not_said: ClassVar[dict[str, str]] = {"env": "a wrapper is called with the environment"}

    name: str
    """a wrapper of Gymnasium, as gymnasium.wrappers:TimeLimit"""
    arguments: dict[str, Any]
    """all that it is called with but the environment"""

    @model_validator(mode="after")
    def _check_arguments(self) -> Self:
        self.called_with()
        return self


class FireConfig(Config):
    name: Literal["fire"]
    """presses FIRE when an episode begins and when a life is lost, for which Breakout and others wait; Atari only"""


AnyWrapper = Annotated[WrapperConfig | FireConfig | UserConfig, ByName(user_class=gymnasium.Wrapper)]


def wrap(env: gymnasium.Env, config: Config) -> gymnasium.Env:
    """Wrap an environment as a config says. A user's own class is called as (env, config)."""
    if isinstance(config, UserConfig):
        own: Any = load_class(config.name, gymnasium.Wrapper)
        return own(env, config)
    if isinstance(config, FireConfig):
        return Fire(env)
    assert isinstance(config, WrapperConfig)
    made: Any = config.load(config.name)
    return made(OwnMemory(env) if made.__name__ in KEEPING else env, **config.called_with())


def has_fire(env: gymnasium.Env) -> bool:
    """Tell whether an environment is an Atari game with the action FIRE."""
    return "FIRE" in getattr(env.unwrapped, "get_action_meanings", list)()


class Fire(gymnasium.Wrapper):
    """Presses FIRE after every reset, whose observation is the one after that, and in the step that loses a life.

    A player that has not yet learned to press it would wait for ever. Raises ValueError for a game without FIRE.
    """

    def __init__(self, env: gymnasium.Env) -> None:
        if not has_fire(env):
            raise ValueError("expected an Atari game with the action FIRE, got an environment without it")
        super().__init__(env)
        self.fire = self.unwrapped.get_action_meanings().index("FIRE")  # type: ignore[attr-defined]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        observation, _, terminated, truncated, info = self.env.step(self.fire)
        if terminated or truncated:
            observation, info = self.env.reset(options=options)
        self.lives = info["lives"]
        return observation, info

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        if info["lives"] < self.lives and not (terminated or truncated):
            observation, more, terminated, truncated, info = self.env.step(self.fire)
            reward = float(reward) + float(more)
        self.lives = info["lives"]
        return observation, reward, terminated, truncated, info
