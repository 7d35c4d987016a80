"""Checks of games and environments of your own.

A game keeps the promises of TensorGame; a Gymnasium environment keeps to its spaces, and repeats an episode from its
seed.
"""

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
from gymnasium.spaces import Box, Discrete
from gymnasium.utils.env_checker import check_env

from palestra.config import ConfigError
from palestra.games.game import TensorGame
from palestra.games.gymnasium.seeding import episode_seed
from palestra.games.gymnasium.spaces import ObservationReader, UnknownSpace, action_space
from palestra.games.tryout import try_game
from palestra.randomness import restored_global_states
from palestra.testing.tryout import CannotGoOn, TryOut

NUM_MOVES = 200


def check_game(game: TensorGame) -> None:
    """Play a game for 200 moves with random legal actions, and check what its methods return.

    It checks the shapes, dtypes and devices of states, observations, masks, rewards and ends; whether the same input
    gives the same output, for a single world as for many, and nothing is written to the input; whether some role
    decides in every world at least once in 100 moves; and whether `refill`, `transition_in_place` and `stepper`, if the
    game has its own, do what the other methods do. Raises TypeError for an object that is no TensorGame, and
    ConfigError with a line for every fault, which begins with the method's name.
    """
    if not isinstance(game, TensorGame):
        raise TypeError(f"expected a TensorGame, got {type(game).__name__}")
    ConfigError.require_none(try_game(game, NUM_MOVES))


KEY = 1  # of the stream that the seeds of the episodes come from
NUM_EPISODES, NUM_STEPS = 3, 100

Environment = gymnasium.Env[Any, Any]


def check_environment(environment: Environment | Callable[[], Environment]) -> None:
    """Check an environment as palestra plays it, and by `gymnasium.utils.env_checker.check_env`.

    palestra must be able to play its spaces; its observations must have their shapes and dtypes and lie inside them,
    its rewards must be finite numbers, its ends bools. The same seed and actions must give the same bits again,
    whatever was played meanwhile and whatever the states of the global random generators, so that a resumed run is
    exact. Discrete actions are legal where `action_mask`, in info or in a dict that is observed, says which are.

    environment: an environment, or a callable that makes one, such as its class; then a second one must give the same
    bits too. Raises ConfigError with a line for every fault, which begins with the method's name.
    """
    make = None if isinstance(environment, gymnasium.Env) else environment
    try_out = _TryOut(getattr(make, "__name__", "environment"))
    with restored_global_states(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with suppress(CannotGoOn):
            try_out.check(environment if make is None else try_out.call("__init__", make), make)
    ConfigError.require_none(try_out.faults)


class _TryOut(TryOut):
    """Plays one environment and collects its faults, in their order."""

    reader: ObservationReader
    is_masked = False

    def check(self, env: Any, make: Callable[[], Environment] | None) -> None:
        self.name = type(env.unwrapped).__name__
        readers: dict[str, Callable[[Any], Any]] = {"observation_space": _reader, "action_space": action_space}
        for space, read in readers.items():
            try:
                read(getattr(env, space))
            except UnknownSpace as error:
                self.fault(space, str(error))
        if self.faults:
            return
        self.reader = _reader(env.observation_space)
        episodes = [self.play(env, number) for number in range(NUM_EPISODES)]
        self.play_again(env, episodes, "the same environment")
        if make is not None and not self.faults:
            self.play_again(self.call("__init__", make), episodes, "a second environment")
        try:
            if not self.is_masked:  # it plays any action
                check_env(env, skip_render_check=True, skip_close_check=True)
        except Exception as error:
            if not self.faults:  # gymnasium's message would repeat a fault
                self.fault("check_env", f"gymnasium says: {' '.join(str(error).split())}")

    def play_again(self, env: Any, episodes: list[bytes], where: str) -> None:
        """Play the episodes again from their seeds, the last one first, and compare them."""
        for number in reversed(range(NUM_EPISODES)):
            torch.manual_seed(number)
            np.random.seed(number)
            random.seed(number)
            if self.play(env, number) != episodes[number]:
                self.fault("reset", f"expected the same episode from the same seed and actions in {where}, got another")
                return

    def play(self, env: Any, number: int) -> bytes:
        """Play an episode; returns all its bits: observations, rewards and ends."""
        actions = deepcopy(env.action_space)
        actions.seed(number)
        env.action_space.seed(number)  # an environment may draw from it too
        found = self.call("reset", lambda: env.reset(seed=episode_seed(KEY, 0, number)))
        if not (isinstance(found, tuple) and len(found) == 2 and isinstance(found[1], dict)):
            self.end("reset", f"expected a tuple of observation and info, a dict, got {_kind(found)}")
        bits = self.read("reset", env, found[0])
        for _ in range(NUM_STEPS):
            shown = [each for each in (found[-1], found[0]) if isinstance(each, dict) and "action_mask" in each]
            self.is_masked = isinstance(actions, Discrete) and bool(shown)
            mask = np.asarray(shown[0]["action_mask"], dtype=np.int8) if self.is_masked else None
            found = self.call("step", env.step, self.call("action_mask", actions.sample, mask))
            if not (isinstance(found, tuple) and len(found) == 5):
                self.end("step", f"expected observation, reward, terminated, truncated, info, got {_kind(found)}")
            observation, reward, terminated, truncated, _ = found
            bits += self.read("step", env, observation)
            if not isinstance(reward, Real | np.ndarray) or not np.isfinite(np.asarray(reward, dtype=float)).all():
                self.end("step", f"expected a finite number as the reward, got {reward!r}")
            for name, end in {"terminated": terminated, "truncated": truncated}.items():
                if not isinstance(end, bool | np.bool_):
                    self.fault("step", f"expected a bool as {name}, got {_kind(end)}")
            bits += np.array([float(reward), bool(terminated), bool(truncated)]).tobytes()
            if terminated or truncated:
                break
        return bits

    def read(self, method: str, env: Any, observation: Any) -> bytes:
        """Check an observation; returns all its bits."""
        bits = b""
        for entry in self.reader.entries:
            value, space = observation, env.observation_space
            try:
                for key in entry.path:
                    value, space = value[key], space[key]
            except (KeyError, IndexError, TypeError):
                self.end(method, f"expected an observation with an entry {entry.name!r}, got {_kind(observation)}")
            array = np.asarray(value)
            if array.shape != space.shape or (space.dtype is not None and array.dtype.kind != space.dtype.kind):
                expected = f"{entry.name!r} to be {space.dtype} {space.shape}, as observation_space says"
                self.end(method, f"expected {expected}, got {array.dtype} {array.shape}")
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                self.end(method, f"expected finite numbers in {entry.name!r}, got nan or inf")
            outside = array[(array < space.low) | (array > space.high)] if isinstance(space, Box) else array
            if outside.size and (isinstance(space, Box) or not space.contains(array.astype(space.dtype)[()])):
                got = ", ".join(map(str, np.unique(outside)[:3]))
                self.end(method, f"expected {entry.name!r} inside {space}, as observation_space says, got {got}")
            bits += array.tobytes()
        return bits


def _reader(space: gymnasium.Space) -> ObservationReader:
    """Return the reader of the observations' entries; where images have their channels does not matter here."""
    return ObservationReader(space, "last")


def _kind(value: Any) -> str:
    return f"a tuple of {len(value)}" if isinstance(value, tuple) else type(value).__name__
