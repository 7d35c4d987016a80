"""Does a centralized critic matter? PPO with it (MAPPO) beside PPO without (IPPO), in the game `harvest`, of which the
best mean return is known.

    python -m benchmarks.agents.critics [--seeds 5] [--epochs 120]

Both train by the same config but for `centralized_critic`, from the same seeds. The share of the best mean return is
that of the rounds in which all farmers sow what is right, in 1000 games of the likeliest actions: what luck brings has
mean 0, whatever they do. Prints means over the seeds with 95% t intervals.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from palestra import make_trainer
from palestra.commands.starting import starting_config
from palestra.kinds.games.config import RunConfig
from palestra.runtime.statistics import estimate_mean_of_few
from palestra.storage.records_file import read_records

NUM_ROUNDS, NUM_FARMERS, NUM_WORLDS, ROLLOUT_LENGTH = 2, 2, 128, 4
NUM_GAMES = 1000
CRITICS = {"centralized (MAPPO)": True, "the player's own observation (IPPO)": False}
ALGORITHM = {  # the rest is what `palestra config ppo harvest` prints
    "gamma": 1.0,
    "gae_lambda": 0.95,
    "rollout_length": ROLLOUT_LENGTH,
    "num_passes": 8,
    "num_minibatches": 1,
    "objective": {"name": "clip", "epsilon": {"name": "constant", "value": 0.2}},
    "value_clip": None,
    "value_coefficient": 0.5,
    "entropy_coefficient": {"name": "constant", "value": 0.01},
    "max_grad_norm": 0.5,
    "target_kl": None,
    "normalize_advantages": True,
    "body": {
        "name": "separate",
        "policy": {"name": "mlp", "net_arch": [64, 64], "activation": "tanh"},
        "value": {"name": "mlp", "net_arch": [64, 64], "activation": "tanh"},
    },
    "initialization": {"name": "orthogonal", "hidden_gain": 1.41421356, "policy_gain": 0.01, "value_gain": 1.0},
    "evaluation": "deterministic",
    "optimizer": {"name": "adam", "beta1": 0.9, "beta2": 0.999, "eps": 1e-5, "weight_decay": 0.0},
    "learning_rate": {"name": "constant", "value": 3e-3},
    "learning_rate_factors": {},
}


class Learned(NamedTuple):
    """What one run comes to. shares: of the best mean return, half-way and at the end. explained_variance: the share of
    the variance of value targets that the critics explain, in the second half."""

    shares: tuple[float, float]
    explained_variance: float


def run_config(is_centralized: bool, seed: int, num_epochs: int) -> RunConfig:
    """A complete run, of players that share no weights."""
    game = {"name": "harvest", "num_farmers": NUM_FARMERS, "num_kinds": 4, "num_rounds": NUM_ROUNDS, "luck": 20.0}
    half = {"every": max(1, num_epochs // 2), "unit": "epochs"}
    changes = {f"game.{key}": value for key, value in game.items() if key != "name"}
    changes |= {"seed": seed, "num_worlds": NUM_WORLDS, "stop": {"after": num_epochs, "unit": "epochs"}, "best": None}
    for role in range(NUM_FARMERS):
        place = f"players.farmer_{role}.algorithm"
        changes |= {f"{place}.{key}": value for key, value in ALGORITHM.items()}
        changes |= {f"{place}.centralized_critic": is_centralized}
    numbers = {"interval": half, "num_games": NUM_GAMES, "final_num_games": NUM_GAMES}
    changes |= {f"evaluations.0.{key}": value for key, value in numbers.items()}
    changes |= {"evaluations.0.pairings": [{f"farmer_{role}": f"farmer_{role}" for role in range(NUM_FARMERS)}]}
    changes |= {"execution.num_threads": 1, "output.display": "quiet", "output.recorders": [], "output.save": None}
    changes |= {"output.record": half}
    overrides = [f"{key}={json.dumps(value)}" for key, value in changes.items()]
    config = starting_config("ppo", ["harvest", *overrides])
    assert isinstance(config, RunConfig)
    return config


def learn(is_centralized: bool, seed: int, num_epochs: int) -> Learned:
    with TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        make_trainer(run_config(is_centralized, seed, num_epochs), run=run).fit()
        records = read_records(run / "records.jsonl")
    rounds = NUM_GAMES * NUM_ROUNDS
    _, *shares = [record["pairs"][0]["right"] / rounds for record in records if record["kind"] == "evaluation"]
    *_, last = (record["players"] for record in records if record["kind"] == "training")
    explained = [last[name]["explained_variance"] for name in last]
    return Learned((shares[0], shares[-1]), sum(explained) / len(explained))


def table(num_seeds: int, num_epochs: int) -> list[str]:
    """Lines of Markdown. Each run is told on stderr."""
    half, end = (num * NUM_WORLDS * ROLLOUT_LENGTH for num in (num_epochs // 2, num_epochs))
    lines = [
        f"| the critic observes | share of the best mean return after {half:,} env steps | after {end:,} "
        "| explained variance |",
        "|---|---|---|---|",
    ]
    for name, is_centralized in CRITICS.items():
        runs = [learn(is_centralized, seed, num_epochs) for seed in range(num_seeds)]
        for seed, run in enumerate(runs):
            print(f"{name}, seed {seed}: {run.shares[0]:.3f}, {run.shares[1]:.3f}", file=sys.stderr, flush=True)
        cells = [_cell([run.shares[moment] for run in runs]) for moment in (0, 1)]
        cells.append(_cell([run.explained_variance for run in runs]))
        lines.append(f"| {' | '.join([name, *cells])} |")
    return lines


def _cell(values: Sequence[float]) -> str:
    found = estimate_mean_of_few(values)
    mean, low, high = (f"{round(number, 2) + 0.0:.2f}" for number in (found.value, found.low, found.high))  # no -0.00
    return f"{mean} ({low} to {high})"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=120)
    arguments = parser.parse_args()
    print(*table(arguments.seeds, arguments.epochs), sep="\n")
