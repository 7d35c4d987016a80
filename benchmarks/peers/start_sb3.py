"""What a user of stable-baselines3 writes in place of configs/dqn-cartpole.yml and configs/ppo-cartpole.yml:
`python -m benchmarks.peers.start_sb3 dqn-cartpole`. It leaves when its first opt step is done."""

import os
import sys
from typing import Any

from stable_baselines3 import DQN, PPO
from stable_baselines3.common.env_util import make_vec_env
from torch.optim.optimizer import register_optimizer_step_post_hook


def leave(*_: Any) -> None:
    os.write(1, b"first opt step\n")
    os._exit(0)


register_optimizer_step_post_hook(leave)
if sys.argv[1] == "dqn-cartpole":
    dqn = DQN(
        "MlpPolicy",
        make_vec_env("CartPole-v1", n_envs=8, seed=0),
        learning_rate=2.3e-3,
        buffer_size=100_000,
        learning_starts=1_000,
        batch_size=64,
        train_freq=32,
        gradient_steps=128,
        target_update_interval=128,
        exploration_final_eps=0.04,
        policy_kwargs={"net_arch": [256, 256]},
        seed=0,
        device="cpu",
        verbose=1,
    )
    dqn.learn(50_000)
else:
    ppo = PPO(
        "MlpPolicy",
        make_vec_env("CartPole-v1", n_envs=32, seed=0),
        learning_rate=2e-3,
        n_steps=64,
        batch_size=256,
        n_epochs=4,
        gamma=0.98,
        gae_lambda=0.9,
        seed=0,
        device="cpu",
        verbose=1,
    )
    ppo.learn(100_000)
