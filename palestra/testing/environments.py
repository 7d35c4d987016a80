"""A Gymnasium environment of one's own gives what its spaces say, and the same episode from the same seed."""

import random
import warnings
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from numbers import Real
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.utils.env_checker import check_env

from palestra.config import ConfigError, ConfigErrorItem, failure
from palestra.games.gymnasium.seeding import episode_seed
from palestra.games.gymnasium.spaces import ObservationReader, UnknownSpace, action_space
from palestra.randomness import restored_global_states

KEY = 1  # of the stream that the seeds of the episodes come from
NUM_EPISODES, NUM_STEPS = 3, 100

Environment = gymnasium.Env[Any, Any]


def check_environment(environment: Environment | Callable[[], Environment]) -> None:
    """Look at an environment as palestra plays it, and as `gymnasium.utils.env_checker.check_env` does.

    Its spaces are such that palestra can play it, its observations have their shapes and dtypes, its rewards are finite
    numbers, its ends are bools; and an episode's seed and actions give the same bits again, whatever was played
    meanwhile and wherever the global random generators are: so seeds and resumes are exact. environment: one, or what
    makes one, as its class; then a second one must give the same bits, too. Raises ConfigError with every fault, a line
    each, and the method's name.
    """
    trial = _Trial()
    with restored_global_states(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with suppress(_CannotGoOn):
            trial.look_at(environment)
    if trial.faults:
        raise ConfigError(list(trial.faults))


class _CannotGoOn(Exception):
    """After that fault there is nothing left to look at."""


class _Trial:
    """One environment that is played for its faults, which are kept in their order."""

    name: str
    reader: ObservationReader

    def __init__(self) -> None:
        self.faults: dict[ConfigErrorItem, None] = {}

    def fault(self, method: str, message: str) -> None:
        self.faults.setdefault(ConfigErrorItem(f"{self.name}.{method}", message))

    def look_at(self, environment: Environment | Callable[[], Environment]) -> None:
        make = None if isinstance(environment, gymnasium.Env) else environment
        self.name = type(environment).__name__ if make is None else getattr(make, "__name__", "environment")
        env: Any = environment if make is None else self.call("__init__", make)
        self.name = type(env.unwrapped).__name__
        for space, read in {"observation_space": ObservationReader, "action_space": action_space}.items():
            try:
                read(getattr(env, space))
            except UnknownSpace as error:
                self.fault(space, str(error))
        if self.faults:
            return
        self.reader = ObservationReader(env.observation_space)
        episodes = [self.play(env, number) for number in range(NUM_EPISODES)]
        self.play_again(env, episodes, "the same environment")
        if make is not None and not self.faults:
            self.play_again(self.call("__init__", make), episodes, "a second environment")
        try:
            check_env(env, skip_render_check=True, skip_close_check=True)
        except Exception as error:
            if not self.faults:  # in the words of gymnasium what is told already
                self.fault("check_env", f"gymnasium says: {' '.join(str(error).split())}")

    def play_again(self, env: Any, episodes: list[bytes], where: str) -> None:
        """The episodes from their seeds, the last one first."""
        for number in reversed(range(NUM_EPISODES)):
            torch.manual_seed(number)
            np.random.seed(number)
            random.seed(number)
            if self.play(env, number) != episodes[number]:
                self.fault("reset", f"expected the same episode from the same seed and actions in {where}, got another")
                return

    def play(self, env: Any, number: int) -> bytes:
        """All bits of an episode: observations, rewards and ends."""
        actions = deepcopy(env.action_space)
        actions.seed(number)
        env.action_space.seed(number)  # from which an environment may draw, too
        found = self.call("reset", lambda: env.reset(seed=episode_seed(KEY, 0, number)))
        if not (isinstance(found, tuple) and len(found) == 2 and isinstance(found[1], dict)):
            self.fault("reset", f"expected a tuple of observation and info, a dict, got {_kind(found)}")
            raise _CannotGoOn
        bits = self.read("reset", env, found[0])
        for _ in range(NUM_STEPS):
            found = self.call("step", env.step, actions.sample())
            if not (isinstance(found, tuple) and len(found) == 5):
                self.fault("step", f"expected observation, reward, terminated, truncated, info, got {_kind(found)}")
                raise _CannotGoOn
            observation, reward, terminated, truncated, _ = found
            bits += self.read("step", env, observation)
            if not isinstance(reward, Real | np.ndarray) or not np.isfinite(np.asarray(reward, dtype=float)).all():
                self.fault("step", f"expected a finite number as the reward, got {reward!r}")
                raise _CannotGoOn
            for name, end in {"terminated": terminated, "truncated": truncated}.items():
                if not isinstance(end, bool | np.bool_):
                    self.fault("step", f"expected a bool as {name}, got {_kind(end)}")
            bits += np.array([float(reward), bool(terminated), bool(truncated)]).tobytes()
            if terminated or truncated:
                break
        return bits

    def read(self, method: str, env: Any, observation: Any) -> bytes:
        """All bits of an observation, which is looked at."""
        bits = b""
        for entry in self.reader.entries:
            part, space = observation, env.observation_space
            try:
                for key in entry.path:
                    part, space = part[key], space[key]
            except (KeyError, IndexError, TypeError):
                self.fault(method, f"expected an observation with an entry {entry.name!r}, got {_kind(observation)}")
                raise _CannotGoOn from None
            array = np.asarray(part)
            if array.shape != space.shape or (space.dtype is not None and array.dtype.kind != space.dtype.kind):
                expected = f"{entry.name!r} to be {space.dtype} {space.shape}, as observation_space says"
                self.fault(method, f"expected {expected}, got {array.dtype} {array.shape}")
                raise _CannotGoOn
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                self.fault(method, f"expected finite numbers in {entry.name!r}, got nan or inf")
                raise _CannotGoOn
            bits += array.tobytes()
        return bits

    def call(self, method: str, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except Exception as error:
            self.fault(method, f"raises {failure(error)}")
            raise _CannotGoOn from error


def _kind(value: Any) -> str:
    return f"a tuple of {len(value)}" if isinstance(value, tuple) else type(value).__name__
