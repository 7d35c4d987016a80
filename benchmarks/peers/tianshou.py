"""Tianshou 2: `python -m benchmarks.peers.tianshou WORK`. Its trainers with their progress bar, no test collector.

Its DQN clips no gradient.
"""

from collections import deque
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from tianshou import algorithm
from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
from tianshou.algorithm.modelfree.reinforce import ProbabilisticActorPolicy
from tianshou.algorithm.modelfree.sac import AutoAlpha, SACPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Batch, Collector, PrioritizedReplayBuffer, ReplayBuffer, VectorReplayBuffer
from tianshou.env import DummyVectorEnv
from tianshou.trainer import OffPolicyTrainerParams, OnPolicyTrainerParams
from tianshou.utils.net.common import Net
from tianshou.utils.net.continuous import ContinuousActorProbabilistic, ContinuousCritic
from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic
from torch import nn

from benchmarks.learning_settings import DQN, PPO, SAC, hyperparameters_from_json
from benchmarks.peers.environments import ReturnsKept, make_environment
from benchmarks.peers.script import Done, Stopwatch, Work, answer, count_torch_opt_steps, time_batches, versions_of

NUM_EPOCHS, EPOCH_NUM_STEPS = 10_000, 100_000  # the stopwatch ends a training


def make_ppo(h: PPO, env: Any) -> algorithm.PPO:
    shape, num_actions = env.observation_space.shape, int(env.action_space.n)
    actor, critic = (Net(state_shape=shape, hidden_sizes=h.net_arch, activation=nn.Tanh) for _ in range(2))
    policy = ProbabilisticActorPolicy(
        actor=DiscreteActor(preprocess_net=actor, action_shape=num_actions, softmax_output=False),
        dist_fn=lambda logits: torch.distributions.Categorical(logits=logits),
        action_space=env.action_space,
        action_scaling=False,
    )
    return algorithm.PPO(
        policy=policy,
        critic=DiscreteCritic(preprocess_net=critic),
        optim=AdamOptimizerFactory(lr=h.learning_rate, eps=1e-5),
        eps_clip=h.clip_range,
        advantage_normalization=h.normalize_advantage,
        vf_coef=h.value_coef,
        ent_coef=h.entropy_coef,
        max_grad_norm=h.max_grad_norm,
        gae_lambda=h.gae_lambda,
        gamma=h.gamma,
        max_batchsize=h.num_envs * h.rollout_length,
    )


def make_dqn(h: DQN, env: Any) -> algorithm.DQN:
    assert h.net_arch is not None
    shape, num_actions = env.observation_space.shape, int(env.action_space.n)
    policy = DiscreteQLearningPolicy(
        model=Net(state_shape=shape, action_shape=num_actions, hidden_sizes=h.net_arch),
        action_space=env.action_space,
        eps_training=h.exploration_final,
    )
    return algorithm.DQN(
        policy=policy,
        optim=AdamOptimizerFactory(lr=h.learning_rate),
        gamma=h.gamma,
        target_update_freq=h.target_interval * h.opt_steps_per_turn // h.env_steps_per_turn,
        is_double=False,
        huber_loss_delta=1.0,
    )


def make_sac(h: SAC, env: Any) -> algorithm.SAC:
    shape, num_actions = env.observation_space.shape, env.action_space.shape[0]
    actor = ContinuousActorProbabilistic(
        preprocess_net=Net(state_shape=shape, hidden_sizes=h.net_arch),
        action_shape=num_actions,
        unbounded=True,
        conditioned_sigma=True,
    )
    critics = [
        ContinuousCritic(
            preprocess_net=Net(state_shape=shape, action_shape=num_actions, hidden_sizes=h.net_arch, concat=True)
        )
        for _ in range(2)
    ]
    optimizer = AdamOptimizerFactory(lr=h.learning_rate)
    return algorithm.SAC(
        policy=SACPolicy(actor=actor, action_space=env.action_space),
        policy_optim=optimizer,
        critic=critics[0],
        critic_optim=optimizer,
        critic2=critics[1],
        critic2_optim=optimizer,
        tau=h.tau,
        gamma=h.gamma,
        alpha=AutoAlpha(-float(num_actions), 0.0, optimizer),
    )


def train(work: Work) -> dict[str, Any]:
    stopwatch = Stopwatch(work)
    count_torch_opt_steps(stopwatch.opt_step)
    np.random.seed(work["seed"])
    torch.manual_seed(work["seed"])
    h = hyperparameters_from_json(work["hyperparameters"])
    assert isinstance(h, PPO | DQN | SAC)
    if work["batched"]:
        raise SystemExit("tianshou takes no batched environment")
    num_envs = h.num_envs if isinstance(h, PPO | DQN) else 1
    returns: deque[float] = deque(maxlen=100)

    def make() -> Any:
        env = make_environment(work["environment"])
        return env if work["solved_at"] is None else ReturnsKept(env, returns)

    envs = DummyVectorEnv([make] * num_envs)
    envs.seed(work["seed"])
    single = make()

    def mark(epoch: int, env_step: int) -> None:
        if stopwatch.mark(env_step, returns):
            raise Done

    common: dict[str, Any] = {
        "max_epochs": NUM_EPOCHS,
        "epoch_num_steps": EPOCH_NUM_STEPS,
        "batch_size": h.batch_size,
        "training_fn": mark,
        "verbose": False,
    }
    learner: Any
    params: Any
    if isinstance(h, PPO):
        learner = make_ppo(h, single)
        num_steps = h.num_envs * h.rollout_length
        collector = Collector(learner, envs, VectorReplayBuffer(num_steps, num_envs))
        params = OnPolicyTrainerParams(
            training_collector=collector,
            collection_step_num_env_steps=num_steps,
            update_step_num_repetitions=h.num_passes,
            **common,
        )
    else:
        learner = make_dqn(h, single) if isinstance(h, DQN) else make_sac(h, single)
        buffer = VectorReplayBuffer(h.buffer_capacity, num_envs)
        collector = Collector(learner, envs, buffer, exploration_noise=True)
        collector.reset()
        collector.collect(n_step=h.warmup_env_steps, random=True)
        env_steps, opt_steps = (h.env_steps_per_turn, h.opt_steps_per_turn) if isinstance(h, DQN) else (1, 1)
        params = OffPolicyTrainerParams(
            training_collector=collector,
            collection_step_num_env_steps=env_steps,
            update_step_num_gradient_steps_per_sample=opt_steps / env_steps,
            **common,
        )
    with suppress(Done):
        learner.run_training(params)
    return stopwatch.result()


def sample_replay(work: Work) -> dict[str, Any]:
    """Batches drawn from a full buffer; prioritized ones with the update of their priorities."""
    num, size = work["capacity"], work["batch_size"]
    buffer = PrioritizedReplayBuffer(num, alpha=0.6, beta=0.4) if work["prioritized"] else ReplayBuffer(num)
    shapes = {
        "obs": (work["observation_size"],),
        "obs_next": (work["observation_size"],),
        "act": (work["action_size"],),
    }
    rng = np.random.default_rng(0)
    row: dict[str, Any] = {name: rng.random(shape, dtype=np.float32) for name, shape in shapes.items()}
    row |= {"rew": 1.0, "terminated": False, "truncated": False}
    buffer.add(Batch(**row))
    for name, shape in shapes.items():
        buffer._meta[name][:] = rng.random((num, *shape), dtype=np.float32)
    buffer._size, buffer._insertion_idx = num, 0
    if not work["prioritized"]:
        return time_batches(lambda: buffer.sample(size), work["timed_seconds"])
    buffer.update_weight(np.arange(num), rng.random(num))
    errors = rng.random(size)

    def draw() -> None:
        _, places = buffer.sample(size)
        buffer.update_weight(places, errors)

    return time_batches(draw, work["timed_seconds"])


def measure(work: Work) -> dict[str, Any]:
    result = sample_replay(work) if work["kind"] == "replay" else train(work)
    return result | {"versions": versions_of("tianshou", "gymnasium", "torch", "numpy")}


if __name__ == "__main__":
    answer(measure)
