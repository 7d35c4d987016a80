"""GymnasiumGame: any Gymnasium environment as a game of one role, `agent`."""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from typing import Any
from weakref import WeakSet

import gymnasium
import numpy as np
import torch
from torch import Tensor

from palestra.config import ConfigError, below, check, failure
from palestra.config.errors import listed
from palestra.config.places import Place
from palestra.config.usual import completed
from palestra.games.config import MOST_ROUNDS
from palestra.games.game import Kernel, Observation, Outside, OutsideEntry
from palestra.games.gymnasium.arguments import is_atari, known_arguments, plain_argument
from palestra.games.gymnasium.config import EnvironmentConfig, SyncConfig
from palestra.games.gymnasium.environments import close_vector, has_limit, make_environment, make_vector, registered
from palestra.games.gymnasium.faults import fault_of_reset
from palestra.games.gymnasium.known_spaces import has_exact_actions
from palestra.games.gymnasium.masks import mask_entry, masks_seen, with_mask, without_mask
from palestra.games.gymnasium.normalization import Moments
from palestra.games.gymnasium.spaces import (
    MASK,
    Arrays,
    Entry,
    ObservationReader,
    UnknownChannels,
    UnknownSpace,
    action_space,
    part_of,
)
from palestra.games.gymnasium.world import GymnasiumWorld
from palestra.games.gymnasium.wrappers import has_fire
from palestra.games.spaces import ActionSpace
from palestra.games.world import WorldGame
from palestra.runtime.scores import DeclaredScore, declared_returns

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
HALF_AN_HOUR = 27_000  # rounds of an Atari game


class GymnasiumConfig(EnvironmentConfig):
    """Every key of `game: {name: gymnasium}`."""

    @classmethod
    def usual(cls, said: Mapping[str, Any], about: Any) -> dict[str, Any]:
        env_id = str(said.get("id", ""))
        if (known := known_arguments(env_id, vector=False)) is None:
            spec = registered(env_id)
            return {"arguments": {} if spec is None else {"max_episode_steps": spec.max_episode_steps}, "wrappers": []}
        arguments = {name: plain_argument(argument.usual) for name, argument in known.items()}
        if not is_atari(env_id):
            return {"arguments": arguments, "wrappers": []}
        arguments |= {"frameskip": 1, "obs_type": "grayscale"}  # the wrapper skips frames and reads the screen
        game = {"name": "gymnasium", "id": env_id, "arguments": arguments, "wrappers": []}
        env = make_environment(check(completed(game, Place(cls)), cls))
        fire = ["fire"] if has_fire(env) else []
        env.close()
        return {"arguments": arguments, "wrappers": [ATARI_PREPROCESSING, *fire, FRAME_STACK], "reward": {"clip": 1.0}}

    def usual_rounds(self) -> int:
        return self.arguments.get("max_episode_steps") or (HALF_AN_HOUR if is_atari(self.id) else MOST_ROUNDS)

    def build(self, device: torch.device, kernel: Kernel) -> "GymnasiumGame":
        return GymnasiumGame(self, device)

    def declared_roles(self) -> tuple[str, ...]:
        return GymnasiumGame.roles

    def declared_scores(self) -> tuple[DeclaredScore, ...]:
        return declared_returns(GymnasiumGame.roles, zero_sum=False, shown=True)

    def declares_actions(self) -> bool:
        return has_exact_actions(self)

    def environment_id(self) -> str:
        return self.id

    def unset_limit(self) -> str | None:
        return None if has_limit(self) else "arguments.max_episode_steps"

    def can_end_steps(self) -> bool:
        return self.vectorization.name == "async"


class GymnasiumGame(WorldGame):
    """The environments of a config as a game; palestra.games.gymnasium.spaces says what is observed and done.

    It holds the running statistics by which observations and rewards are normalised: its training worlds update them,
    its other worlds only use them, and checkpoints hold them as the game's state. Raises ConfigError if the environment
    cannot be made, or has spaces that palestra does not support.
    """

    roles = ("agent",)

    def __init__(self, config: GymnasiumConfig, device: torch.device) -> None:
        self.config, self.device, self.can_restart = config, device, not config.is_vector
        self.is_on_cpu, self.always_legal = device.type == "cpu", config.action_mask is None
        try:
            with below("game"):
                here = os.getcwd()
                readers, actions, self.notes = _tried(config)
                os.chdir(here)  # where the paths of a run begin; a run that has begun keeps them
        except UnknownChannels as error:
            raise ConfigError.at(
                "game.observation.channels", f"{error}; give it, as game.observation.channels=last"
            ) from error
        except UnknownSpace as error:
            raise ConfigError.at("game.id", f"{config.id!r} cannot be played: {error}") from error
        self.world_reader, self.reader = readers  # of what vector environments give, and of the environment's own
        self.action_space, self.to_gym_actions = actions
        self.spaces = {"agent": {entry.name: entry.space for entry in self.reader.entries}}
        self.action_spaces = {"agent": self.action_space}
        numbers = [entry for entry in self.reader.entries if entry.is_number]
        observation, reward = config.observation, config.reward
        self.transforms_observations = observation.normalize is not None or observation.clip is not None
        self.transforms_rewards = reward.normalize is not None or reward.clip is not None
        if observation.channels is not None and not self.reader.has_channels:
            message = f"expected null, because no image has an axis of channels, got {observation.channels}"
            raise ConfigError.at("game.observation.channels", message)
        if not numbers and self.transforms_observations:
            message = "expected null for normalize and clip, because the observation has no numbers, got another value"
            raise ConfigError.at("game.observation", message)
        self.numbers = {entry.name for entry in numbers}
        # floating-point entries, and how errors name them
        self.floats = {
            entry.name: "the observation" + "".join(f"[{key!r}]" for key in entry.path)
            for entry in numbers
            if entry.own_dtype.kind == "f"
        }
        self.observation_moments = {
            entry.name: Moments(entry.space.shape, entry.own_dtype)
            for entry in numbers
            if observation.normalize is not None
        }
        self.reward_moments = Moments(())
        self._worlds: WeakSet[GymnasiumWorld] = WeakSet()

    @property
    def every_row_counts(self) -> bool:
        """Tell whether every row is a decision: not where a step may only begin an episode.

        A vector environment of the user's own may do so.
        """
        return getattr(self.config.vectorization, "autoreset", "next_step") != "next_step"

    def make_world(self, num_worlds: int, key: int, training: bool, first: int = 0) -> GymnasiumWorld:
        """Make new worlds; the seeds of their episodes come from `key` and their numbers.

        training: whether the worlds update the statistics. first: the number of the first of them.
        """
        world = GymnasiumWorld(self, num_worlds, key, training, first)
        self._worlds.add(world)
        return world

    def read_observation(self, role: str, observation: Any) -> tuple[Observation, bool]:
        """Convert the environment's own observations, one or a batch of them, to tensors.

        A batch is as a vector environment gives it. Also return whether it was a single one.
        """
        is_single = self.reader.is_single(observation)
        arrays = self.reader.read_list([observation]) if is_single else self.reader.read(observation)
        return self._tensors(arrays), is_single

    def read_entry(self, role: str, name: str, values: np.ndarray) -> Tensor:
        entry = next(entry for entry in self.reader.entries if entry.name == name)
        space: Any = part_of(self.reader.gym_space, entry)
        if isinstance(space, gymnasium.spaces.Discrete | gymnasium.spaces.MultiDiscrete):
            num = space.n if isinstance(space, gymnasium.spaces.Discrete) else space.nvec
            if unknown := values[(values < space.start) | (values >= space.start + num)].tolist():
                raise ValueError(f"expected choices of {space}, got {unknown[0]}")
        return self._tensors({name: entry.read(values)})[name]

    def legal_by(self, role: str, observation: Observation) -> Tensor | None:
        return observation.get(MASK, super().legal_by(role, observation))

    def transformed(self, role: str, observation: Observation) -> Observation:
        arrays = {name: value.cpu().numpy() for name, value in observation.items() if name != MASK}
        return self._tensors(self.transform(arrays))

    def _tensors(self, arrays: Arrays) -> Observation:
        return {name: torch.from_numpy(value).to(self.device) for name, value in arrays.items()}

    def own_actions(self, actions: Tensor) -> np.ndarray:
        """Convert actions to the form in which a vector environment takes them."""
        return self.to_gym_actions(actions.cpu().numpy())

    def untransformed(self) -> "GymnasiumGame":
        if not (self.transforms_observations or self.transforms_rewards):
            return self
        game, nothing = copy(self), {"normalize": None, "clip": None}
        parts = {key: getattr(self.config, key).model_copy(update=nothing) for key in ("observation", "reward")}
        game.config = self.config.model_copy(update=parts)
        game.transforms_observations = game.transforms_rewards = False
        return game

    def outside(self, role: str) -> Outside:
        return outside_of(self)

    def play_outside(self, num_worlds: int, num_rounds: int, key: int, choose: Callable[[Any, Any], Any]) -> None:
        config = self.config
        if not config.is_vector:
            config = config.model_copy(update={"vectorization": SyncConfig(name="sync", autoreset="next_step")})
        vector = make_vector(config, num_worlds, key, config.id, None)
        try:
            observation, _ = vector.reset()
            for _ in range(num_rounds):
                legal = self.world_reader.read(observation).get(MASK)
                if self.world_reader is not self.reader:
                    observation = without_mask(self.reader.gym_space, observation)
                if legal is not None:  # where an episode has ended, no action need be
                    legal |= ~legal.any(axis=1, keepdims=True)
                observation, *_ = vector.step(choose(observation, None if legal is None else torch.from_numpy(legal)))
        finally:
            close_vector(vector)

    def with_rendering(self) -> "GymnasiumGame":
        """Return the same game, whose worlds can be rendered; its environments step one after the other."""
        if self.config.is_vector:
            raise ConfigError.at("game.vectorization.name", "expected 'sync' or 'async' for filming, got 'entry_point'")
        if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
            os.environ.setdefault("MUJOCO_GL", "egl")  # MuJoCo would look for a screen
            os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # and so would pygame
        arguments = {**self.config.arguments, "render_mode": "rgb_array"}
        vectorization = SyncConfig(name="sync", autoreset="next_step")  # which shows the last frame too
        config = self.config.model_copy(update={"arguments": arguments, "vectorization": vectorization})
        game = GymnasiumGame(config, self.device)
        game.load_state_dict(self.state_dict())
        return game

    # ---- running statistics ------------------------------------------------------------------------------

    def transform(self, observations: Arrays) -> Arrays:
        """Transform observations as the config says: normalise them by the statistics so far, then clip them."""
        normalize, clip = self.config.observation.normalize, self.config.observation.clip
        new = dict(observations)
        for name in self.numbers:
            if normalize is not None:
                new[name] = self.observation_moments[name].standardized(new[name], normalize.eps)
            if clip is not None:
                new[name] = new[name].clip(-clip, clip)
        return new

    def update_observation_statistics(self, observations: Arrays) -> None:
        for name, moments in self.observation_moments.items() if "agent" not in self.settled else ():
            moments.update(observations[name])

    def settle(self, role: str, observation: Observation) -> None:
        for name, moments in self.observation_moments.items():
            moments.update(observation[name].cpu().numpy())

    def statistics(self) -> Sequence[Moments]:
        return [*self.observation_moments.values(), self.reward_moments]

    def state_dict(self) -> dict[str, Any]:
        observation = {name: moments.state_dict() for name, moments in self.observation_moments.items()}
        return {"observation": observation, "reward": self.reward_moments.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, moments in self.observation_moments.items():
            moments.load_state_dict(state["observation"][name])
        self.reward_moments.load_state_dict(state["reward"])

    def close(self) -> None:
        """Close the environments of all worlds, and their processes. The next step of a world opens its own anew."""
        for world in list(self._worlds):
            world.close()


Readers = tuple[ObservationReader, ObservationReader]
Actions = tuple[ActionSpace, Callable[[np.ndarray], np.ndarray]]


def _tried(config: EnvironmentConfig) -> tuple[Readers, Actions, Sequence[str]]:
    """Make the environment, and reset it once. Raises ConfigError if that fails.

    Returns readers, as of `_readers`, our actions with what converts them to Gymnasium's, and lines for the user.
    """
    if config.is_vector:
        vector = make_vector(config, 1, 0, config.id, None)
        observations, actions = vector.single_observation_space, action_space(vector.single_action_space)
        close_vector(vector)
        return _readers(config, observations, actions[0]), actions, ()
    env, notes = make_environment(config), list[str]()
    actions = action_space(env.action_space)
    readers = _readers(config, env.observation_space, actions[0])
    try:
        found = env.reset(seed=0)
        why = fault_of_reset(env.observation_space, found)
        if why is None and config.action_mask is None and (num_flags := actions[0].num_flags):
            for each in masks_seen(env, found[1], num_flags):
                notes.append(f"game.action_mask=null: the mask {each} of the environment is not used ({each} uses it)")
    except (Exception, SystemExit) as error:  # of the environment or of a wrapper
        why = failure(error)
    with suppress(Exception, SystemExit):  # a failure to close harms nothing
        env.close()
    if why is not None:
        above = f" in the wrappers {listed(wrapper.name for wrapper in config.wrappers)}" if config.wrappers else ""
        message = f"{config.id!r}{above} gives no first observation: {why}"
        raise ConfigError.at("wrappers" if config.wrappers else "id", message)
    return readers, actions, notes


def _readers(config: EnvironmentConfig, space: gymnasium.Space, actions: ActionSpace) -> Readers:
    """Return the readers of what vector environments give, and of the environment's own observations."""
    how, source = (config.observation.channels, config.observation.normalize is not None), config.action_mask
    own = ObservationReader(space, *how, mask_entry(source))
    if source is None:
        return own, own
    if not actions.num_flags:
        raise ConfigError.at("action_mask", f"expected null (the actions are vectors of numbers), got {source!r}")
    if mask_entry(source) == MASK:
        whole = with_mask(space, space, gymnasium.spaces.MultiBinary(actions.num_flags))
        return ObservationReader(gymnasium.spaces.Dict(whole), *how, MASK), own
    if own.mask is None or own.mask.space.shape != (actions.num_flags,):
        shape = f"got {'none' if own.mask is None else own.mask.space.shape}"
        entry = f"an entry {mask_entry(source)!r} of the observation, of shape ({actions.num_flags},)"
        raise ConfigError.at("action_mask", f"expected {entry}, a flag for each action, {shape}")
    return own, own


Convert = Callable[[Tensor], Tensor]
KINDS = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64")  # that programs take


def outside_of(game: GymnasiumGame) -> Outside:
    """Describe what an environment's player observes and does, for programs that act without palestra."""
    config, device, numbers, entries, converts = game.config, game.device, game.numbers, {}, {}
    for entry in game.reader.entries:
        leaf = part_of(game.reader.gym_space, entry)
        kind = np.dtype(leaf.dtype).name
        dtype = getattr(torch, kind if kind in KINDS else "int64")
        entries[entry.name] = OutsideEntry(leaf.shape or (), dtype, entry.path)
        converts[entry.name] = _converter(leaf, entry, device)
    normalize, clip = config.observation.normalize, config.observation.clip
    scales = {
        name: tuple(
            torch.tensor(each, device=device) for each in (found.center(), np.sqrt(found.variance + normalize.eps))
        )
        for name, found in game.observation_moments.items()
        if normalize is not None
    }

    def read(observation: dict[str, Tensor]) -> dict[str, Tensor]:
        found = {}
        for name, value in observation.items():
            if name in scales:
                mean, deviation = scales[name]
                value = (value.to(torch.float64).reshape(-1, *mean.shape) - mean) / deviation
            value = converts[name](value)
            found[name] = value.clamp(-clip, clip) if clip is not None and name in numbers else value
        return found

    setting = {
        "id": config.id,
        "arguments": dict(config.arguments),
        "wrappers": [wrapper.model_dump(mode="json") for wrapper in config.wrappers],
        "action_mask": config.action_mask,
    }
    return Outside(entries, read, *_actions(game), setting)


def _converter(leaf: gymnasium.Space, entry: Entry, device: torch.device) -> Convert:
    """Make a function that does for tensors what `entry.read` does."""
    match leaf:
        case gymnasium.spaces.Discrete():
            return _one_hots(np.array([leaf.n]), np.array([leaf.start]), device)
        case gymnasium.spaces.MultiDiscrete():
            return _one_hots(leaf.nvec.flatten(), leaf.start.flatten(), device)
    shape = entry.space.shape
    if entry.space.dtype != torch.uint8:
        return lambda value: value.to(torch.float32).reshape(-1, *shape)
    places = np.arange(int(np.prod(leaf.shape or ()))).reshape(1, *(leaf.shape or ()))
    order = torch.from_numpy(entry.read(places).flatten()).to(device)  # where each pixel comes from
    return lambda value: value.flatten(1)[:, order].reshape(-1, *shape)


def _one_hots(nums: np.ndarray, starts: np.ndarray, device: torch.device) -> Convert:
    """Make a function that gives the one-hots of all choices in a row, by comparing each with all of its values."""
    values = np.concatenate([np.arange(num) + start for num, start in zip(nums, starts, strict=True)])
    owners = torch.from_numpy(np.repeat(np.arange(len(nums)), nums)).to(device)
    wanted = torch.from_numpy(values).to(device)
    return lambda value: (value.to(torch.int64).reshape(-1, len(nums))[:, owners] == wanted).to(torch.float32)


def _actions(game: GymnasiumGame) -> tuple[Convert, Convert]:
    """Make functions that convert our actions to Gymnasium's, and back.

    The conversion gives another shape and type and adds what choices start from, which those of zeros tell.
    """
    space = game.action_space
    zeros = np.asarray(game.to_gym_actions(torch.zeros(1, *space.shape, dtype=space.dtype).numpy()))
    starts = torch.from_numpy(zeros[0].astype(zeros.dtype)).to(game.device) if zeros[0].ndim else int(zeros[0])
    shape, dtype = zeros.shape[1:], getattr(torch, zeros.dtype.name)
    return (
        lambda actions: (actions.reshape(-1, *shape) + starts).to(dtype),
        lambda actions: (actions - starts).reshape(-1, *space.shape).to(space.dtype),
    )
