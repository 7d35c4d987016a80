"""What does a lag cost? Shipped configs whose roll-outs are played by older networks, beside the same without actors.

    python -m benchmarks.actors_learning [--configs NAME ...] [--seeds 0..4] [--folder FOLDER] [--json FILE]

Actors play in the training's process, which changes no bit. As many trainings run at a time as there are cores.
Finished trainings in the folder are not done again. README.md says what is compared.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import torch

from benchmarks.learning import read_seeds
from benchmarks.measuring import ROOT, tell_table
from benchmarks.replicas_learning import QUIET, STOPS, Trained
from palestra.report.comparison import estimate_improvement
from palestra.report.reading import RunData
from palestra.runtime.statistics import estimate_mean_of_few

AGENT = "return/agent"
LAGS: dict[str, tuple[str, tuple[int, ...]]] = {
    "ppo-cartpole": (AGENT, (1, 4)),
    "appo-cartpole": (AGENT, (1, 4)),
    "dqn-cartpole": (AGENT, (1, 4)),
    "sac-pendulum": (AGENT, (1, 4)),
    "dqn-polyhedra": ("rho", (1,)),
}
"""what is scored, and the lags"""


def train(config: str, lag: int, seed: int, folder: Path) -> Trained:
    """Train, unless that is done, and return what came of it. lag: 0: without actors."""
    path = folder / f"{config}-lag-{lag}-{seed}"
    if not path.exists():
        unfinished = path.with_name(f"{path.name}.unfinished")
        after = [] if config not in STOPS else [f"stop.after={STOPS[config][0]}", f"stop.unit={STOPS[config][1]}"]
        actors = "null" if lag == 0 else f"{{num: 1, lag: {lag}}}"
        changes = [f"seed={seed}", f"actors={actors}", "execution.actor_processes=0", *after, *QUIET]
        command = [sys.executable, "-m", "palestra", "train", config, *changes, "--run", str(unfinished), "--quiet"]
        subprocess.run(command, check=True, cwd=ROOT)
        unfinished.rename(path)
    evaluated = RunData.read(path).evaluated
    scores = [each.evaluation.pairs[0].scores[LAGS[config][0]].value for each in evaluated]
    return Trained(scores[-1], sum(scores) / len(scores))


def rows_of(config: str, found: dict[int, list[Trained]]) -> Iterator[dict[str, Any]]:
    """The rows of one config: what is scored without and with each lag, and the probability that the lag is better."""
    for lag, (measure, title) in product(
        LAGS[config][1], (("last", "at the end"), ("mean", "mean of all evaluations"))
    ):
        values = {name: [getattr(each, measure) for each in found[number]] for name, number in (("0", 0), ("lag", lag))}
        pair = (torch.tensor(values["lag"]), torch.tensor(values["0"]))
        score = f"{LAGS[config][0]} {title}"
        yield {"config": config, "score": score, "lag": lag, "values": values, "better": estimate_improvement([pair])}


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    lines = ["| config | score | seeds | no actors | lag | with it | P(lag better) |", "|---|---|---|---|---|---|---|"]
    for row in rows:
        alone, lagging = (estimate_mean_of_few(row["values"][name]) for name in ("0", "lag"))
        told = [f"{each.value:.4g} [{each.low:.4g}, {each.high:.4g}]" for each in (alone, lagging, row["better"])]
        cells = [row["config"], row["score"], str(len(row["values"]["0"])), told[0], str(row["lag"]), *told[1:]]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--configs", nargs="+", choices=list(LAGS), default=list(LAGS), metavar="NAME")
    parser.add_argument("--seeds", type=read_seeds, default=list(range(5)), metavar="FIRST..LAST")
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "actors-learning", help="of all trainings")
    parser.add_argument("--json", type=Path, help="write every score to this file, too")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        asked = {
            (config, lag, seed): pool.submit(train, config, lag, seed, arguments.folder)
            for config in arguments.configs
            for lag, seed in product((0, *LAGS[config][1]), arguments.seeds)
        }
        for config in arguments.configs:
            found = {
                lag: [asked[config, lag, seed].result() for seed in arguments.seeds] for lag in (0, *LAGS[config][1])
            }
            rows += rows_of(config, found)
            print(markdown(list(rows_of(config, found))), file=sys.stderr, flush=True)
    tell_table(markdown(rows), rows, arguments.json)


if __name__ == "__main__":
    main()
