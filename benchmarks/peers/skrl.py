"""skrl: `python -m benchmarks.peers.skrl WORK`. Models, preprocessing and logging (TensorBoard) as in its examples.

Its vector environments reset at the step after an end, and it keeps that step as one of the game.
"""

from contextlib import suppress
from typing import Any

import gymnasium
import numpy as np
import torch
from skrl.agents.torch import dqn, ppo, sac
from skrl.envs.wrappers.torch import wrap_env
from skrl.memories.torch import RandomMemory
from skrl.models.torch import CategoricalMixin, DeterministicMixin, GaussianMixin, Model
from skrl.trainers.torch import SequentialTrainer
from skrl.utils import set_seed
from torch import Tensor, nn

from benchmarks.learning_settings import DQN, PPO, SAC, hyperparameters_from_json
from benchmarks.peers.script import Done, Stopwatch, Work, answer, count_torch_opt_steps, time_batches, versions_of

TIMESTEPS = 1_000_000  # the stopwatch ends a training


def mlp(num_inputs: int, net_arch: tuple[int, ...], num_outputs: int, activation: type[nn.Module]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for width in net_arch:
        layers += [nn.Linear(num_inputs, width), activation()]
        num_inputs = width
    return nn.Sequential(*layers, nn.Linear(num_inputs, num_outputs))


class CategoricalPolicy(CategoricalMixin, Model):
    def __init__(self, env: Any, net_arch: tuple[int, ...]) -> None:
        Model.__init__(self, observation_space=env.observation_space, action_space=env.action_space, device=env.device)
        CategoricalMixin.__init__(self)
        self.net = mlp(self.num_observations, net_arch, self.num_actions, nn.Tanh)

    def compute(self, inputs: dict[str, Any], role: str) -> tuple[Tensor, dict[str, Any]]:
        return self.net(inputs["observations"]), {}


class GaussianPolicy(GaussianMixin, Model):
    def __init__(self, env: Any, net_arch: tuple[int, ...]) -> None:
        Model.__init__(self, observation_space=env.observation_space, action_space=env.action_space, device=env.device)
        GaussianMixin.__init__(self, clip_actions=True)
        self.net = mlp(self.num_observations, net_arch, self.num_actions, nn.ReLU)
        self.log_std = nn.Parameter(torch.zeros(self.num_actions))
        self.scale = float(env.action_space.high[0])

    def compute(self, inputs: dict[str, Any], role: str) -> tuple[Tensor, dict[str, Any]]:
        return self.scale * torch.tanh(self.net(inputs["observations"])), {"log_std": self.log_std}


class Value(DeterministicMixin, Model):
    """V(observation), Q(observation) of every action, or with `of_action` Q(observation, action)."""

    def __init__(
        self,
        env: Any,
        net_arch: tuple[int, ...],
        num_outputs: int,
        activation: type[nn.Module],
        of_action: bool = False,
    ) -> None:
        Model.__init__(self, observation_space=env.observation_space, action_space=env.action_space, device=env.device)
        DeterministicMixin.__init__(self)
        self.of_action = of_action
        num_inputs = self.num_observations + (self.num_actions if of_action else 0)
        self.net = mlp(num_inputs, net_arch, num_outputs, activation)

    def compute(self, inputs: dict[str, Any], role: str) -> tuple[Tensor, dict[str, Any]]:
        x = inputs["observations"]
        return self.net(torch.cat([x, inputs["taken_actions"]], dim=1) if self.of_action else x), {}


def make_agent(h: PPO | DQN | SAC, env: Any) -> Any:
    spaces = {"observation_space": env.observation_space, "action_space": env.action_space, "device": env.device}
    if isinstance(h, PPO):
        memory = RandomMemory(memory_size=h.rollout_length, num_envs=env.num_envs, device=env.device)
        config = ppo.PPO_CFG(
            rollouts=h.rollout_length,
            learning_epochs=h.num_passes,
            mini_batches=h.rollout_length * h.num_envs // h.batch_size,
            discount_factor=h.gamma,
            gae_lambda=h.gae_lambda,
            learning_rate=h.learning_rate,
            grad_norm_clip=h.max_grad_norm,
            ratio_clip=h.clip_range,
            value_clip=0.0,
            entropy_loss_scale=h.entropy_coef,
            value_loss_scale=h.value_coef,
        )
        models = {"policy": CategoricalPolicy(env, h.net_arch), "value": Value(env, h.net_arch, 1, nn.Tanh)}
        return ppo.PPO(models=models, memory=memory, cfg=config, **spaces)
    memory = RandomMemory(
        memory_size=h.buffer_capacity // env.num_envs, num_envs=env.num_envs, device=env.device, replacement=True
    )
    if isinstance(h, DQN):
        assert h.net_arch is not None
        timesteps = h.env_steps_per_turn // h.num_envs
        config = dqn.DQN_CFG(
            gradient_steps=h.opt_steps_per_turn,
            batch_size=h.batch_size,
            discount_factor=h.gamma,
            polyak=1.0,
            learning_rate=h.learning_rate,
            learning_starts=h.warmup_env_steps // h.num_envs,
            update_interval=timesteps,
            target_update_interval=h.target_interval // h.num_envs,
            exploration_scheduler=lambda timestep, timesteps: h.exploration_final,
        )
        nets = [Value(env, h.net_arch, env.action_space.n, nn.ReLU) for _ in range(2)]
        models = {"q_network": nets[0], "target_q_network": nets[1]}
        return dqn.DQN(models=models, memory=memory, cfg=config, **spaces)
    config = sac.SAC_CFG(
        batch_size=h.batch_size,
        discount_factor=h.gamma,
        polyak=h.tau,
        learning_rate=h.learning_rate,
        random_timesteps=h.warmup_env_steps,
        learning_starts=h.warmup_env_steps,
        initial_entropy_value=1.0,
    )
    names = ("critic_1", "critic_2", "target_critic_1", "target_critic_2")
    critics = {name: Value(env, h.net_arch, 1, nn.ReLU, of_action=True) for name in names}
    return sac.SAC(models={"policy": GaussianPolicy(env, h.net_arch), **critics}, memory=memory, cfg=config, **spaces)


def train(work: Work) -> dict[str, Any]:
    stopwatch = Stopwatch(work)
    count_torch_opt_steps(stopwatch.opt_step)
    set_seed(work["seed"])
    h = hyperparameters_from_json(work["hyperparameters"])
    assert isinstance(h, PPO | DQN | SAC)
    num_envs = h.num_envs if isinstance(h, PPO | DQN) else 1
    if num_envs > 1:
        mode = "vector_entry_point" if work["batched"] else "sync"
        raw: Any = gymnasium.make_vec(work["environment"], num_envs, vectorization_mode=mode)
    else:
        raw = gymnasium.make(work["environment"])
    env = wrap_env(raw, wrapper="gymnasium")
    agent = make_agent(h, env)
    after_step = agent.post_interaction

    def after_step_and_mark(*, timestep: int, timesteps: int) -> None:
        before = stopwatch.opt_steps
        after_step(timestep=timestep, timesteps=timesteps)
        if stopwatch.opt_steps > before:
            returns = [value for values in agent._track_rewards for value in np.ravel(values)][-100:]
            if stopwatch.mark((timestep + 1) * num_envs, returns):
                raise Done

    agent.post_interaction = after_step_and_mark
    with suppress(Done):
        SequentialTrainer(cfg={"timesteps": TIMESTEPS, "headless": True}, env=env, agents=agent).train()
    return stopwatch.result()


def sample_replay(work: Work) -> dict[str, Any]:
    if work["prioritized"]:
        raise SystemExit("skrl has no prioritized replay")
    memory = RandomMemory(memory_size=work["capacity"], num_envs=1, device="cpu", replacement=True)
    sizes = {"observations": work["observation_size"], "next_observations": work["observation_size"]}
    sizes |= {"actions": work["action_size"], "rewards": 1, "terminated": 1}
    for name, size in sizes.items():
        memory.create_tensor(name=name, size=size, dtype=torch.float32)
        memory.get_tensor_by_name(name).uniform_()
    memory.filled = True
    names = list(sizes)
    return time_batches(lambda: memory.sample(names=names, batch_size=work["batch_size"]), work["timed_seconds"])


def measure(work: Work) -> dict[str, Any]:
    result = sample_replay(work) if work["kind"] == "replay" else train(work)
    return result | {"versions": versions_of("skrl", "gymnasium", "torch", "numpy")}


if __name__ == "__main__":
    answer(measure)
