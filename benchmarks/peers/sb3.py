"""stable-baselines3: `python -m benchmarks.peers.sb3 WORK`.

"batched" plays gymnasium's batched CartPole, which stable-baselines3 has no adapter for, through a small one.
"""

from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
import stable_baselines3
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.vec_env import VecEnv

from benchmarks.learning_settings import DQN, PPO, SAC, TD3, Hyperparameters, hyperparameters_from_json
from benchmarks.peers.environments import make_environment
from benchmarks.peers.script import Stopwatch, Work, answer, count_torch_opt_steps, time_batches, versions_of

MANY = 10**9  # env steps: the stopwatch ends a training


def make_model(library: ModuleType, h: Hyperparameters, env: VecEnv, seed: int, verbose: int) -> BaseAlgorithm:
    """The model of stable-baselines3, or of sbx, which takes the same arguments but for DQN's max_grad_norm."""
    common: dict[str, Any] = {"env": env, "seed": seed, "verbose": verbose, "gamma": h.gamma}
    common["batch_size"] = h.batch_size
    if library is stable_baselines3:
        common["device"] = "cpu"
    if isinstance(h, PPO):
        rate: Any = (lambda left: left * h.learning_rate) if h.linear_decay else h.learning_rate
        return library.PPO(
            "MlpPolicy",
            n_steps=h.rollout_length,
            n_epochs=h.num_passes,
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
    common |= {
        "learning_rate": h.learning_rate,
        "buffer_size": h.buffer_capacity,
        "learning_starts": h.warmup_env_steps,
    }
    if h.net_arch is not None:
        common["policy_kwargs"] = {"net_arch": list(h.net_arch)}
    if isinstance(h, DQN):
        if library is stable_baselines3:
            common["max_grad_norm"] = h.max_grad_norm
        return library.DQN(
            "CnnPolicy" if h.net_arch is None else "MlpPolicy",
            train_freq=h.env_steps_per_turn // h.num_envs,
            gradient_steps=h.opt_steps_per_turn,
            target_update_interval=h.target_interval,
            exploration_fraction=h.exploration_fraction,
            exploration_final_eps=h.exploration_final,
            **common,
        )
    common |= {"tau": h.tau, "train_freq": 1, "gradient_steps": 1}
    if isinstance(h, SAC):
        return library.SAC("MlpPolicy", ent_coef="auto", target_entropy="auto", **common)
    assert isinstance(h, TD3)
    assert env.action_space.shape is not None
    num_actions = env.action_space.shape[0]
    return library.TD3(
        "MlpPolicy",
        action_noise=NormalActionNoise(np.zeros(num_actions), np.full(num_actions, h.exploration_noise)),
        policy_delay=h.policy_interval,
        target_policy_noise=h.target_noise,
        target_noise_clip=h.target_noise_clip,
        **common,
    )


class Watch(BaseCallback):
    """Marks before every roll-out, and ends the training at its next env step."""

    def __init__(self, stopwatch: Stopwatch, opt_steps_per_update: int | None) -> None:
        """opt_steps_per_update: of the model's own count; None where steps of torch's optimizers are counted."""
        super().__init__()
        self.stopwatch, self.opt_steps_per_update, self.done = stopwatch, opt_steps_per_update, False

    def _on_rollout_start(self) -> None:
        if self.opt_steps_per_update is not None and self.model._n_updates > 0:
            if self.stopwatch.opt_steps == 0:
                self.stopwatch.opt_step()
            self.stopwatch.opt_steps = self.model._n_updates * self.opt_steps_per_update
        returns = [float(episode["r"]) for episode in self.model.ep_info_buffer or ()]
        self.done = self.stopwatch.mark(self.num_timesteps, returns)

    def _on_step(self) -> bool:
        return not self.done


class BatchedCartPole(VecEnv):
    """gymnasium's batched CartPole as stable-baselines3 wants it; an env that has ended is reset at its next step."""

    def __init__(self, num_envs: int) -> None:
        self.env = gymnasium.make_vec("CartPole-v1", num_envs, vectorization_mode="vector_entry_point")
        super().__init__(num_envs, self.env.single_observation_space, self.env.single_action_space)
        self.no_infos: list[dict[str, Any]] = [{} for _ in range(num_envs)]

    def reset(self) -> np.ndarray:
        return self.env.reset(seed=0)[0]

    def step_async(self, actions: np.ndarray) -> None:
        self.actions = actions

    def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        observations, rewards, terminated, truncated, _ = self.env.step(self.actions)
        return observations.copy(), rewards.astype(np.float32), terminated | truncated, self.no_infos

    def close(self) -> None:
        self.env.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return [None] * self.num_envs  # of use for rendering alone

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        raise NotImplementedError

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        raise NotImplementedError

    def env_is_wrapped(self, wrapper_class: type, indices: Any = None) -> list[bool]:
        return [False] * self.num_envs


def train(library: ModuleType, work: Work) -> dict[str, Any]:
    """Env steps per second, or the seconds until solved."""
    stopwatch = Stopwatch(work)
    if library is stable_baselines3:
        count_torch_opt_steps(stopwatch.opt_step)
    h = hyperparameters_from_json(work["hyperparameters"])
    num_envs = h.num_envs if isinstance(h, PPO | DQN) else 1
    env: VecEnv
    if work["batched"]:
        env = BatchedCartPole(num_envs)
    else:
        env = make_vec_env(lambda: make_environment(work["environment"]), n_envs=num_envs, seed=work["seed"])
    model = make_model(library, h, env, work["seed"], verbose=0)
    opt_steps_per_update = None
    if library is not stable_baselines3:  # it steps no torch optimizer, and counts the passes of PPO
        opt_steps_per_update = h.num_envs * h.rollout_length // h.batch_size if isinstance(h, PPO) else 1
    model.learn(MANY, callback=Watch(stopwatch, opt_steps_per_update))
    return stopwatch.result()


def sample_replay(work: Work) -> dict[str, Any]:
    """Batches drawn from a full buffer; it has no prioritized one."""
    if work["prioritized"]:
        raise SystemExit("stable-baselines3 has no prioritized replay")
    num, size = work["capacity"], work["batch_size"]
    observation = gymnasium.spaces.Box(-1, 1, (work["observation_size"],))
    buffer = ReplayBuffer(num, observation, gymnasium.spaces.Box(-1, 1, (work["action_size"],)), device="cpu")
    for array in (buffer.observations, buffer.next_observations, buffer.actions, buffer.rewards, buffer.dones):
        array[:] = np.random.default_rng(0).random(array.shape, dtype=np.float32)
    buffer.full = True
    return time_batches(lambda: buffer.sample(size), work["timed_seconds"])


def measure(work: Work) -> dict[str, Any]:
    result = sample_replay(work) if work["kind"] == "replay" else train(stable_baselines3, work)
    return result | {"versions": versions_of("stable-baselines3", "gymnasium", "torch", "numpy")}


if __name__ == "__main__":
    answer(measure)
