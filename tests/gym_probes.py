"""Gymnasium environments so small that everything about them is known. In a config: `id: tests.gym_probes:Name-v0`."""

import itertools
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Walk(gymnasium.Env):
    """Steps of an episode of random length. Observed: [tag, step, sum of actions], float32; tag, length and the kind
    of end are drawn from the episode's seed. Reward: the number of the step.

    It ends after `length` steps, 1..5: terminated, truncated, or both at once, by (tag % 3).
    """

    observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float64)
    action_space = spaces.Discrete(3, start=5)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.tag, self.length = int(self.np_random.integers(1 << 20)), int(self.np_random.integers(1, 6))
        self.age, self.total = 0, 0
        return self.seen(), {}

    def seen(self) -> Any:
        return np.array([self.tag, self.age, self.total], dtype=np.float64)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        assert self.age < self.length, "stepped on after its end"
        self.age += 1
        self.total += int(action)
        is_over, kind = self.age >= self.length, self.tag % 3
        return self.seen(), float(self.age), is_over and kind != 1, is_over and kind != 0, {"age": self.age}


class Forbidding(Walk):
    """A Walk that forbids some of four actions at every step, and stops if one of these is played.

    gives: where its mask is: info.action_mask (missing at the end), observation.mask, action_masks(), or all of these.
    """

    action_space = spaces.Discrete(4, start=5)

    def __init__(self, gives: str) -> None:
        self.gives = gives
        if gives in ("observation.mask", "all"):
            mask = spaces.Box(0, 1, (4,), np.int8)
            self.observation_space = spaces.Dict({"walk": Walk.observation_space, "mask": mask})
        if gives in ("action_masks()", "all"):
            self.action_masks = lambda: self.mask.astype(bool)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.given()

    def given(self) -> tuple[Any, dict[str, Any]]:
        is_over = self.age >= self.length
        self.mask = np.zeros(4, dtype=np.int8)
        if not is_over:
            self.mask[self.np_random.permutation(4)[: self.np_random.integers(1, 4)]] = 1
        walk = Walk.seen(self)
        observation = {"walk": walk, "mask": self.mask.copy()} if self.gives in ("observation.mask", "all") else walk
        has_info = self.gives == "all" or (self.gives == "info.action_mask" and not is_over)
        return observation, {"action_mask": self.mask.copy()} if has_info else {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.mask[int(action) - 5], "played what it forbids"
        _, reward, terminated, truncated, _ = super().step(action)
        observation, info = self.given()
        return observation, reward, terminated, truncated, info


class Uneven(Walk):
    """A Walk of one step, or, every fifth time, of 200; a reward of 1 for every step."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, info = super().reset(seed=seed)
        self.length = 200 if self.length == 5 else 1
        return observation, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, _, terminated, truncated, info = super().step(action)
        return observation, 1.0, terminated, truncated, info


class Telling(Walk):
    """A Walk with fields of every kind in its info, also at resets, where they say -100."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, _ = super().reset(seed=seed)
        return observation, self.told(-100) | {"only_at_reset": 1.0}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = super().step(action)
        info = self.told(self.age)
        if terminated or truncated:
            info |= {"episode": {"l": self.age}}
        return observation, reward, terminated, truncated, info

    def told(self, number: int) -> dict[str, Any]:
        told: dict[str, Any] = {"age": number, "pair": np.array([number, -number]), "list": [number, 0.5]}
        told |= {"is_odd": np.bool_(number % 2), "inner": {"half": number / 2}, "word": "step"}
        return told | ({"rare": number} if number == 3 else {})


class TellingVector(gymnasium.vector.SyncVectorEnv):
    """Tellings as an environment's own vector environment: it says which worlds a field is of only where not all have
    one, and a number for all of them."""

    def __init__(self, num_envs: int, same_step: bool) -> None:
        mode = gymnasium.vector.AutoresetMode.SAME_STEP if same_step else gymnasium.vector.AutoresetMode.NEXT_STEP
        super().__init__([Telling] * num_envs, autoreset_mode=mode)
        self.num_steps = 0

    def step(self, actions: Any) -> Any:
        *outcome, infos = super().step(actions)
        self.num_steps += 1
        for infos_of in (infos, infos.get("final_info", {})):
            for key in [key for key, mask in infos_of.items() if key.startswith("_") and np.all(mask)]:
                del infos_of[key]
        return *outcome, infos | {"steps": self.num_steps}


class Forgetful(Walk):
    """A Walk that draws a tag without its seed at every reset."""

    numbers = itertools.count()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        _, info = super().reset(seed=seed)
        self.tag = next(self.numbers)
        return self.seen(), info


class Faulty(Walk):
    """A Walk that breaks when an episode's actions add up to `limit`."""

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        outcome = super().step(action)
        if self.total >= self.limit:
            raise ArithmeticError("the sum is too large")
        return outcome


class Slow(Walk):
    """A Walk that takes its time."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(0.01)
        return super().step(action)


class Samples(Walk):
    """A Walk whose total is drawn from its own action space."""

    def __init__(self) -> None:
        self.action_space = spaces.Discrete(3, start=5)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return super().step(self.action_space.sample())


class Mixed(gymnasium.Env):
    """Observed: a dict of every kind of space, drawn at random; the action is echoed as info. One step."""

    observation_space = spaces.Dict(
        {
            "inner": spaces.Dict(
                {"choice": spaces.Discrete(3, start=-1), "number": spaces.Box(-1.0, 1.0, (), np.float32)}
            ),
            "pair": spaces.Tuple((spaces.MultiBinary(2), spaces.MultiDiscrete([2, 3]))),
            "pixels": spaces.Box(0, 255, (4, 5, 3), np.uint8),
            "matrix": spaces.Box(-1.0, 1.0, (2, 2), np.float64),
        }
    )
    action_space = spaces.MultiDiscrete([2, 3], start=[0, 1])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        return self.observation_space.sample(), float(action.sum()), True, False, {}


class Pixels(Walk):
    """A Walk, seen as an image whose every byte is the number of the step."""

    observation_space = spaces.Box(0, 255, (12, 16, 3), np.uint8)

    def seen(self) -> Any:
        return np.full((12, 16, 3), self.age, np.uint8)


class Camera(Pixels):
    """Pixels, with numbers for actions."""

    action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)


class Noise(gymnasium.Env):
    """Frames of chance, no two alike. One step in eight ends the episode."""

    observation_space = spaces.Box(0, 255, (6, 8), np.uint8)
    action_space = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.seen(), float(action), bool(self.np_random.random() < 1 / 8), False, {}

    def seen(self) -> Any:
        return self.np_random.integers(0, 256, (6, 8), dtype=np.uint8)


class Acts(gymnasium.Env):
    """Takes actions of any space, and gives their sum as reward. Two steps."""

    def __init__(self, actions: str) -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.action_space = {
            "matrix": spaces.Box(-2.0, 3.0, (2, 2), np.float64),
            "bits": spaces.MultiBinary(3),
            "grid": spaces.MultiDiscrete([[2, 3], [4, 5]]),
            "unbounded": spaces.Box(-np.inf, np.inf, (2,), np.float32),
            "text": spaces.Text(3),
            "two": spaces.Discrete(2),
            "five": spaces.Discrete(5),
            "numbers": spaces.Box(-1.0, 1.0, (2,), np.float32),
        }[actions]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.age = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        self.age += 1
        return np.zeros(1, np.float32), float(np.sum(action)), False, self.age == 2, {}


class TwoStates(gymnasium.Env):
    """Two states, seen as what they are; two actions. The state of the start is drawn.

    | state | action | reward | then |
    |---|---|---|---|
    | 0 | 0 | 0.1 | state 0 |
    | 0 | 1 | 0 | state 1 |
    | 1 | 0 | 1 | state 0 |
    | 1 | 1 | 2 | terminated |

    Cut off after `limit` steps, which no observation tells: who bootstraps there learns `two_states_values`, who takes
    a cut for an end, or the next episode's beginning for what follows, does not.
    """

    observation_space = spaces.Discrete(2)
    action_space = spaces.Discrete(2)

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.state, self.age = int(self.np_random.integers(2)), 0
        return self.state, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = ((0.1, 0.0), (1.0, 2.0))[self.state][action]
        terminated = self.state == 1 and action == 1
        self.state, self.age = int(action) if self.state == 0 else 0, self.age + 1
        return self.state, reward, terminated, self.age == self.limit, {}


def two_states_values(gamma: float) -> np.ndarray:
    """Q of the best play in TwoStates, (state, action), for 0.71 <= gamma < 1: to and fro between the states."""
    values = np.array([gamma, 1.0]) / (1.0 - gamma**2)
    return two_states_backup(values, gamma)


def two_states_backup(values: np.ndarray, gamma: float) -> np.ndarray:
    """What every action of TwoStates is worth, (state, action), where the states are worth `values`."""
    return np.array([[0.1 + gamma * values[0], gamma * values[1]], [1.0 + gamma * values[0], 2.0]])


class TwoStatesBox(gymnasium.Env):
    """Two states, seen as what they are; the action is a number between -1 and 1. The state of the start is drawn.

    | state | reward of action a | then | value of a under the best play, with discount g |
    |---|---|---|---|
    | 0 | 1 - (a - 0.5)^2 | state 0 | 1 / (1 - g) - (a - 0.5)^2 |
    | 1 | 2 - (a + 0.5)^2 | terminated | 2 - (a + 0.5)^2 |

    Cut off after `limit` steps, which no observation tells.
    """

    observation_space = spaces.Discrete(2)
    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.state, self.age = int(self.np_random.integers(2)), 0
        return self.state, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        best = (0.5, -0.5)[self.state]
        self.age += 1
        reward = 1.0 + self.state - (float(action[0]) - best) ** 2
        return self.state, reward, self.state == 1, self.age == self.limit, {}


class HiddenCartPole(gymnasium.ObservationWrapper):
    """CartPole-v1 of which the place of the cart and the angle of the pole are seen, and no velocity."""

    def __init__(self) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def observation(self, observation: Any) -> Any:
        return observation[[0, 2]]


class Lonely(gymnasium.vector.VectorEnv):
    """A vector environment that does not say when it begins anew."""

    metadata: dict[str, Any] = {}  # noqa: RUF012

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs


for probe in (
    Walk,
    Forbidding,
    Uneven,
    Telling,
    Forgetful,
    Faulty,
    Slow,
    Samples,
    Pixels,
    Camera,
    Noise,
    Mixed,
    Acts,
    TwoStates,
    TwoStatesBox,
    HiddenCartPole,
):
    gymnasium.register(f"{probe.__name__}-v0", entry_point=f"{__name__}:{probe.__name__}")
gymnasium.register(
    "TellingVector-v0", entry_point=f"{__name__}:Telling", vector_entry_point=f"{__name__}:TellingVector"
)
gymnasium.register("Lonely-v0", entry_point=f"{__name__}:Walk", vector_entry_point=f"{__name__}:Lonely")
