"""How well all players of each protocol learn `witness`, over seeds: python -m benchmarks.agents.witness

Accuracy of the trained players together, against the accuracy of optimal ones; a markdown table.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from rich.console import Console

from palestra import make_trainer
from palestra.commands.starting import find_config
from palestra.run.kinds import read_config
from palestra.runtime.statistics import estimate_mean
from palestra.storage.records_file import read_records

NUM_BITS = 8
NUM_SEEN = {"merlin_arthur": 0}  # of the others USUAL_SEEN
USUAL_SEEN = 2
PROTOCOLS = ("solo_verifier", "nip", "adp", "debate", "mnip", "merlin_arthur")
NUM_OPT_STEPS = 3000  # of each player
NUM_GAMES = 20_000  # of the last evaluation


def optimum(protocol: str) -> float:
    """The accuracy of optimal players (docs/dialogue.md)."""
    n, k = NUM_BITS, NUM_SEEN.get(protocol, USUAL_SEEN)
    if protocol == "solo_verifier":
        return 0.5 + (2**n - 2 ** (n - k)) / (2 * (2**n - 1))
    return 0.75 + 1 / (4 * (2**n - 1)) if protocol == "merlin_arthur" else 1.0


def accuracy(protocol: str, seed: int, num_opt_steps: int, num_games: int) -> float:
    """Of the trained players together, after training with that seed."""
    seen = NUM_SEEN.get(protocol, USUAL_SEEN)
    scenario = [f"game.scenario.num_bits={NUM_BITS}", f"game.scenario.num_seen={seen}"]
    found = find_config("ppo", [protocol, "witness", *scenario])
    config: Any = read_config(found.source)
    num_players = len(config.learners())
    overrides = [
        f"seed={seed}",
        f"stop.after={num_opt_steps * num_players}",
        "execution.num_threads=1",
        "output.recorders=[]",
        f"evaluations.0.final_num_games={num_games}",
        f"evaluations.0.interval.every={num_opt_steps * num_players}",
    ]
    with TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        make_trainer(config, run=run, overrides=overrides, console=Console(quiet=True)).fit()
        *_, last = (record for record in read_records(run / "records.jsonl") if record["kind"] == "evaluation")
    [pair] = [pair for pair in last["pairs"] if all(player in config.players for player in pair["players"].values())]
    return float(pair["scores"]["accuracy"])


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--protocols", nargs="+", default=PROTOCOLS, choices=PROTOCOLS)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--opt-steps", type=int, default=NUM_OPT_STEPS, help="of each player")
    parser.add_argument("--games", type=int, default=NUM_GAMES, help="of the last evaluation")
    arguments = parser.parse_args(words)
    print(
        f"| protocol (n = {NUM_BITS}) | k | optimum | mean over {arguments.seeds} seeds (95%) | worst seed | s a seed |"
    )
    print("|---|---|---|---|---|---|", flush=True)
    for protocol in arguments.protocols:
        begun_s = time.monotonic()
        found = [accuracy(protocol, seed, arguments.opt_steps, arguments.games) for seed in range(arguments.seeds)]
        seconds = (time.monotonic() - begun_s) / arguments.seeds
        mean = estimate_mean(torch.tensor(found))
        spread = f"{mean.value:.3f} ({mean.low:.3f} to {mean.high:.3f})"
        seen = NUM_SEEN.get(protocol, USUAL_SEEN)
        print(
            f"| `{protocol}` | {seen} | {optimum(protocol):.3f} | {spread} | {min(found):.3f} | {seconds:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main(sys.argv[1:])
