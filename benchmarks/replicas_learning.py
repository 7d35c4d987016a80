"""Do replicas learn as well as one training of their size? P(better) of the ones over the other, seed by seed.

    python -m benchmarks.replicas_learning [--configs NAME ...] [--seeds 0..4] [--folder FOLDER] [--json FILE]

Four replicas of a shipped config stand beside one training of it with four times the worlds, the memory and the batch;
everything else is as in the file, but for `stop` where STOPS shortens it. Finished trainings in the folder are not done
again. README.md says what is compared.
"""

import argparse
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.learning import read_seeds
from benchmarks.measuring import ROOT, tell_table
from palestra.report.comparison import estimate_improvement
from palestra.report.reading import RunData
from palestra.runtime.statistics import Estimate, estimate_mean_of_few

NUM = 4
ALGORITHM = "players.agent.algorithm"
# A replica of PPO has as many rows in a minibatch as the file says, so one training has four times as many by itself.
LARGE = {
    "ppo-cartpole": ["num_worlds=128"],
    "dqn-cartpole": [
        "num_worlds=32",
        f"{ALGORITHM}.batch_size=256",
        f"{ALGORITHM}.replay_buffer.capacity=400000",
    ],
    "sac-pendulum": [
        "num_worlds=4",
        f"{ALGORITHM}.batch_size=1024",
        f"{ALGORITHM}.replay_buffer.capacity=800000",
    ],
}
STOPS = {"sac-pendulum": (8000, "env_steps")}  # two fifths of that of its file
REPLICAS, ONE = "replicas", "one training"
QUIET = ["best=null", "output.save=null", "output.recorders=[]"]


class Trained(NamedTuple):
    """What a finished training has scored: the mean return of its last evaluation, and the mean over all of them."""

    last: float
    mean: float


def train(config: str, contender: str, seed: int, folder: Path) -> Trained:
    """Train, unless that is done, and return what came of it."""
    path = folder / f"{config}-{contender.replace(' ', '-')}-{seed}"
    if not path.exists():
        unfinished = path.with_name(f"{path.name}.unfinished")
        if unfinished.exists():
            raise SystemExit(f"{unfinished} is in the way: remove it, or wait for who trains there")
        changes = LARGE[config] if contender == ONE else [f"num_replicas={NUM}"]
        if config in STOPS:
            after, unit = STOPS[config]
            changes = [*changes, f"stop.after={after}", f"stop.unit={unit}"]
        command = [sys.executable, "-m", "palestra", "train", config, f"seed={seed}", *changes, *QUIET]
        subprocess.run([*command, "--run", str(unfinished), "--quiet"], check=True, cwd=ROOT)
        unfinished.rename(path)
    return read(path)


def read(path: Path) -> Trained:
    scores = [each.evaluation.pairs[0].scores["return/agent"].value for each in RunData.read(path).evaluated]
    return Trained(scores[-1], sum(scores) / len(scores))


def rows_of(config: str, found: dict[str, list[Trained]]) -> Iterator[dict[str, Any]]:
    """The rows of one config: what is scored, by both, and the probability that replicas are better."""
    for measure, title in (("last", "return at the end"), ("mean", "mean return of all evaluations")):
        values = {name: [getattr(each, measure) for each in trained] for name, trained in found.items()}
        pair = (torch.tensor(values[REPLICAS]), torch.tensor(values[ONE]))
        yield {"config": config, "score": title, "values": values, "improvement": estimate_improvement([pair])}


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    lines = [
        f"| config | score | seeds | {NUM} replicas | one training of their size | P(replicas better) |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        means = [_cell(estimate_mean_of_few(row["values"][name])) for name in (REPLICAS, ONE)]
        seeds = str(len(row["values"][ONE]))
        cells = [row["config"], row["score"], seeds, *means]
        lines.append(f"| {' | '.join([*cells, _cell(row['improvement'])])} |")
    return "\n".join(lines)


def _cell(estimate: Estimate) -> str:
    return f"{estimate.value:.4g} [{estimate.low:.4g}, {estimate.high:.4g}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--configs", nargs="+", choices=list(LARGE), default=list(LARGE), metavar="NAME")
    parser.add_argument("--seeds", type=read_seeds, default=list(range(5)), metavar="FIRST..LAST")
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "replicas-learning", help="of all trainings")
    parser.add_argument("--json", type=Path, help="write every score to this file, too")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for config in arguments.configs:
        found: dict[str, list[Trained]] = {REPLICAS: [], ONE: []}
        for seed in arguments.seeds:
            for contender in found:
                found[contender].append(scored := train(config, contender, seed, arguments.folder))
                print(f"{config}, seed {seed}: {contender}: {scored.last:.4g}", file=sys.stderr, flush=True)
        rows += rows_of(config, found)
    tell_table(markdown(rows), rows, arguments.json)


if __name__ == "__main__":
    main()
