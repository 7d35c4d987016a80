"""One training by stable-baselines3 for the learning table: `python -m benchmarks.peers.learn_sb3 WORK`.

WORK: {"setting": a Setting as JSON, "seed": ...}.
"""

import itertools
import time
from statistics import fmean
from typing import Any

import numpy as np
import stable_baselines3 as sb3
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.noise import NormalActionNoise

from benchmarks.learning_settings import DQN, PPO, SAC, TD3, Setting
from benchmarks.peers.environments import evaluation_returns, make_environment
from benchmarks.peers.script import Work, answer, count_torch_opt_steps, versions_of

NUM_CURVE_POINTS = 50


def make_model(setting: Setting, seed: int) -> BaseAlgorithm:
    """The model that a row of the table asks for."""
    h = setting.hyperparameters
    num_envs = h.num_envs if isinstance(h, PPO) else 1
    env = make_vec_env(lambda: make_environment(setting.environment), n_envs=num_envs, seed=seed)
    common: dict[str, Any] = {"env": env, "seed": seed, "device": "cpu"}
    if isinstance(h, PPO):
        rate: Any = (lambda left: left * h.learning_rate) if h.linear_decay else h.learning_rate
        return sb3.PPO(
            "MlpPolicy",
            n_steps=h.rollout_length,
            batch_size=h.batch_size,
            n_epochs=h.num_passes,
            gamma=h.gamma,
            gae_lambda=h.gae_lambda,
            ent_coef=h.entropy_coef,
            learning_rate=rate,
            clip_range=h.clip_range,
            vf_coef=h.value_coef,
            max_grad_norm=h.max_grad_norm,
            normalize_advantage=h.normalize_advantage,
            policy_kwargs={"net_arch": list(h.net_arch)},
            **common,
        )
    common |= {"gamma": h.gamma, "learning_rate": h.learning_rate, "batch_size": h.batch_size}
    common |= {"buffer_size": h.buffer_capacity, "learning_starts": h.warmup_env_steps}
    if isinstance(h, DQN):
        arch = {} if h.net_arch is None else {"policy_kwargs": {"net_arch": list(h.net_arch)}}
        return sb3.DQN(
            "CnnPolicy" if h.net_arch is None else "MlpPolicy",
            train_freq=h.env_steps_per_turn,
            gradient_steps=h.opt_steps_per_turn,
            target_update_interval=h.target_interval,
            exploration_fraction=h.exploration_fraction,
            exploration_final_eps=h.exploration_final,
            max_grad_norm=h.max_grad_norm,
            **arch,
            **common,
        )
    common |= {"tau": h.tau, "train_freq": 1, "gradient_steps": 1, "policy_kwargs": {"net_arch": list(h.net_arch)}}
    if isinstance(h, SAC):
        return sb3.SAC("MlpPolicy", ent_coef="auto", target_entropy="auto", **common)
    assert isinstance(h, TD3)
    num_actions = env.action_space.shape[0]
    return sb3.TD3(
        "MlpPolicy",
        action_noise=NormalActionNoise(np.zeros(num_actions), np.full(num_actions, h.exploration_noise)),
        policy_delay=h.policy_interval,
        target_policy_noise=h.target_noise,
        target_noise_clip=h.target_noise_clip,
        **common,
    )


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
    model = make_model(setting, work["seed"])
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
