"""Wrappers of Gymnasium environments by name: gymnasium's own, each with all of its arguments, one of ours for Atari,
and a user's own.

Left out: wrappers that keep statistics or change rewards (the config's `observation` and `reward` do that, and their
state goes into checkpoints), that render, or that take a function.
"""

from typing import Annotated, Any, ClassVar, Literal, SupportsFloat

import gymnasium
from pydantic import Field

from palestra.config import ByName, Config, NonEmptyStr, NonNegativeInt, PositiveInt, UserConfig, load_class
from palestra.games.gymnasium.memory import OwnMemory


class WrapperConfig(Config):
    """Base: the fields beside `name` are the arguments of the class `wraps` of gymnasium.wrappers."""

    wraps: ClassVar[str]


class TimeLimitConfig(WrapperConfig):
    name: Literal["time_limit"]
    """an episode is truncated after so many steps of the environment inside this wrapper"""
    max_episode_steps: PositiveInt
    """steps"""
    wraps = "TimeLimit"


class FrameStackConfig(WrapperConfig):
    name: Literal["frame_stack"]
    """the last observations, stacked along a new first axis"""
    stack_size: PositiveInt
    """how many"""
    padding_type: Literal["reset", "zero"]
    """what fills the stack at the start of an episode: copies of the first observation, or zeros"""
    wraps = "FrameStackObservation"


class MaxAndSkipConfig(WrapperConfig):
    name: Literal["max_and_skip"]
    """each action is played `skip` times; the observation is the maximum of the last two"""
    skip: Annotated[int, Field(ge=2)]
    """steps per action"""
    wraps = "MaxAndSkipObservation"


class AtariPreprocessingConfig(WrapperConfig):
    name: Literal["atari_preprocessing"]
    """the usual preparation of Atari frames (Machado et al. 2018); needs the extra 'atari'"""
    noop_max: NonNegativeInt
    """an episode begins with up to so many steps of the action NOOP"""
    frame_skip: PositiveInt
    """frames per action; the environment's own frameskip must then be 1"""
    screen_size: PositiveInt
    """width and height of a frame"""
    terminal_on_life_loss: bool
    """whether the loss of a life terminates"""
    grayscale_obs: bool
    """grey frames instead of colours"""
    grayscale_newaxis: bool
    """grey frames with an axis of one channel at the end"""
    scale_obs: bool
    """numbers between 0 and 1 instead of bytes"""
    wraps = "AtariPreprocessing"


class FireConfig(Config):
    name: Literal["fire"]
    """presses FIRE when an episode begins and when a life is lost, for which Breakout and others wait; Atari only"""


class ResizeConfig(WrapperConfig):
    name: Literal["resize"]
    """images of another size; needs the extra 'atari'"""
    shape: Annotated[list[PositiveInt], Field(min_length=2, max_length=2)]
    """height and width"""
    wraps = "ResizeObservation"


class GrayscaleConfig(WrapperConfig):
    name: Literal["grayscale"]
    """grey images instead of colours"""
    keep_dim: bool
    """keep an axis of one channel at the end"""
    wraps = "GrayscaleObservation"


class FlattenConfig(WrapperConfig):
    name: Literal["flatten"]
    """the observation as one vector"""
    wraps = "FlattenObservation"


class ReshapeConfig(WrapperConfig):
    name: Literal["reshape"]
    """the observation in another shape"""
    shape: list[PositiveInt]
    """the new shape"""
    wraps = "ReshapeObservation"


class FilterConfig(WrapperConfig):
    name: Literal["filter"]
    """some entries of a dict or tuple observation"""
    filter_keys: list[str | int]
    """the entries kept"""
    wraps = "FilterObservation"


class RescaleObservationConfig(WrapperConfig):
    name: Literal["rescale_observation"]
    """bounded observations, moved linearly between other bounds"""
    min_obs: float
    """the new lower bound"""
    max_obs: float
    """the new upper bound"""
    wraps = "RescaleObservation"


class DiscretizeObservationConfig(WrapperConfig):
    name: Literal["discretize_observation"]
    """bounded numbers in bins"""
    bins: PositiveInt
    """bins per number"""
    multidiscrete: bool
    """one choice per number, instead of one for all together"""
    wraps = "DiscretizeObservation"


class DelayConfig(WrapperConfig):
    name: Literal["delay"]
    """observations come late; zeros until the first"""
    delay: NonNegativeInt
    """steps of delay"""
    wraps = "DelayObservation"


class TimeAwareConfig(WrapperConfig):
    name: Literal["time_aware"]
    """adds the time since the episode's start to the observation; needs a time limit inside this wrapper"""
    flatten: bool
    """one vector instead of a dict"""
    normalize_time: bool
    """time between 0 and 1 instead of steps"""
    dict_time_key: NonEmptyStr
    """the name of the time's entry"""
    wraps = "TimeAwareObservation"


class ClipActionConfig(WrapperConfig):
    name: Literal["clip_action"]
    """actions of any size, clipped to the environment's bounds"""
    wraps = "ClipAction"


class RescaleActionConfig(WrapperConfig):
    name: Literal["rescale_action"]
    """actions between other bounds, moved linearly to the environment's"""
    min_action: float
    """the new lower bound"""
    max_action: float
    """the new upper bound"""
    wraps = "RescaleAction"


class DiscretizeActionConfig(WrapperConfig):
    name: Literal["discretize_action"]
    """continuous actions in bins"""
    bins: PositiveInt
    """bins per number"""
    multidiscrete: bool
    """one choice per number, instead of one for all together"""
    wraps = "DiscretizeAction"


class StickyActionConfig(WrapperConfig):
    name: Literal["sticky_action"]
    """repeats the last action instead of the new one with some probability (Machado et al. 2018)"""
    repeat_action_probability: Annotated[float, Field(ge=0, lt=1)]
    """the probability"""
    repeat_action_duration: PositiveInt
    """for so many steps"""
    wraps = "StickyAction"


class RepeatActionConfig(WrapperConfig):
    name: Literal["repeat_action"]
    """each action is played several times; rewards add up"""
    num_repeats: PositiveInt
    """steps per action"""
    wraps = "RepeatAction"


AnyWrapper = Annotated[
    TimeLimitConfig
    | FrameStackConfig
    | MaxAndSkipConfig
    | AtariPreprocessingConfig
    | FireConfig
    | ResizeConfig
    | GrayscaleConfig
    | FlattenConfig
    | ReshapeConfig
    | FilterConfig
    | RescaleObservationConfig
    | DiscretizeObservationConfig
    | DelayConfig
    | TimeAwareConfig
    | ClipActionConfig
    | RescaleActionConfig
    | DiscretizeActionConfig
    | StickyActionConfig
    | RepeatActionConfig
    | UserConfig,
    ByName(user_class=gymnasium.Wrapper),
]


KEEPING = ("frame_stack", "delay", "max_and_skip", "sticky_action", "repeat_action")  # observations, or an action


def wrap(env: gymnasium.Env, config: Config) -> gymnasium.Env:
    """Wrap an environment as a config says. A user's own class is called as (env, config)."""
    if isinstance(config, UserConfig):
        own: Any = load_class(config.name, gymnasium.Wrapper)
        return own(env, config)
    if isinstance(config, FireConfig):
        return Fire(env)
    assert isinstance(config, WrapperConfig)
    arguments = {key: tuple(v) if isinstance(v, list) else v for key, v in config if key != "name"}
    if config.name in KEEPING:  # type: ignore[attr-defined]
        env = OwnMemory(env)
    return getattr(gymnasium.wrappers, config.wraps)(env, **arguments)


def has_fire(env: gymnasium.Env) -> bool:
    """Whether an environment is an Atari game with the action FIRE."""
    return "FIRE" in getattr(env.unwrapped, "get_action_meanings", list)()


class Fire(gymnasium.Wrapper):
    """Presses FIRE after every reset, whose observation is the one after that, and in the step that loses a life. A
    player that has not yet learned to press it would wait for ever. Raises ValueError for a game without FIRE."""

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
