"""palestra: `python -m benchmarks.peers.ours WORK`. Display, records and all else as users have it.

"batched" plays palestra's own batched CartPole. Nothing is evaluated or saved while it trains; no peer does.
"""

from contextlib import suppress
from typing import Any

import torch

import palestra
from benchmarks.learning_settings import hyperparameters_from_json
from benchmarks.measuring import ROOT
from benchmarks.peers.script import Done, Stopwatch, Work, answer, time_batches, versions_of
from benchmarks.peers.translation import algorithm_of, num_opt_steps, num_worlds_of
from palestra.buffers.prioritized import PrioritizedReplay, PrioritizedReplayConfig
from palestra.buffers.replay import ReplayBuffer, UniformReplayConfig
from palestra.commands.starting import starting_config
from palestra.config import load_yaml
from palestra.players.player import Metrics, Player
from palestra.schedules import ConstantSchedule

CPU = torch.device("cpu")
MANY = 10**9  # env steps: the stopwatch ends a training
OWN_CARTPOLE = {
    "name": "cartpole",
    "max_rounds": 500,
    "initial_low": -0.05,
    "initial_high": 0.05,
    "sutton_barto_reward": False,
    "observation": {"normalize": None, "clip": None},
}


def config_of(work: Work) -> dict[str, Any]:
    """The whole config of a run that does the work: a shipped config, or what `palestra config` makes of one for the
    environment, with what the work says in its place. Of hyperparameters that are None the shipped ones stand.

    A work of the learning table has a "setting", and ends after its env steps; others are ended by a stopwatch.
    """
    setting = work.get("setting")
    source = work if setting is None else setting
    given = source["hyperparameters"]
    h = None if given is None else hyperparameters_from_json(given)
    config = _base_config("ppo" if h is None else type(h).__name__.lower(), source["environment"])
    config |= {"seed": work["seed"], "evaluations": [], "best": None, "stop": {"after": MANY, "unit": "env_steps"}}
    config["execution"]["num_threads"] = work["num_threads"]
    config["output"] |= {"save": None}
    if h is not None:
        env_steps = None if setting is None else setting["env_steps"]
        deterministic = True if setting is None else setting["deterministic"]
        agent = config["players"]["agent"]
        has_box_actions = agent["algorithm"].get("box_actions") is not None
        config["num_worlds"] = num_worlds_of(h)
        agent["algorithm"] = algorithm_of(h, env_steps, deterministic, has_box_actions)
        if env_steps is not None:
            config["stop"] = {"after": num_opt_steps(h, env_steps), "unit": "opt_steps"}
    if work.get("batched"):
        config["game"] = OWN_CARTPOLE
    return config


def _base_config(algorithm: str, environment: str) -> dict[str, Any]:
    shipped = sorted((ROOT / "configs").glob("*.yml"))
    name = environment.partition("-")[0].lower()
    for path in shipped:
        if path.stem == f"{algorithm}-{name}":
            return load_yaml(path)
    return starting_config(algorithm, [environment]).model_dump()


# ---- training ------------------------------------------------------------------------------------------


class Watch(palestra.Callback):
    """Tells the stopwatch of opt steps, marks after every turn, and ends the training when all is measured."""

    def __init__(self, stopwatch: Stopwatch) -> None:
        super().__init__(None)
        self.stopwatch = stopwatch

    def after_step(self, trainer: Any, player: Player, metrics: Metrics) -> None:
        for _ in range(trainer.opt_steps - self.stopwatch.opt_steps):
            self.stopwatch.opt_step()

    def after_epoch(self, trainer: Any) -> None:
        returns = () if self.stopwatch.solved_at is None else trainer.recent_returns("agent")
        if self.stopwatch.mark(trainer.env_steps, returns):
            raise Done


def train(work: Work) -> dict[str, Any]:
    stopwatch = Stopwatch(work)
    trainer = palestra.Trainer(config_of(work), callbacks=[Watch(stopwatch)])
    with suppress(Done):
        trainer.fit()
    return stopwatch.result()


# ---- memory --------------------------------------------------------------------------------------------


def sample_replay(work: Work) -> dict[str, Any]:
    """Batches drawn from a full buffer; prioritized ones with their weights in the loss, and new priorities."""
    num, size = work["capacity"], work["batch_size"]
    flags = dict.fromkeys(("terminated", "truncated"), torch.zeros(num, dtype=torch.bool))
    rows = {
        "observation.whole": torch.rand(num, work["observation_size"]),
        "next_observation.whole": torch.rand(num, work["observation_size"]),
        "action": torch.rand(num, work["action_size"]),
        "reward": torch.rand(num),
        "next_legal": torch.ones(num, 0, dtype=torch.bool),
        **flags,
    }
    if not work["prioritized"]:
        buffer = ReplayBuffer(
            UniformReplayConfig(name="uniform", capacity=num, layout="whole", scratch_folder=None), CPU, 0, "replay"
        )
        buffer.add(rows, torch.ones(num, dtype=torch.bool))
        return time_batches(lambda: buffer.sample(size), work["timed_seconds"])
    beta = ConstantSchedule(name="constant", value=0.4)
    config = PrioritizedReplayConfig(
        name="prioritized", capacity=num, layout="whole", scratch_folder=None, alpha=0.6, beta=beta, eps=1e-6
    )
    prioritized = PrioritizedReplay(config, CPU, 0, "replay")
    prioritized.add(rows, torch.ones(num, dtype=torch.bool))
    prioritized.tree.fill(torch.rand(num, dtype=torch.float64))
    errors = torch.rand(size)

    def draw() -> None:
        prioritized.sample(size)
        prioritized.importance(0)
        prioritized.update_priorities(errors)

    return time_batches(draw, work["timed_seconds"])


def measure(work: Work) -> dict[str, Any]:
    torch.set_num_threads(work["num_threads"])
    result = sample_replay(work) if work["kind"] == "replay" else train(work)
    return result | {"versions": versions_of("palestra", "gymnasium", "torch", "numpy")}


if __name__ == "__main__":
    answer(measure)
