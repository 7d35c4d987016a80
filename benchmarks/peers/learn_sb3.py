"""One training by stable-baselines3 for the learning table: `python -m benchmarks.peers.learn_sb3 WORK`.

WORK: {"setting": a Setting as JSON, "seed": ...}.
"""

import itertools
import time
from statistics import fmean
from typing import Any

import numpy as np
import stable_baselines3
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env

from benchmarks.learning_settings import DQN, PPO, Setting
from benchmarks.peers.environments import evaluation_returns, make_environment
from benchmarks.peers.sb3 import make_model
from benchmarks.peers.script import Work, answer, count_torch_opt_steps, versions_of

NUM_CURVE_POINTS = 50


class Curve(BaseCallback):
    """Keeps (env steps, mean return of the last 100 episodes of training) at regular intervals."""

    def __init__(self, interval: int) -> None:
        super().__init__()
        self.interval, self.due = interval, interval
        self.points: list[tuple[int, float]] = []

    def _on_step(self) -> bool:
        episodes = self.model.ep_info_buffer
        if self.num_timesteps >= self.due and episodes:
            self.points.append((self.num_timesteps, fmean(float(episode["r"]) for episode in episodes)))
            self.due = (self.num_timesteps // self.interval + 1) * self.interval
        return True


def learn(work: Work) -> dict[str, Any]:
    setting = Setting.from_json(work["setting"])
    started, cpu_started = time.perf_counter(), time.process_time()
    opt_steps = itertools.count()
    count_torch_opt_steps(lambda: next(opt_steps))
    h = setting.hyperparameters
    num_envs = h.num_envs if isinstance(h, PPO | DQN) else 1
    env = make_vec_env(lambda: make_environment(setting.environment), n_envs=num_envs, seed=work["seed"])
    model = make_model(stable_baselines3, h, env, work["seed"], verbose=0)
    curve = Curve(setting.env_steps // NUM_CURVE_POINTS)
    model.learn(setting.env_steps, callback=curve)
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started

    def play(observations: np.ndarray) -> np.ndarray:
        return model.predict(observations, deterministic=setting.deterministic)[0]

    extra = {"HalfCheetah-v5": ["mujoco"], "Hopper-v5": ["mujoco"], "ALE/Pong-v5": ["ale-py"]}
    return {
        "env_steps": model.num_timesteps,
        "opt_steps": next(opt_steps),
        "returns": evaluation_returns(setting.environment, play),
        "curve": curve.points,
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "num_threads": torch.get_num_threads(),
        "versions": versions_of(
            "stable-baselines3", "gymnasium", "torch", "numpy", *extra.get(setting.environment, [])
        ),
    }


if __name__ == "__main__":
    answer(learn)
