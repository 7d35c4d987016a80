"""What several processes cost: replicas in ranks beside trainings that share nothing, and a bare script with DDP.

    python -m benchmarks.processes [--quick] [--json FILE]

Each contender is a set of processes of one thread, which all train at the same time for a fixed number of opt steps. An
opt step of a replica is one of its batches, so processes that waited for nobody would have ratio 1. README.md says what
is counted.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.learning_settings import PPO
from benchmarks.measuring import ROOT, Row, alternate, tell
from benchmarks.peers.bare import NUM_INPUTS, forward, initial_weights, ppo_loss
from benchmarks.replicas import QUIET, WORKS
from palestra import make_trainer

PPO_WORK, DDP = next(iter(WORKS)), "2 processes, bare script with DDP"
LAYOUTS: dict[str, tuple[tuple[int, int], ...]] = dict.fromkeys(WORKS, ((2, 1), (2, 2)))  # replicas, processes
LAYOUTS |= {name: (*LAYOUTS[name], (4, 1), (4, 2), (4, 4)) for name in WORKS if name != PPO_WORK}
HYPERPARAMETERS = PPO(
    num_envs=4096,
    rollout_length=64,
    num_passes=4,
    batch_size=32768,
    gamma=0.98,
    gae_lambda=0.9,
    clip_range=0.2,
    value_coef=0.5,
    entropy_coef=0.0,
    max_grad_norm=0.5,
    learning_rate=2e-3,
    linear_decay=False,
    net_arch=(256, 256),
)


class Workers:
    """Processes that train when told, all at the same time. Gives opt steps of all replicas per second."""

    def __init__(self, arguments: list[str], num: int, are_ranks: bool, num_replicas: int, num_steps: int) -> None:
        self.num_replicas, self.num_steps = num_replicas, num_steps
        self.store = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.processes = [self._start(arguments, rank, num if are_ranks else 1) for rank in range(num)]
        for process in self.processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"

    def _start(self, arguments: list[str], rank: int, num_ranks: int) -> "subprocess.Popen[str]":
        said = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        if num_ranks > 1:
            said |= {"TORCHELASTIC_RUN_ID": "benchmark", "TORCHELASTIC_USE_AGENT_STORE": "True"}
            said |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(self.store.port)}
            said |= {name: str(num_ranks) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE")}
            said |= {name: str(rank) for name in ("RANK", "LOCAL_RANK")}
        command = [sys.executable, "-m", "benchmarks.processes", *arguments, "--number", str(rank)]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
        return subprocess.Popen(command, env=os.environ | said, **pipes)

    def measure(self) -> float:
        started = time.perf_counter()
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
        for process in self.processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "done\n"
        return self.num_replicas * self.num_steps / (time.perf_counter() - started)

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


def rows_of(name: str, folder: Path, num_repeats: int, is_quick: bool) -> Iterator[Row]:
    """The rows of one work: every layout beside as many trainings that share nothing."""
    num_steps = WORKS[name][2] if is_quick else {"PPO": 16, "DQN": 2048, "SAC": 256}[name.split(",")[0]]
    for number in sorted({num for num, _ in LAYOUTS[name]}):
        alone = f"{number} trainings that share nothing"
        made: dict[str, Workers] = {}

        def make(title: str, arguments: list[str], num: int, are_ranks: bool) -> None:
            given = [
                "--work",
                name,
                "--steps",
                str(num_steps),
                "--folder",
                str(folder / name.split(",")[0] / title),
                *arguments,
            ]
            made[title] = Workers(given, num, are_ranks, number, num_steps)  # noqa: B023 (called in this pass)

        make(alone, ["--replicas", "1"], number, are_ranks=False)
        for num_replicas, num in LAYOUTS[name]:
            if num_replicas == number:
                make(f"{number} replicas in {num}", ["--replicas", str(number)], num, are_ranks=num > 1)
        if name == PPO_WORK and number == 2:
            make(DDP, ["--ddp"], number, are_ranks=True)
        try:
            values = alternate({title: each.measure for title, each in made.items()}, num_repeats)
        finally:
            for each in made.values():
                each.end()
        yield from Row.of(name, "opt steps of all replicas", "opt steps/s", 1, values, alone)
        if DDP in values:
            yield from Row.of(
                name,
                "opt steps of all replicas",
                "opt steps/s",
                1,
                {DDP: values[DDP], (t := "2 replicas in 2"): values[t]},
                DDP,
            )


# ---- in a process --------------------------------------------------------------------------------------


def serve(work: Callable[[], object]) -> None:
    """Do a piece of work whenever the parent says so; the first one is not measured."""
    work()
    print("ready", flush=True)
    for _ in sys.stdin:
        work()
        print("done", flush=True)


def train_ours(name: str, num_steps: int, folder: Path, num_replicas: int, number: int) -> None:
    config, changes, _ = WORKS[name]
    overrides = [*changes, *QUIET, f"num_replicas={num_replicas}", "stop.after=1000000000", "stop.unit=opt_steps"]
    is_ranked = "RANK" in os.environ
    trainer = make_trainer(config, run=folder if is_ranked else folder / str(number), overrides=overrides)
    out = os.dup(1)  # ranks print to files in the run's folder
    trainer.fit(num_steps, "opt_steps")
    os.dup2(out, 1)
    serve(lambda: trainer.fit(num_steps, "opt_steps"))


class Loss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(initial_weights(HYPERPARAMETERS.net_arch))
        self.compiled = torch.compile(lambda weights, rows: ppo_loss(weights, rows, HYPERPARAMETERS), fullgraph=True)

    def forward(self, rows: tuple[Tensor, ...]) -> Tensor:
        loss: Tensor = self.compiled(self.weights, rows)
        return loss


def train_bare(num_steps: int) -> None:
    """The PPO of benchmarks.peers.bare, with the gradients of all processes averaged by DDP."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    torch.manual_seed(distributed.get_rank())
    h, model = HYPERPARAMETERS, Loss()
    joint = DistributedDataParallel(model)
    optimizer = torch.optim.Adam([model.weights], lr=h.learning_rate, eps=1e-5, fused=True)
    env = gymnasium.make_vec("CartPole-v1", h.num_envs, vectorization_mode="vector_entry_point")
    observation, _ = env.reset(seed=distributed.get_rank())
    steps = _opt_steps(h, model, joint, optimizer, env, observation)

    def work() -> None:
        for _ in range(num_steps):
            next(steps)

    serve(work)


def _opt_steps(h: PPO, model: Loss, joint: nn.Module, optimizer: Any, env: Any, observation: Any) -> Iterator[None]:
    """Play and learn; yields after each opt step."""
    T, B = h.rollout_length, h.num_envs
    observations = torch.empty(T, B, NUM_INPUTS)
    actions, chosen = torch.empty(T, B, dtype=torch.int64), torch.empty(T, B)
    values, rewards = torch.empty(T + 1, B), torch.empty(T, B)
    over = torch.empty(T, B, dtype=torch.bool)
    while True:
        with torch.no_grad():
            for t in range(T):
                observations[t] = torch.from_numpy(observation)
                log_probs, values[t] = forward(model.weights, observations[t], h.net_arch)
                actions[t] = torch.rand(B) >= log_probs[:, 0].exp()
                chosen[t] = log_probs.gather(1, actions[t].unsqueeze(1)).squeeze(1)
                observation, reward, terminated, truncated, _ = env.step(actions[t].numpy())
                rewards[t] = torch.from_numpy(reward)
                over[t] = torch.from_numpy(terminated | truncated)
            values[T] = forward(model.weights, torch.from_numpy(observation), h.net_arch)[1]
            advantages, running = torch.empty(T, B), torch.zeros(B)
            for t in reversed(range(T)):
                running = (
                    rewards[t]
                    + h.gamma * values[t + 1] * ~over[t]
                    - values[t]
                    + (h.gamma * h.gae_lambda * ~over[t] * running)
                )
                advantages[t] = running
        columns = (observations, actions, chosen, advantages, advantages + values[:T])
        rows = tuple(column.flatten(0, 1) for column in columns)
        for _ in range(h.num_passes):
            for places in torch.randperm(T * B).split(h.batch_size):
                joint(tuple(column[places] for column in rows)).backward()
                nn.utils.clip_grad_norm_([model.weights], h.max_grad_norm)
                optimizer.step()
                optimizer.zero_grad()
                yield


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smoke run: its figures mean nothing")
    parser.add_argument("--json", type=Path, help="write every measured value to this file, too")
    for name in ("work", "steps", "folder", "replicas", "number"):  # of one of the processes
        parser.add_argument(f"--{name}", help=argparse.SUPPRESS)
    parser.add_argument("--ddp", action="store_true", help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.ddp:
        train_bare(int(a.steps))
    elif a.work is not None:
        train_ours(a.work, int(a.steps), Path(a.folder), int(a.replicas), int(a.number))
    else:
        with tempfile.TemporaryDirectory() as folder:
            rows = [r for name in WORKS for r in rows_of(name, Path(folder), 1 if a.quick else 3, a.quick)]
        tell(rows, a.json)


if __name__ == "__main__":
    main()
