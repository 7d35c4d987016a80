"""Lets every episode of an environment begin from a seed of its own, so that any episode can be replayed."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import gymnasium
import numpy as np
import torch

from palestra.config import failure
from palestra.games.gymnasium.faults import fault_of_observation, fault_of_reset, raise_for
from palestra.games.gymnasium.memory import own_copy
from palestra.games.world import EnvironmentFailed
from palestra.randomness import fold_number

PCG64_INCREMENT = 0x5851F42D4C957F2D14057B7EF767814F  # any odd number picks a stream (O'Neill 2014)


def episode_seed(key: int, world: int, episode: int) -> int:
    """Return the seed of an episode, 0 <= seed < 2**31, from a stream's key, the world and the episode's number."""
    return fold_number(fold_number(key, world), episode) % 2**64 >> 33


class EpisodeSeeds(gymnasium.Wrapper):
    """The outermost wrapper of every environment: each reset begins the next episode from a seed of its own.

    world: its place among the environments that step together. first: the number of the first of these. replay: the
    number of an episode and its actions so far; the next reset replays them and returns the last observation.
    has_ended: whether the replayed episode has ended; the next step then begins the next episode, as gymnasium's
    autoreset at the next step does. The observation of a reset has memory of its own, and its info is left out. Raises
    EnvironmentFailed if a reset raises, exits or returns an invalid value.
    """

    def __init__(self, env: gymnasium.Env, key: int, world: int, first: int = 0) -> None:
        super().__init__(env)
        self.key, self.world, self.number, self.episode = key, world, first + world, -1
        self.replay: tuple[int, Sequence[Any]] | None = None
        self.has_ended = False
        self.step = env.step  # type: ignore[method-assign]  # a method of our own would cost a call at every step
        self._generators = [space.np_random for space in _leaf_spaces(_action_spaces(env))]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.episode, actions = (self.episode + 1, ()) if self.replay is None else self.replay
        self.replay = None
        self.has_ended = False
        self.step = self.env.step  # type: ignore[method-assign]
        seed = episode_seed(self.key, self.number, self.episode)
        for index, generator in enumerate(self._generators):
            generator.bit_generator.state = _pcg64_state(fold_number(seed, index))
        try:
            result = self.env.reset(seed=seed)
            raise_for(fault_of_reset(self.observation_space, result), self.world)
            observation, _ = result
            for action in actions:
                if self.has_ended:
                    break
                observation, _, terminated, truncated, _ = self.env.step(action)
                self.has_ended = bool(terminated or truncated)
            raise_for(fault_of_observation(self.observation_space, observation), self.world)
            observation = own_copy(observation)
        except (EnvironmentFailed, KeyboardInterrupt):
            raise
        except BaseException as error:  # an environment may call sys.exit, or raise what is no Exception
            raise EnvironmentFailed(failure(error), self.world) from error
        if self.has_ended:
            self.step = self._reset_only  # type: ignore[method-assign]
        return observation, {}

    def _reset_only(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, info = self.reset()
        return observation, 0.0, False, False, info


def _action_spaces(env: gymnasium.Env) -> list[gymnasium.Space]:
    """List the action spaces of an environment and of all environments that it wraps, each once."""
    spaces = [env.action_space]
    while isinstance(env, gymnasium.Wrapper):
        env = env.env
        spaces.append(env.action_space)
    return list({id(space): space for space in spaces}.values())


def _leaf_spaces(spaces: Iterable[gymnasium.Space]) -> Iterator[gymnasium.Space]:
    for space in spaces:
        match space:
            case gymnasium.spaces.Dict():
                yield from _leaf_spaces(space.values())
            case gymnasium.spaces.Tuple():
                yield from _leaf_spaces(space)
            case _:
                yield space


def _pcg64_state(key: int) -> dict[str, Any]:
    """Make a state of numpy's generator. Setting it at every episode takes a fifth of the time of `space.seed`."""
    high, low = (fold_number(key, half) % 2**64 for half in range(2))
    state = {"state": (high << 64) | low, "inc": PCG64_INCREMENT}
    return {"bit_generator": "PCG64", "state": state, "has_uint32": 0, "uinteger": 0}


class RunningEpisodes:
    """Counts the episodes of B worlds and remembers the actions of those that run."""

    def __init__(self, num_worlds: int) -> None:
        self.numbers = np.zeros(num_worlds, dtype=np.int64)  # of the running episodes
        self.starts = np.zeros(num_worlds, dtype=np.int64)  # where they begin among the remembered steps
        self.actions = np.empty((0, num_worlds))  # (capacity, B, ...): those of the last `num_remembered` steps
        self.num_remembered = 0
        self.num_forgotten = 0  # steps before them

    def add(self, actions: np.ndarray) -> None:
        """Remember the actions of a step, (B, ...)."""
        if self.num_remembered == len(self.actions):
            self._extend(actions)
        self.actions[self.num_remembered] = actions
        self.num_remembered += 1

    def _extend(self, actions: np.ndarray) -> None:
        """Forget the actions that no running episode needs, and double the capacity if many are left."""
        first = int(self.starts.min())
        needed = self.actions[first : self.num_remembered]
        self.actions = np.empty((max(2 * len(needed), len(self.actions), 256), *actions.shape), dtype=actions.dtype)
        self.actions[: len(needed)] = needed.reshape(len(needed), *actions.shape)
        self.starts -= first
        self.num_forgotten += first
        self.num_remembered = len(needed)

    def begin(self, where: np.ndarray) -> None:
        """Count new episodes in some worlds, bool (B,); their first action will be the next one."""
        self.numbers += where
        np.putmask(self.starts, where, self.num_remembered)

    @property
    def num_steps(self) -> int:
        """The number of steps since the environments were made or replayed."""
        return self.num_forgotten + self.num_remembered

    def num_steps_of(self, world: int) -> int:
        """Count the steps of the episode that runs in a world."""
        return self.num_remembered - int(self.starts[world])

    def replays(self) -> list[tuple[int, np.ndarray]]:
        """Return for each world the number of its episode and a copy of the actions of that episode so far."""
        return [
            (int(number), self.actions[start : self.num_remembered, world].copy())
            for world, (number, start) in enumerate(zip(self.numbers, self.starts, strict=True))
        ]

    def state_dict(self) -> dict[str, Any]:
        first = int(self.starts.min())
        return {
            "episodes": torch.tensor(self.numbers),
            "starts": torch.tensor(self.starts - first),
            "actions": torch.tensor(self.actions[first : self.num_remembered]),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.numbers, self.starts, self.actions = (
            state[name].cpu().numpy().copy() for name in ("episodes", "starts", "actions")
        )
        self.num_remembered = len(self.actions)
