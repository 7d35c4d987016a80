"""TorchRL: `python -m benchmarks.peers.torchrl WORK`. Modules, losses, buffers as in its sota-implementations.

Without their options to compile, and without their logging.
"""

from collections import deque
from typing import Any

import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from tensordict import TensorDict
from tensordict.nn import NormalParamExtractor, TensorDictModule, TensorDictSequential
from torch import nn
from torch.nn.utils import clip_grad_norm_
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, PrioritizedSampler, TensorDictReplayBuffer
from torchrl.data.replay_buffers.samplers import RandomSampler, SamplerWithoutReplacement
from torchrl.envs import DoubleToFloat, ExplorationType, GymWrapper, TransformedEnv
from torchrl.modules import MLP, EGreedyModule, ProbabilisticActor, QValueActor, TanhNormal, ValueOperator
from torchrl.objectives import ClipPPOLoss, DQNLoss, HardUpdate, SACLoss, SoftUpdate
from torchrl.objectives.value import GAE

from benchmarks.learning_settings import DQN, PPO, SAC, hyperparameters_from_json
from benchmarks.peers.environments import ReturnsKept, make_environment
from benchmarks.peers.script import Stopwatch, Work, answer, count_torch_opt_steps, time_batches, versions_of


def make_env(work: Work, num_envs: int, returns: deque[float]) -> Any:
    """gymnasium's environments, one or in its SyncVectorEnv, which is faster here than TorchRL's SerialEnv."""
    if work["batched"]:
        raise SystemExit("TorchRL's GymWrapper does not take gymnasium's batched CartPole")

    def make() -> Any:
        env = make_environment(work["environment"])
        return env if work["solved_at"] is None else ReturnsKept(env, returns)

    env = GymWrapper(
        make() if num_envs == 1 else SyncVectorEnv([make] * num_envs, autoreset_mode=AutoresetMode.DISABLED),
        categorical_action_encoding=True,
    )
    is_double = env.observation_spec["observation"].dtype == torch.float64
    return TransformedEnv(env, DoubleToFloat()) if is_double else env


def train_ppo(h: PPO, work: Work, stopwatch: Stopwatch) -> None:
    returns: deque[float] = deque(maxlen=100)
    env = make_env(work, h.num_envs, returns)
    num_inputs, num_actions = env.observation_spec["observation"].shape[-1], env.action_spec_unbatched.space.n
    arch = {"num_cells": list(h.net_arch), "activation_class": nn.Tanh}
    policy = ProbabilisticActor(
        TensorDictModule(MLP(num_inputs, num_actions, **arch), in_keys=["observation"], out_keys=["logits"]),
        in_keys=["logits"],
        spec=env.action_spec_unbatched,
        distribution_class=torch.distributions.Categorical,
        return_log_prob=True,
        default_interaction_type=ExplorationType.RANDOM,
    )
    value = ValueOperator(MLP(num_inputs, 1, **arch), in_keys=["observation"])
    num_steps = h.num_envs * h.rollout_length
    collector = Collector(env, policy, frames_per_batch=num_steps, total_frames=-1, device="cpu")
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(num_steps), sampler=SamplerWithoutReplacement(), batch_size=h.batch_size
    )
    advantage = GAE(gamma=h.gamma, lmbda=h.gae_lambda, value_network=value, average_gae=False)
    loss = ClipPPOLoss(
        policy,
        value,
        clip_epsilon=h.clip_range,
        entropy_coeff=h.entropy_coef,
        critic_coeff=h.value_coef,
        loss_critic_type="l2",
        normalize_advantage=h.normalize_advantage,
    )
    parameters = list(loss.parameters())
    optimizer = torch.optim.Adam(parameters, lr=h.learning_rate, eps=1e-5)
    env_steps = 0
    for data in collector:
        env_steps += num_steps
        for _ in range(h.num_passes):
            with torch.no_grad():
                data = advantage(data)
            buffer.extend(data.reshape(-1))
            for batch in buffer:
                losses = loss(batch)
                (losses["loss_objective"] + losses["loss_critic"] + losses["loss_entropy"]).backward()
                clip_grad_norm_(parameters, h.max_grad_norm)
                optimizer.step()
                optimizer.zero_grad()
        if stopwatch.mark(env_steps, returns):
            return


def train_dqn(h: DQN, work: Work, stopwatch: Stopwatch) -> None:
    assert h.net_arch is not None
    env = make_env(work, h.num_envs, deque())
    num_inputs, num_actions = env.observation_spec["observation"].shape[-1], env.action_spec_unbatched.space.n
    net = MLP(num_inputs, num_actions, num_cells=list(h.net_arch), activation_class=nn.ReLU)
    q = QValueActor(net, in_keys=["observation"], spec=env.action_spec_unbatched)
    explore = EGreedyModule(
        spec=env.action_spec_unbatched, eps_init=h.exploration_final, eps_end=h.exploration_final, annealing_num_steps=1
    )
    collector = Collector(
        env,
        TensorDictSequential(q, explore),
        frames_per_batch=h.env_steps_per_turn,
        total_frames=-1,
        init_random_frames=h.warmup_env_steps,
        device="cpu",
    )
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(h.buffer_capacity), sampler=RandomSampler(), batch_size=h.batch_size
    )
    loss = DQNLoss(q, loss_function="smooth_l1", delay_value=True, action_space="categorical")
    loss.make_value_estimator(gamma=h.gamma)
    target_interval = h.target_interval * h.opt_steps_per_turn // h.env_steps_per_turn
    target = HardUpdate(loss, value_network_update_interval=target_interval)
    parameters = list(q.parameters())
    optimizer = torch.optim.Adam(parameters, lr=h.learning_rate)
    env_steps = 0
    for data in collector:
        env_steps += data.numel()
        buffer.extend(data.reshape(-1))
        if env_steps < h.warmup_env_steps:
            continue
        for _ in range(h.opt_steps_per_turn):
            loss(buffer.sample())["loss"].backward()
            clip_grad_norm_(parameters, h.max_grad_norm)
            optimizer.step()
            optimizer.zero_grad()
            target.step()
        if stopwatch.mark(env_steps, ()):
            return


def train_sac(h: SAC, work: Work, stopwatch: Stopwatch) -> None:
    env = make_env(work, 1, deque())
    num_inputs, num_actions = env.observation_spec["observation"].shape[-1], env.action_spec_unbatched.shape[-1]
    arch = {"num_cells": list(h.net_arch), "activation_class": nn.ReLU}
    policy = ProbabilisticActor(
        TensorDictModule(
            nn.Sequential(MLP(num_inputs, 2 * num_actions, **arch), NormalParamExtractor()),
            in_keys=["observation"],
            out_keys=["loc", "scale"],
        ),
        in_keys=["loc", "scale"],
        spec=env.action_spec_unbatched,
        distribution_class=TanhNormal,
        distribution_kwargs={"low": env.action_spec_unbatched.space.low, "high": env.action_spec_unbatched.space.high},
        default_interaction_type=ExplorationType.RANDOM,
    )
    q = ValueOperator(MLP(num_inputs + num_actions, 1, **arch), in_keys=["action", "observation"])
    collector = Collector(
        env, policy, frames_per_batch=1, total_frames=-1, init_random_frames=h.warmup_env_steps, device="cpu"
    )
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(h.buffer_capacity), batch_size=h.batch_size)
    loss = SACLoss(
        policy, q, num_qvalue_nets=2, loss_function="l2", delay_qvalue=True, action_spec=env.action_spec_unbatched
    )
    loss.make_value_estimator(gamma=h.gamma)
    target = SoftUpdate(loss, tau=h.tau)
    groups = (
        list(loss.qvalue_network_params.flatten_keys().values()),
        list(loss.actor_network_params.flatten_keys().values()),
        [loss.log_alpha],
    )
    optimizers = [torch.optim.Adam(parameters, lr=h.learning_rate) for parameters in groups]
    env_steps = 0
    for data in collector:
        env_steps += data.numel()
        buffer.extend(data.reshape(-1))
        if env_steps < h.warmup_env_steps:
            continue
        losses = loss(buffer.sample())
        (losses["loss_actor"] + losses["loss_qvalue"] + losses["loss_alpha"]).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        target.step()
        if stopwatch.mark(env_steps, ()):
            return


def train(work: Work) -> dict[str, Any]:
    torch.manual_seed(work["seed"])
    stopwatch = Stopwatch(work)
    count_torch_opt_steps(stopwatch.opt_step)
    h = hyperparameters_from_json(work["hyperparameters"])
    if isinstance(h, PPO):
        train_ppo(h, work, stopwatch)
    elif isinstance(h, DQN):
        train_dqn(h, work, stopwatch)
    else:
        assert isinstance(h, SAC)
        train_sac(h, work, stopwatch)
    return stopwatch.result()


def sample_replay(work: Work) -> dict[str, Any]:
    """Batches drawn from a full buffer in memory; prioritized ones with the update of their priorities."""
    num, size = work["capacity"], work["batch_size"]
    observations = {"observation": torch.rand(num, work["observation_size"])}
    ends = {name: torch.zeros(num, 1, dtype=torch.bool) for name in ("done", "terminated")}
    data = {
        **observations,
        "action": torch.rand(num, work["action_size"]),
        "next": {"observation": torch.rand(num, work["observation_size"]), "reward": torch.rand(num, 1), **ends},
    }
    sampler = PrioritizedSampler(num, alpha=0.6, beta=0.4) if work["prioritized"] else RandomSampler()
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(num), sampler=sampler, batch_size=size)
    buffer.extend(TensorDict(data, batch_size=[num]))
    if not work["prioritized"]:
        return time_batches(buffer.sample, work["timed_seconds"])
    errors = torch.rand(size)

    def draw() -> None:
        batch = buffer.sample()
        buffer.update_priority(batch["index"], errors)

    return time_batches(draw, work["timed_seconds"])


def measure(work: Work) -> dict[str, Any]:
    result = sample_replay(work) if work["kind"] == "replay" else train(work)
    return result | {"versions": versions_of("torchrl", "tensordict", "gymnasium", "torch", "numpy")}


if __name__ == "__main__":
    answer(measure)
