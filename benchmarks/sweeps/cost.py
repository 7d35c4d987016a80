"""What a sweep costs: beside the same runs by hand, two runs at a time beside one, and the table of a thousand trials.

    python -m benchmarks.sweeps.cost [--repeats N] [--runs N] [--steps N]

Contenders alternate; ratios are of one repeat. Needs two cores, and a machine that does nothing else.
"""

import argparse
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import optuna
from optuna.distributions import FloatDistribution
from optuna.trial import create_trial

from benchmarks.measuring import ROOT, alternate

PALESTRA = [sys.executable, "-m", "palestra"]
NUM_TRIALS = 1000


def timed(*commands: list[str]) -> float:
    """Seconds for commands one after the other."""
    began = time.perf_counter()
    for command in commands:
        subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - began


class Runs:
    """The same runs, made in several ways. Each call makes them again."""

    def __init__(self, folder: Path, num_runs: int, num_steps: int) -> None:
        self.folder, self.number = folder, 0
        self.gammas = [0.9 + 0.01 * number for number in range(num_runs)]
        self.common = ["ppo-cartpole", f"stop.after={num_steps}"]

    def _new(self) -> Path:
        self.number += 1
        return self.folder / str(self.number)

    def by_hand(self) -> float:
        path = self._new()
        return timed(
            *(
                [*PALESTRA, "train", *self.common, f"gamma={gamma}", "--run", str(path / str(gamma)), "--quiet"]
                for gamma in self.gammas
            )
        )

    def sweep(self, at: int) -> float:
        grid = f"gamma={','.join(map(str, self.gammas))}"
        options = ["--at", str(at), "--run", str(self._new()), "--quiet"]
        return timed([*PALESTRA, "sweep", *self.common, grid, *options])


def table_of_trials(folder: Path) -> Callable[[], float]:
    """A call that lists a thousand trials, in seconds."""
    sweep = folder / "thousand"
    shutil.copytree(next(path for path in folder.iterdir() if (path / "sweep.yml").exists()), sweep)
    (sweep / "study.db").unlink()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(storage=f"sqlite:///{sweep / 'study.db'}", study_name="sweep")
    draw = random.Random(0)
    names = {name: FloatDistribution(0.0, 1.0) for name in ("gamma", "gae_lambda", "learning_rate.initial")}
    study.add_trials(
        create_trial(
            params={name: draw.random() for name in names},
            distributions=dict(names),
            value=draw.random(),
            intermediate_values={step: draw.random() for step in range(10)},
            user_attrs={"counts": {"env_steps": 100_000}, "values": {"0": 1.0, "1": 2.0}},
        )
        for _ in range(NUM_TRIALS)
    )
    return partial(timed, [*PALESTRA, "trials", str(sweep)])


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--steps", type=int, default=1_000_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        runs = Runs(Path(name), options.runs, options.steps)
        contenders: dict[str, Callable[[], float]] = {
            "by hand": runs.by_hand,
            "sweep, one at a time": partial(runs.sweep, 1),
            "sweep, two at a time": partial(runs.sweep, 2),
        }
        values = alternate(contenders, options.repeats)
        list_trials = table_of_trials(Path(name))
        seconds = median(list_trials() for _ in range(5))
    hand, one, two = values.values()
    print("| work | seconds | ratio |")
    print("|---|---|---|")
    print(f"| {options.runs} runs by hand, in sequence | {median(hand):.1f} | 1 |")
    print(f"| the same as a sweep, one at a time | {median(one):.1f} | {_ratio(one, hand)} of by hand |")
    print(f"| the same, two at a time | {median(two):.1f} | {_ratio(two, one)} of one at a time |")
    print(f"| `palestra trials`, {NUM_TRIALS} trials | {seconds:.2f} | |")


def _ratio(values: list[float], others: list[float]) -> str:
    return f"{median(value / other for value, other in zip(values, others, strict=True)):.3f}"


if __name__ == "__main__":
    main()
