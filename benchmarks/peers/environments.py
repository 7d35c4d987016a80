"""The environments that all libraries train in: gymnasium's own. Needs gymnasium alone."""

from collections import deque
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from benchmarks.learning_settings import FIRST_EVALUATION_SEED, NUM_EVALUATION_EPISODES

Play = Callable[[np.ndarray], np.ndarray]  # observations (batch, ...) to actions (batch, ...)


def make_environment(name: str) -> gymnasium.Env[Any, Any]:
    """One environment. Atari: 84 x 84 gray, 4 frames skipped, 4 stacked, channels first; sticky actions (0.25)."""
    if not name.startswith("ALE/"):
        return gymnasium.make(name)
    import ale_py
    from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation

    gymnasium.register_envs(ale_py)
    return FrameStackObservation(AtariPreprocessing(gymnasium.make(name, frameskip=1)), 4)


class ReturnsKept(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Appends the return of every finished episode to `returns`, which several environments may share."""

    def __init__(self, env: gymnasium.Env[Any, Any], returns: deque[float]) -> None:
        super().__init__(env)
        self.returns, self.sum = returns, 0.0

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        self.sum += float(reward)
        if terminated or truncated:
            self.returns.append(self.sum)
            self.sum = 0.0
        return observation, reward, terminated, truncated, info


def evaluation_returns(name: str, play: Play) -> list[float]:
    """Returns of the evaluation's episodes, each in a fresh environment with a seed of its own, side by side."""
    environments = [make_environment(name) for _ in range(NUM_EVALUATION_EPISODES)]
    observations = np.stack([env.reset(seed=FIRST_EVALUATION_SEED + i)[0] for i, env in enumerate(environments)])
    returns = np.zeros(len(environments))
    running = list(range(len(environments)))
    while running:
        actions = play(observations[running])
        for i, action in zip(list(running), actions, strict=True):
            observations[i], reward, terminated, truncated, _ = environments[i].step(action)
            returns[i] += float(reward)
            if terminated or truncated:
                running.remove(i)
                environments[i].close()
    return [float(value) for value in returns]
