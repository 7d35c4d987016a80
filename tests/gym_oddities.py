"""Gymnasium environments that are allowed to be as they are. In a config: `id: tests.gym_oddities:Name-v0`."""

import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv, VectorEnv, VectorWrapper
from gymnasium.vector.vector_env import AutoresetMode

from tests.gym_probes import Walk


class Blink(gymnasium.Env):
    """Every episode is one step long, terminated or truncated by turns. Observed: [number of the episode, age], as
    integers. Reward: the number of the episode, an integer too."""

    observation_space = spaces.Box(0, 10**6, (2,), np.int64)
    action_space = spaces.Discrete(2)
    number = -1

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.number += 1
        return np.array([self.number, 0]), {}

    def step(self, action: Any) -> tuple[Any, int, bool, bool, dict[str, Any]]:
        is_even = self.number % 2 == 0
        return np.array([self.number, 1]), self.number, is_even, not is_even, {}


class Cockpit(gymnasium.Env):
    """Observed: a dict with an image, numbers without bounds, bits in a matrix, a choice from -2 on, and a dict with a
    dot and a digit for names. Everything shows the step of the episode, 0..3. Actions from -1 on: reward 1.0, a numpy
    float64, for the action step % 3 - 1."""

    observation_space = spaces.Dict(
        {
            "camera": spaces.Box(0, 255, (36, 40, 3), np.uint8),
            "speed": spaces.Box(-np.inf, np.inf, (2,), np.float64),
            "lamps": spaces.MultiBinary([2, 2]),
            "gear": spaces.Discrete(4, start=-2),
            "deep.er": spaces.Dict({"1": spaces.MultiDiscrete([4, 4]), "wide": spaces.Box(-5, 5, (), np.int32)}),
        }
    )
    action_space = spaces.Discrete(3, start=-1)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.age = 0
        return self.seen(), {}

    def seen(self) -> Any:
        age = min(self.age, 3)
        return {
            "camera": np.full((36, 40, 3), age, np.uint8),
            "speed": np.array([age, -1e9 * age]),
            "lamps": np.full((2, 2), age % 2, np.int8),
            "gear": np.int64(age - 2),
            "deep.er": {"1": np.array([age, 3 - age]), "wide": np.array(age, np.int32)},
        }

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        reward = np.float64(action == self.age % 3 - 1)
        self.age += 1
        return self.seen(), reward, False, self.age == 4, {}


class Foreign(gymnasium.Env):
    """Nothing in it is as palestra has it: names that files have already, choices that start elsewhere, a clock in
    whole numbers, an image with the channels last, actions of any shape. It observes what chance gives, and takes
    only what its spaces contain."""

    def __init__(self, actions: str) -> None:
        self.observation_space = spaces.Dict(
            {
                "action": spaces.Discrete(3, start=-1),
                "legal": spaces.MultiDiscrete([2, 3], start=[1, -2]),
                "linear": spaces.MultiBinary([2, 2]),
                "a b": spaces.Box(-9.0, 9.0, (2, 1), np.float64),
                "pair": spaces.Tuple((spaces.Box(0, 9 * 10**6, (), np.int64), spaces.Box(0, 255, (9, 8, 3), np.uint8))),
            }
        )
        self.action_space = {
            "discrete": spaces.Discrete(3, start=-1),
            "multi_discrete": spaces.MultiDiscrete([[2], [3]], start=[[1], [-2]]),
            "multi_binary": spaces.MultiBinary([2, 2]),
            "box": spaces.Box(-2.0, np.array([[1.0], [5.0]]), (2, 1), np.float64),
        }[actions]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        return self.observation_space.sample(), 0.0, False, False, {}


class Unreadable(Walk):
    """A Walk that says it is seen in a way that no player of ours can handle."""

    def __init__(self, space: str) -> None:
        number = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.observation_space = {
            "sequence": spaces.Sequence(number),
            "graph": spaces.Dict({"inner": spaces.Graph(number, None)}),
            "text": spaces.Tuple((number, spaces.Text(3))),
            "one_of": spaces.OneOf((number, number)),
            "nothing": spaces.Dict({}),
            "no_numbers": spaces.Box(-1.0, 1.0, (0,), np.float32),
            "same_name": spaces.Dict({"a/b": number, "a": spaces.Dict({"b": number})}),
        }[space]


class Lying(Walk):
    """A Walk that sees more than its space says."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)


class Stillborn(Walk):
    """A Walk that cannot begin."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        raise FileNotFoundError("map.txt")


class Leaving(Walk):
    """A Walk that ends the process in place of beginning."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        sys.exit("there is no map")


class Reusing(Walk):
    """A Walk that gives one array and one info again and again, and writes into both, also in reset. shared: they are
    those of all such Walks in this process."""

    of_all: tuple[Any, dict[str, Any]] = np.zeros(3), {}

    def __init__(self, shared: bool) -> None:
        self.array, self.told = self.of_all if shared else (np.zeros(3), {})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, _ = super().reset(seed=seed)
        self.told["age"] = -100
        return observation, self.told

    def seen(self) -> Any:
        self.array[:] = super().seen()
        return self.array

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        *outcome, _ = super().step(action)
        self.told["age"] = self.age
        return *outcome, self.told


class Scaling(gymnasium.Env):
    """Writes into its actions, and shows what they were. Episodes have eight steps."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.age = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.age += 1
        seen = action.copy()
        action *= 180
        return seen, float(seen.sum()), self.age == 8, False, {}


class Chatty(Walk):
    """A Walk whose info nobody can batch or send: lists of unequal length, None beside a dict, a text beside a number,
    a lock. `mixed` is a number at odd ages, `rows` an array as long as the age."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        *outcome, _ = super().step(action)
        is_odd = self.age % 2 == 1
        info = {
            "rows": np.arange(self.age),
            "ragged": [[1.0], [2.0] * self.age],
            "maybe": None if is_odd else {"inner": self.age},
            "mixed": self.age if is_odd else "even",
            "lock": threading.Lock(),
            7: self.age,
        }
        return *outcome, info


class Panic(BaseException):
    """What no `except Exception` catches, and what no pipe lets through."""

    def __init__(self, one: str, other: str) -> None:
        super().__init__(f"{one} {other}")
        self.held = threading.Lock()


def hang(how: str) -> None:
    """Sleep, or spin in Python, or sleep without releasing the GIL, or wait for another process, for ten minutes; or
    stop this process."""
    deadline = time.monotonic() + 600
    while how == "spin" and time.monotonic() < deadline:
        pass
    if how == "sleep":
        time.sleep(600)
    elif how == "gil":
        ctypes.PyDLL(None).sleep(600)
    elif how == "child":
        subprocess.run(["sleep", "600"])
    elif how == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)


class Breaking(Walk):
    """A Walk that does something wrong in its `at`th step or reset of all, unless the file `mended` is there.

    how: raise, panic, exit, _exit, kill; a way to hang, see `hang`, alone or after "make", "reset" or "close"; or what
    it gives that is wrong: four values, another observation, ...
    """

    def __init__(self, how: str, at: int, mended: str = "") -> None:
        self.how, self.at, self.mended = how, at, mended
        self.num_steps = self.num_resets = 0
        self.is_alone = multiprocessing.parent_process() is not None  # in a process of its own
        if how == "make" and self.is_alone:
            raise ValueError("not in a process of my own")
        if how == "make sleep" and self.is_alone:
            hang("sleep")

    def close(self) -> None:
        if self.how == "close sleep" and self.is_alone:
            hang("sleep")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        begun = super().reset(seed=seed)
        self.num_resets += 1
        if self.num_resets != self.at or not self.how.startswith("reset"):
            return begun
        if self.how == "reset sleep":
            hang("sleep")
        if self.how == "reset alone":
            return begun[0]  # as in old versions of gym
        raise ArithmeticError("no way back")

    def step(self, action: Any) -> Any:
        outcome = super().step(action)
        self.num_steps += 1
        if self.num_steps != self.at or Path(self.mended or "/nowhere").exists():
            return outcome
        observation, reward, terminated, truncated, info = outcome
        match self.how:
            case "raise":
                raise ArithmeticError("the sum\nis too large")
            case "panic":
                raise Panic("all", "is lost")
            case "exit":
                sys.exit(3)
            case "_exit":
                os._exit(3)
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "sleep" | "spin" | "gil" | "child" | "stop":
                hang(self.how)
        return {
            "four": outcome[:4],
            "none": None,
            "shape": (observation[:2], reward, terminated, truncated, info),
            "shapes": (np.zeros(4 if self.at == 2 else 2), reward, terminated, truncated, info),
            "words": (np.array(["a", "b", "c"]), reward, terminated, truncated, info),
            "ragged": ([[1.0], [], [2.0]], reward, terminated, truncated, info),
            "number": (7.0, reward, terminated, truncated, info),
            "reward": (observation, "1.5", terminated, truncated, info),
            "no reward": (observation, None, terminated, truncated, info),
            "rewards": (observation, np.ones(2), terminated, truncated, info),
            "terminated": (observation, reward, "no", truncated, info),
            "truncated": (observation, reward, terminated, None, info),
            "info": (observation, reward, terminated, truncated, [1]),
        }.get(self.how, outcome)


class Dawdling(Walk):
    """A Walk of 100 steps that takes its time for each of them."""

    def __init__(self, step_s: float) -> None:
        self.step_s = step_s

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        _, info = super().reset(seed=seed)
        self.length = 100
        return self.seen(), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(self.step_s)
        return super().step(action)


class Moving(Walk):
    """A Walk that plays in another working directory."""

    def __init__(self, folder: str) -> None:
        os.chdir(folder)


class NotANumber(Walk):
    """A Walk whose rewards, or observations, are NaN from the third step of an episode on."""

    def __init__(self, where: str) -> None:
        self.where = where

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        seen, reward, *others = super().step(action)
        is_late = self.age >= 3
        if self.where == "reward":
            return seen, np.nan if is_late else reward, *others
        return np.full(3, np.nan) if is_late else seen, reward, *others


class Clock(gymnasium.Env):
    """Observed, and the reward, is a time that begins late and goes slowly."""

    action_space = spaces.Discrete(2)

    def __init__(self, dtype: str, start: float, pace: float) -> None:
        self.dtype, self.start, self.pace = np.dtype(dtype), start, pace
        bounds = (-np.inf, np.inf) if self.dtype.kind == "f" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        self.observation_space = spaces.Box(*bounds, (1,), self.dtype.type)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.age = 0
        return self.seen(), {}

    def seen(self) -> Any:
        return np.array([self.start + self.age * self.pace], self.dtype)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.age += 1
        return self.seen(), float(self.start + self.age * self.pace), False, False, {}


class Gap(gymnasium.Env):
    """Episodes of one step. The first observation of those after the third, or the last of those from the third on,
    holds an infinity."""

    observation_space = spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Box(-np.inf, np.inf, (2, 1), np.float32)})
    action_space = spaces.Discrete(2)
    number = -1

    def __init__(self, where: str) -> None:
        self.where = where

    def seen(self, where: str) -> Any:
        b = np.zeros((2, 1), np.float32)
        if where == self.where and self.number >= (2 if where == "last" else 3):
            b[1] = np.inf
        return {"a": 0, "b": b}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.number += 1
        return self.seen("first"), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.seen("last"), 0.0, True, False, {}


class Locked(gymnasium.Env):
    """Takes two numbers, of which the second is locked at 0.3. Reward: the first. Four steps."""

    observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = spaces.Box(np.float32([-1.0, 0.3]), np.float32([1.0, 0.3]))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.age = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        self.age += 1
        return np.zeros(1, np.float32), float(action[0]), False, self.age == 4, {}


class Drawn(gymnasium.Env):
    """Drawn as a grey picture, 40 brighter at every step; an episode is three steps long. Reward: 1. how: in which form
    `render` gives the picture."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012
    observation_space = spaces.Box(0.0, 3.0, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, render_mode: str | None = None, how: str = "colours") -> None:
        self.render_mode, self.how = render_mode, how
        if how == "no fps":
            self.metadata = self.metadata | {"render_fps": None}
        self.kept = np.zeros((32, 48, 3), np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.age = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.age += 1
        return np.full(1, self.age, np.float32), 1.0, self.age == 3, False, {}

    def render(self) -> Any:
        level = 40 + 40 * self.age
        picture = np.full((33, 48, 3), level, np.uint8)
        if self.how == "kept":
            self.kept[:] = level
            return self.kept
        return {
            "flat": picture[:, :, 0],
            "grey": picture[:, :, :1],
            "opaque": np.full((33, 48, 4), [level, level, level, 255], np.uint8),
            "first": picture.transpose(2, 0, 1),
            "list": [np.zeros_like(picture), picture],
            "flat list": [np.zeros((33, 48)), picture[:, :, 0]],
            "nested": picture.tolist(),
            "float": picture / 255.0,
            "large": picture.astype(np.float64),
            "long": picture.astype(np.int64),
            "none": None,
            "empty": [],
            "text": "a picture",
            "ragged": [[1, 2], [3]],
            "nan": picture * np.nan,
            "too large": picture * 2.5,
            "two": picture[:, :, :2],
            "row": picture[:1],
            "growing": np.zeros((32 + 2 * self.age, 48, 3), np.uint8),
        }.get(self.how, picture)


class Batched(VectorWrapper):
    """Gives the last observations of episodes as one array, zeros where none has ended."""

    def step(self, actions: Any) -> Any:
        *outcome, infos = self.env.step(actions)
        if "final_obs" in infos:
            last = [np.zeros(3) if seen is None else seen for seen in infos["final_obs"]]
            infos = infos | {"final_obs": np.stack(last)}
        return *outcome, infos


def many_walks(num_envs: int, mode: str, batched: bool) -> VectorEnv:
    walks = SyncVectorEnv([Walk] * num_envs, autoreset_mode=AutoresetMode(mode))
    return Batched(walks) if batched else walks


class Babbling(VectorWrapper):
    """Says of worlds that only begin anew in a step that they end, with a reward."""

    over: np.ndarray | bool = False

    def step(self, actions: Any) -> Any:
        observations, rewards, terminated, truncated, infos = super().step(actions)
        began, self.over = self.over, terminated | truncated
        return observations, np.where(began, 99.0, rewards), terminated | began, truncated, infos


def babbling_walks(num_envs: int) -> VectorEnv:
    return Babbling(SyncVectorEnv([Walk] * num_envs, autoreset_mode=AutoresetMode.NEXT_STEP))


class ReusingVector(VectorWrapper):
    """Gives the same arrays again and again."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(SyncVectorEnv([Walk] * num_envs, autoreset_mode=AutoresetMode.NEXT_STEP))
        self.kept = np.zeros((num_envs, 3)), np.zeros(num_envs), *np.zeros((2, num_envs), dtype=bool)

    def step(self, actions: Any) -> Any:
        *arrays, infos = super().step(actions)
        for kept, array in zip(self.kept, arrays, strict=True):
            kept[:] = array
        actions[:] = 0
        return *self.kept, infos


class BreakingVector(SyncVectorEnv):
    """Walks, of which in the third step something is wrong."""

    def __init__(self, num_envs: int, how: str) -> None:
        super().__init__([Walk] * num_envs, autoreset_mode=AutoresetMode.NEXT_STEP)
        self.how, self.num_steps = how, 0

    def step(self, actions: Any) -> Any:
        observations, rewards, terminated, truncated, infos = super().step(actions)
        self.num_steps += 1
        if self.num_steps != 3:
            return observations, rewards, terminated, truncated, infos
        if self.how == "exit":
            sys.exit(3)
        return {
            "four": (observations, rewards, terminated, truncated),
            "shape": (observations[:, :2], rewards, terminated, truncated, infos),
            "rewards": (observations, rewards[:, None], terminated, truncated, infos),
            "terminated": (observations, rewards, terminated.astype(int), truncated, infos),
            "infos": (observations, rewards, terminated, truncated, [infos]),
        }[self.how]


for oddity in (
    *(Blink, Cockpit, Foreign, Unreadable, Lying, Stillborn, Leaving, Breaking, Dawdling, Moving, NotANumber, Drawn),
    *(Reusing, Scaling, Chatty, Clock, Gap, Locked),
):
    gymnasium.register(f"{oddity.__name__}-v0", entry_point=f"{__name__}:{oddity.__name__}")
gymnasium.register("ManyWalks-v0", vector_entry_point=f"{__name__}:many_walks")
gymnasium.register("BabblingWalks-v0", vector_entry_point=f"{__name__}:babbling_walks")
gymnasium.register("ReusingVector-v0", vector_entry_point=f"{__name__}:ReusingVector")
gymnasium.register("BreakingVector-v0", vector_entry_point=f"{__name__}:BreakingVector")
