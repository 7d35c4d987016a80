"""What a population costs: beside the same runs by its commands by hand, and the table of a thousand trials.

    python -m benchmarks.populations.cost [--repeats N] [--size N] [--generations N] [--steps N]

Runs of the usual length take some 20 seconds. A repeat makes the population, then its runs again by hand, in the
order of trials, one at a time; ratios are of one repeat. Needs a machine that does nothing else.
"""

import argparse
import json
import random
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import optuna
from optuna.distributions import FloatDistribution
from optuna.trial import create_trial

from benchmarks.measuring import alternate
from benchmarks.sweeps.cost import PALESTRA, timed
from palestra.commands.starting import find_config
from palestra.config import load_yaml, render
from palestra.run.kinds import read_config
from palestra.sweeps.outcomes import parent_of, ranked
from palestra.sweeps.plan import starting_sweep
from palestra.sweeps.stored import StoredSweep

NUM_TRIALS, NUM_GENERATIONS = 1000, 50


class Population:
    """The same runs, as a sweep and by hand. Each call makes them again."""

    def __init__(self, folder: Path, size: int, num_generations: int, num_steps: int) -> None:
        self.folder, self.number = folder, 0
        found = find_config("ppo-cartpole", [])
        base = read_config(found.source, found.overrides)
        (folder / "base.yml").write_text(render(base, type(base)))
        words = [
            str(folder / "base.yml"),
            "search.name=evolution",
            f"search.size={size}",
            f"search.generation.after={num_steps}",
            f"budget.trials={size * num_generations}",
            "place.cores=1",
        ]
        sweep = starting_sweep(words)
        self.file = folder / "population.yml"
        self.file.write_text(render(sweep, type(sweep)))

    def sweep(self) -> float:
        """Return the seconds of a population."""
        self.number += 1
        path = self.folder / f"population-{self.number}"
        return timed([*PALESTRA, "sweep", str(self.file), "--run", str(path), "--quiet"])

    def by_hand(self) -> float:
        """Return the seconds of the same commands, typed by somebody who knows the lineage."""
        self.number += 1
        here = self.folder / f"by-hand-{self.number}"
        trials = ranked(StoredSweep.open(self.folder / "population-1").trials)
        commands = []
        for trial in trials:
            config = load_yaml(self.folder / f"population-1/trials/{trial.number:04d}/config.yml")
            keys = [f"{key}={json.dumps(value)}" for key, value in trial.params.items()]
            keys += [f"stop={json.dumps(config['stop'])}", "--run", str(here / str(trial.number)), "--quiet"]
            parent = parent_of(trial)
            source = str(self.folder / "base.yml") if parent is None else f"{here / str(parent)}/checkpoints/latest"
            commands.append([*PALESTRA, "train" if parent is None else "branch", source, *keys])
        return timed(*commands)


def table_of_trials(folder: Path, num_generations: int) -> Callable[[], float]:
    """Return a call that lists a thousand trials in so many generations, and returns its seconds."""
    sweep, size = folder / f"thousand-{num_generations}", NUM_TRIALS // num_generations
    shutil.copytree(folder / "population-1", sweep)
    (sweep / "study.db").unlink()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(storage=f"sqlite:///{sweep / 'study.db'}", study_name="sweep", direction="maximize")
    draw = random.Random(0)
    names = {name: FloatDistribution(0.0, 1.0) for name in ("gamma", "gae_lambda", "learning_rate.initial")}
    for number in range(NUM_TRIALS):
        parent = (
            {"parent": draw.randrange(number // size * size - size, number // size * size)} if number >= size else {}
        )
        study.add_trial(
            create_trial(
                params={name: draw.random() for name in names},
                distributions=dict(names),
                value=draw.random(),
                user_attrs={"counts": {"env_steps": 100_000}, "values": {"0": 1.0}, **parent},
            )
        )
    return partial(timed, [*PALESTRA, "trials", str(sweep)])


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--size", type=int, default=2)
    parser.add_argument("--generations", type=int, default=3)
    parser.add_argument("--steps", type=int, default=1_000_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        population = Population(Path(name), options.size, options.generations, options.steps)
        population.sweep()  # by hand its runs are made again
        values = alternate({"by hand": population.by_hand, "population": population.sweep}, options.repeats)
        lists = {num: table_of_trials(Path(name), num) for num in (1, NUM_GENERATIONS)}
        seconds = {num: median(list_trials() for _ in range(5)) for num, list_trials in lists.items()}
    hand, sweep = values.values()
    ratio = median(one / other for one, other in zip(sweep, hand, strict=True))
    num_runs = options.size * options.generations
    print("| work | seconds | ratio |")
    print("|---|---|---|")
    print(f"| {num_runs} runs in {options.generations} generations by hand | {median(hand):.1f} | 1 |")
    print(f"| the same as a population, one at a time | {median(sweep):.1f} | {ratio:.3f} of by hand |")
    print(f"| `palestra trials`, {NUM_TRIALS} trials in one generation | {seconds[1]:.2f} | |")
    more = seconds[NUM_GENERATIONS] - seconds[1]
    print(f"| the same in {NUM_GENERATIONS} generations | {seconds[NUM_GENERATIONS]:.2f} | {more:+.2f} s |")


if __name__ == "__main__":
    main()
