"""PPO on CartPole: env steps per second, training and records included, beside a bare script of the same work.

    python -m benchmarks.ppo {gymnasium|batched|large|bare} [--threads N] [--steps N]

gymnasium: 8 stock environments that step one after the other; batched: 8 of palestra's own; large: 4096 of those, 64
rounds, one pass of 8 minibatches; bare: the work of `large` in plain PyTorch, without trainer, records or checks.
"""

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import palestra
from palestra.games.classic_control import CartPole, CartPoleConfig
from palestra.games.world import TensorWorld
from palestra.randomness import world_keys
from palestra.recording.recorders import read_records

ROOT = Path(__file__).parents[1]
BATCHED = {"name": "cartpole", "sutton_barto_reward": False, "initial_low": -0.05, "initial_high": 0.05}
NUM_WORLDS, NUM_ROUNDS, NUM_MINIBATCHES = 4096, 64, 8


def run_of(work: str, threads: int, steps: int) -> dict[str, Any]:
    config = palestra.load_config(ROOT / "configs" / "ppo-cartpole.yml").model_dump()
    config |= {"evaluations": [], "best": None, "stop": {"after": steps, "unit": "env_steps"}}
    config["execution"]["num_threads"] = threads
    config["output"] |= {
        "display": "plain",
        "record": {"every": max(steps // 10, 1), "unit": "env_steps"},
        "save": None,
    }
    if work != "gymnasium":
        config["game"] = BATCHED | {"max_rounds": 500}
    if work == "large":
        config["num_worlds"] = NUM_WORLDS
        config["players"]["agent"]["algorithm"] |= {
            "rollout_length": NUM_ROUNDS,
            "num_passes": 1,
            "num_minibatches": NUM_MINIBATCHES,
        }
    return config


def time_palestra(work: str, threads: int, steps: int) -> list[float]:
    """Env steps per second of training, record by record; the first one, with its start, is left out."""
    with tempfile.TemporaryDirectory() as folder:
        palestra.PPOTrainer(run_of(work, threads, steps), run=Path(folder) / "run").fit()
        records = [r for r in read_records(Path(folder) / "run" / "records.jsonl") if r["kind"] == "training"]
    return [record["clock"]["env_steps_per_s"] for record in records[1:]]


def mlp(num_outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, num_outputs))


def time_bare(threads: int, steps: int) -> list[float]:
    """The same, roll-out by roll-out."""
    torch.set_num_threads(threads)
    device = torch.device("cpu")
    game = CartPole(CartPoleConfig(**BATCHED, max_rounds=500), device, "numba")  # type: ignore[arg-type]
    keys = world_keys(0, NUM_WORLDS, device)
    world, policy, value = TensorWorld(game, keys), mlp(2), mlp(1)
    parameters = [*policy.parameters(), *value.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=2.5e-4, eps=1e-5, fused=True)
    rates = []
    for _ in range(max(steps // (NUM_WORLDS * NUM_ROUNDS), 2)):
        started = time.perf_counter()
        rows = roll_out(world, policy, value, keys)
        for index in torch.randperm(NUM_WORLDS * NUM_ROUNDS).chunk(NUM_MINIBATCHES):
            optimizer.zero_grad()
            loss(policy, value, [column[index] for column in rows]).backward()
            nn.utils.clip_grad_norm_(parameters, 0.5)
            optimizer.step()
        rates.append(NUM_WORLDS * NUM_ROUNDS / (time.perf_counter() - started))
    return rates[1:]


@torch.no_grad()
def roll_out(world: TensorWorld, policy: nn.Module, value: nn.Module, keys: Tensor) -> list[Tensor]:
    steps = []
    for _ in range(NUM_ROUNDS):
        seen = world.observation["seen"]
        log_probs = policy(seen).log_softmax(1)
        action = (torch.rand(NUM_WORLDS) < log_probs[:, 1].exp()).long()
        outcome = world.step(action, keys)
        taken = log_probs.gather(1, action.unsqueeze(1)).squeeze(1)
        cut = value(outcome.observation["seen"]).squeeze(1) * outcome.truncated
        reward = outcome.reward + 0.99 * cut
        steps.append((seen, action, taken, value(seen).squeeze(1), reward, outcome.terminated | outcome.truncated))
    later, ahead = value(world.observation["seen"]).squeeze(1), torch.zeros(NUM_WORLDS)
    advantages = []
    for *_, here, reward, ended in reversed(steps):
        ahead = reward + 0.99 * later * ~ended - here + 0.99 * 0.95 * ahead * ~ended
        later = here
        advantages.append(ahead)
    seen, action, taken, here, *_ = (torch.cat(column) for column in zip(*steps, strict=True))
    advantage = torch.cat(advantages[::-1])
    return [seen, action, taken, advantage, advantage + here]


def loss(policy: nn.Module, value: nn.Module, rows: list[Tensor]) -> Tensor:
    seen, action, old, advantage, goal = rows
    log_probs = policy(seen).log_softmax(1)
    ratio = (log_probs.gather(1, action.unsqueeze(1)).squeeze(1) - old).exp()
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    gain = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
    entropy = -(log_probs.exp() * log_probs).sum(1).mean()
    return -gain + 0.5 * (value(seen).squeeze(1) - goal).square().mean() - 0.01 * entropy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", choices=["gymnasium", "batched", "large", "bare"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=200_000)
    given = parser.parse_args()
    is_bare = given.work == "bare"
    rates = sorted(
        time_bare(given.threads, given.steps) if is_bare else time_palestra(given.work, given.threads, given.steps)
    )
    median = rates[len(rates) // 2]
    print(f"{given.work}, {given.threads} threads: median {median:,.0f} env steps/s, best {rates[-1]:,.0f}")


if __name__ == "__main__":
    main()
