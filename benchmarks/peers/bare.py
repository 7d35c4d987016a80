"""PPO as a bare script, nothing around it: `python -m benchmarks.peers.bare WORK`. What a trainer is compared with.

gymnasium's batched CartPole; weights in one flat tensor; loss and gradient in one compiled graph; fused Adam.
"""

import math
from collections import deque
from itertools import pairwise
from typing import Any

import gymnasium
import torch
from torch import Tensor, nn

from benchmarks.learning_settings import PPO, hyperparameters_from_json
from benchmarks.peers.script import Stopwatch, Work, answer, count_torch_opt_steps, versions_of

NUM_INPUTS, NUM_ACTIONS = 4, 2  # of CartPole


def shapes_of(net_arch: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Weights (inputs, outputs) and biases of the policy, then those of the value."""
    shapes: list[tuple[int, ...]] = []
    for num_outputs in (NUM_ACTIONS, 1):
        sizes = (NUM_INPUTS, *net_arch, num_outputs)
        for num_in, num_out in pairwise(sizes):
            shapes += [(num_in, num_out), (num_out,)]
    return shapes


def initial_weights(net_arch: tuple[int, ...]) -> Tensor:
    """Flat. Orthogonal, gain sqrt(2); the last layer 0.01 for the policy and 1 for the value; biases 0."""
    parts = []
    shapes = shapes_of(net_arch)
    last = {len(shapes) // 2 - 2: 0.01, len(shapes) - 2: 1.0}
    for i, shape in enumerate(shapes):
        part = torch.zeros(shape)
        if len(shape) == 2:
            nn.init.orthogonal_(part, last.get(i, 2**0.5))
        parts.append(part.flatten())
    return torch.cat(parts)


def quick_tanh(x: Tensor) -> Tensor:
    """torch.tanh is several times slower on a CPU."""
    return 2 * torch.sigmoid(2 * x) - 1


def forward(weights: Tensor, observations: Tensor, net_arch: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Log-probabilities (B, actions) and values (B,)."""
    shapes = shapes_of(net_arch)
    parts = [
        part.view(shape) for part, shape in zip(weights.split([math.prod(s) for s in shapes]), shapes, strict=True)
    ]
    outputs = []
    for half in (parts[: len(parts) // 2], parts[len(parts) // 2 :]):
        x = observations
        for i in range(0, len(half), 2):
            x = torch.addmm(half[i + 1], x, half[i])
            x = quick_tanh(x) if i + 2 < len(half) else x
        outputs.append(x)
    return outputs[0].log_softmax(dim=1), outputs[1].squeeze(1)


def ppo_loss(weights: Tensor, rows: tuple[Tensor, ...], h: PPO) -> Tensor:
    observations, actions, old_log_probs, advantages, returns = rows
    log_probs, values = forward(weights, observations, h.net_arch)
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    ratio = (log_probs.gather(1, actions.unsqueeze(1)).squeeze(1) - old_log_probs).exp()
    policy = torch.max(-advantages * ratio, -advantages * ratio.clamp(1 - h.clip_range, 1 + h.clip_range)).mean()
    entropy = -(log_probs.exp() * log_probs).sum(dim=1).mean()
    return policy + h.value_coef * (values - returns).square().mean() - h.entropy_coef * entropy


def train(work: Work) -> dict[str, Any]:
    torch.manual_seed(work["seed"])
    stopwatch = Stopwatch(work)
    count_torch_opt_steps(stopwatch.opt_step)
    h = hyperparameters_from_json(work["hyperparameters"])
    assert isinstance(h, PPO)
    T, B = h.rollout_length, h.num_envs
    weights = nn.Parameter(initial_weights(h.net_arch))
    optimizer = torch.optim.Adam([weights], lr=h.learning_rate, eps=1e-5, fused=True)
    compiled = torch.compile(lambda weights, rows: ppo_loss(weights, rows, h), fullgraph=True)
    env = gymnasium.make_vec("CartPole-v1", B, vectorization_mode="vector_entry_point")
    observation, _ = env.reset(seed=work["seed"])
    observations = torch.empty(T, B, NUM_INPUTS)
    actions, chosen = torch.empty(T, B, dtype=torch.int64), torch.empty(T, B)
    values, rewards = torch.empty(T + 1, B), torch.empty(T, B)
    ended, first = torch.empty(T, B, dtype=torch.bool), torch.zeros(T + 1, B, dtype=torch.bool)
    env_steps = 0
    sums, finished = torch.zeros(B), deque[float](maxlen=100)
    while not stopwatch.mark(env_steps, finished):
        first[0] = first[T]  # a step from a world that has ended only resets it: it is no transition
        with torch.no_grad():
            for t in range(T):
                observations[t] = torch.from_numpy(observation)
                log_probs, values[t] = forward(weights, observations[t], h.net_arch)
                actions[t] = torch.rand(B) >= log_probs[:, 0].exp()  # of two actions
                chosen[t] = log_probs.gather(1, actions[t].unsqueeze(1)).squeeze(1)
                observation, reward, terminated, truncated, _ = env.step(actions[t].numpy())
                rewards[t] = torch.from_numpy(reward)
                ended[t] = torch.from_numpy(terminated)
                first[t + 1] = torch.from_numpy(terminated | truncated)
                if work["solved_at"] is not None:
                    sums += rewards[t]
                    finished.extend(sums[first[t + 1]].tolist())
                    sums[first[t + 1]] = 0.0
            values[T] = forward(weights, torch.from_numpy(observation), h.net_arch)[1]
            env_steps += T * B
            advantages = torch.empty(T, B)
            running = torch.zeros(B)
            for t in reversed(range(T)):
                delta = rewards[t] + h.gamma * values[t + 1] * ~ended[t] - values[t]
                running = delta + h.gamma * h.gae_lambda * ~first[t + 1] * running
                advantages[t] = running
            kept = (~first[:T]).flatten()
            columns = (observations, actions, chosen, advantages, advantages + values[:T])
            rows = tuple(column.flatten(0, 1)[kept] for column in columns)
        for _ in range(h.num_passes):
            order = torch.randperm(len(rows[0]))
            order = torch.cat([order, order[: T * B - len(order)]])  # some twice: minibatches keep their shape
            for places in order.split(h.batch_size):
                compiled(weights, tuple(column[places] for column in rows)).backward()
                nn.utils.clip_grad_norm_([weights], h.max_grad_norm)
                optimizer.step()
                optimizer.zero_grad()
    return stopwatch.result()


def measure(work: Work) -> dict[str, Any]:
    if work["kind"] == "replay" or work["environment"] != "CartPole-v1":
        raise SystemExit("the bare script is PPO on CartPole")
    return train(work) | {"versions": versions_of("gymnasium", "torch", "numpy")}


if __name__ == "__main__":
    answer(measure)
