"""GymnasiumGame: any Gymnasium environment as a game of one role, `agent`."""

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from weakref import WeakSet

import numpy as np
import torch

from palestra.config import ConfigError, ConfigErrorItem, failure
from palestra.config.errors import listed
from palestra.games.config import GameConfig
from palestra.games.game import Kernel, Observation
from palestra.games.gymnasium.config import EnvironmentConfig, SyncConfig
from palestra.games.gymnasium.declared import has_exact_actions
from palestra.games.gymnasium.environments import close_vector, make_environment, make_vector
from palestra.games.gymnasium.faults import fault_of_reset
from palestra.games.gymnasium.normalization import Moments
from palestra.games.gymnasium.spaces import Arrays, ObservationReader, UnknownSpace, action_space
from palestra.games.gymnasium.world import GymnasiumWorld
from palestra.games.policy import Policy
from palestra.games.spaces import ActionSpace
from palestra.games.world import WorldGame
from palestra.randomness import world_keys


class GymnasiumConfig(EnvironmentConfig):
    """Every key of `game: {name: gymnasium}`."""

    has_info = True

    def build(self, device: torch.device, kernel: Kernel) -> "GymnasiumGame":
        return GymnasiumGame(self, device)

    def declared_roles(self) -> tuple[str, ...]:
        return GymnasiumGame.roles

    def declares_actions(self) -> bool:
        return has_exact_actions(self)

    def made_environment(self) -> str:
        return self.id

    def misfit(self, other: GameConfig) -> ConfigErrorItem | None:
        if isinstance(other, EnvironmentConfig) and other.observation != self.observation:
            message = "expected the same as in the run's game, by which its players see, got another one"
            return ConfigErrorItem("observation", message)
        return None


class GymnasiumGame(WorldGame):
    """What the environments of a config see and do (palestra.games.gymnasium.spaces tells how), and the running
    statistics by which observations and rewards are normalised. They belong to the game: its training worlds teach
    them, its other worlds only use them, and they go into checkpoints with it.

    Raises ConfigError where the environment cannot be made, or has spaces that no player of ours can handle.
    """

    roles = ("agent",)
    tallies = ()
    always_legal = True

    def __init__(self, config: GymnasiumConfig, device: torch.device) -> None:
        self.config, self.device, self.can_restart = config, device, not config.is_vector
        self.is_on_cpu = device.type == "cpu"
        try:
            self.reader, self.action_space, self.to_gym_actions = _reader_and_actions(config)
        except UnknownSpace as error:
            raise ConfigError([ConfigErrorItem("game.id", f"{config.id!r} cannot be played: {error}")]) from error
        except ConfigError as error:
            raise ConfigError([ConfigErrorItem(f"game.{item.path}", item.message) for item in error.errors]) from error
        self.spaces = {"agent": {entry.name: entry.space for entry in self.reader.entries}}
        self.action_spaces = {"agent": self.action_space}
        numbers = [entry for entry in self.reader.entries if entry.is_number]
        observation, reward = config.observation, config.reward
        self.plain_observations = observation.normalize is None and observation.clip is None
        self.plain_rewards = reward.normalize is None and reward.clip is None
        if not numbers and not self.plain_observations:
            message = "the observation has no numbers, only images or choices; expected null for normalize and clip"
            raise ConfigError([ConfigErrorItem("game.observation", message)])
        self._numbers = {entry.name for entry in numbers}
        self._observation_moments = {
            entry.name: Moments(entry.space.shape) for entry in numbers if observation.normalize is not None
        }
        self.reward_moments = Moments(())
        self._worlds: WeakSet[GymnasiumWorld] = WeakSet()

    def make_world(self, num_worlds: int, key: int, training: bool) -> GymnasiumWorld:
        """Fresh worlds; the seeds of their episodes come from `key`. training: whether the statistics learn from
        them."""
        world = GymnasiumWorld(self, num_worlds, key, training)
        self._worlds.add(world)
        return world

    def view(self, observations: Any) -> Observation:
        """What a player sees of a batch of the environment's own observations, as a vector environment gives them."""
        arrays = self.transform(self.reader.read(observations))
        return {name: torch.from_numpy(value).to(self.device) for name, value in arrays.items()}

    def act(self, policy: Policy, observations: Any, key: int) -> np.ndarray:
        """What a policy does on a batch of the environment's own observations, as the environment takes it. What it
        draws comes from `key`. NotImplementedError for a policy that remembers."""
        view = self.view(observations)
        keys = world_keys(key, len(next(iter(view.values()))), self.device)
        legal = torch.ones(len(keys), self.action_space.num_flags, dtype=torch.bool, device=self.device)
        with torch.no_grad():
            decision = policy.act(view, legal, keys, {})
        if decision.memory:
            raise NotImplementedError("this player remembers: call policy(explore=False).act, and keep its memory")
        return self.to_gym_actions(decision.action.cpu().numpy())

    def drawn(self) -> "GymnasiumGame":
        """The same game, one environment after the other, whose worlds can be drawn."""
        if self.config.is_vector:
            message = "expected 'sync' or 'async' for filming, got an environment's own vector environment"
            raise ConfigError([ConfigErrorItem("game.vectorization.name", message)])
        if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
            os.environ.setdefault("MUJOCO_GL", "egl")  # MuJoCo would look for a screen
            os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # and so would pygame
        arguments = {**self.config.arguments, "render_mode": "rgb_array"}
        vectorization = SyncConfig(name="sync", autoreset="next_step")  # which shows the last frame too
        config = self.config.model_copy(update={"arguments": arguments, "vectorization": vectorization})
        drawn = GymnasiumGame(config, self.device)
        drawn.load_state_dict(self.state_dict())
        return drawn

    # ---- running statistics ------------------------------------------------------------------------------

    def transform(self, seen: Arrays) -> Arrays:
        """Observations as the config says: normalised by what is known so far, then cut."""
        normalize, clip = self.config.observation.normalize, self.config.observation.clip
        new = dict(seen)
        for name in self._numbers:
            if normalize is not None:
                new[name] = self._observation_moments[name].standardized(new[name], normalize.eps)
            if clip is not None:
                new[name] = new[name].clip(-clip, clip)
        return new

    def transformation(self) -> dict[str, Any]:
        """What `transform` does, for who acts without palestra: (x - mean) / sqrt(variance + eps), then a cut to
        -clip..clip; null where nothing is done."""
        normalize, moments = self.config.observation.normalize, self._observation_moments.items()
        return {
            "mean": None if normalize is None else {name: m.mean.tolist() for name, m in moments},
            "variance": None if normalize is None else {name: m.variance.tolist() for name, m in moments},
            "eps": None if normalize is None else normalize.eps,
            "clip": self.config.observation.clip,
        }

    def learn_observations(self, seen: Arrays) -> None:
        for name, moments in self._observation_moments.items():
            moments.update(seen[name])

    def learn_returns(self, returns: np.ndarray) -> None:
        self.reward_moments.update(returns)

    def state_dict(self) -> dict[str, Any]:
        observation = {name: moments.state_dict() for name, moments in self._observation_moments.items()}
        return {"observation": observation, "reward": self.reward_moments.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, moments in self._observation_moments.items():
            moments.load_state_dict(state["observation"][name])
        self.reward_moments.load_state_dict(state["reward"])

    def close(self) -> None:
        """Close the environments of all worlds, and their processes. Who is played on opens its own again."""
        for world in list(self._worlds):
            world.close()


def _reader_and_actions(config: EnvironmentConfig) -> tuple[ObservationReader, ActionSpace, Callable[..., np.ndarray]]:
    """What reads the observations of an environment, and its actions; tried on its first observation."""
    if config.is_vector:
        vector = make_vector(config, 1, 0)
        observed, acted = vector.single_observation_space, vector.single_action_space
        close_vector(vector)
        return ObservationReader(observed), *action_space(acted)
    env = make_environment(config)
    reader, actions = ObservationReader(env.observation_space), action_space(env.action_space)
    try:
        why = fault_of_reset(env.observation_space, env.reset(seed=0))
    except (Exception, SystemExit) as error:  # of the environment or of a wrapper
        why = failure(error)
    with suppress(Exception, SystemExit):  # nobody waits for it
        env.close()
    if why is not None:
        above = f" in the wrappers {listed(wrapper.name for wrapper in config.wrappers)}" if config.wrappers else ""
        message = f"{config.id!r}{above} gives no first observation: {why}"
        raise ConfigError([ConfigErrorItem("wrappers" if config.wrappers else "id", message)])
    return reader, *actions
