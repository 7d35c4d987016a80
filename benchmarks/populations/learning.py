"""Does selection over generations find more? Populations beside as many independent runs and random search.

    python -m benchmarks.populations.learning [--tasks NAME ...] [--repeats N] [--scale X] [--folder FOLDER] [--table]

All arms of a task have one space, and train as many members as long: a repeat is a seed of the sweep. Independent runs
are those of a population without selection, so they begin at the points of the populations. What counts is the run of
the best trial, played again in games that no search has seen. A finished sweep is a file in
benchmarks/results/populations/, and is not done again; one that was stopped goes on. learning.md there has them all.
For the polyhedra game, a cross-table of the best pairs of the first repeat follows, in cross_table.txt. --scale
shortens all runs, to try the benchmark; its results are no results.
"""

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

import palestra
from benchmarks.measuring import ROOT
from palestra.config import render
from palestra.run.kinds import read_config
from palestra.runtime.threads import available_cores
from palestra.sweeps.outcomes import best_of, count_of, place_of, state_of
from palestra.sweeps.stored import StoredSweep

RESULTS = ROOT / "benchmarks" / "results" / "populations"
PALESTRA = [sys.executable, "-m", "palestra"]
REPEATS = 3
NUM_GAMES = 2000
ARMS: dict[str, dict[str, Any]] = {
    "population": {"crossover": False},
    "population, crossover": {"crossover": True},
    "independent runs": {"quantile": 0.0},
    "random search": {"name": "random"},
}


@dataclass(frozen=True)
class Task:
    """What is learned. base: the shipped config, and overrides. unit, after: of a generation. measure: what counts."""

    base: str
    overrides: list[str]
    space: dict[str, Any]
    size: int
    num_generations: int
    after: int
    unit: str
    objective: dict[str, Any]
    pairing: dict[str, str]


CARTPOLE = Task(
    base="ppo-cartpole",
    overrides=["learning_rate={name: constant, value: 0.001}", "evaluations.0.num_games=100"],
    space={
        "learning_rate.value": {"name": "log", "low": 1e-5, "high": 1e-1},
        "gamma": {"name": "choice", "values": [0.8, 0.9, 0.95, 0.98, 0.99, 0.999]},
        "entropy_coefficient.value": {"name": "log", "low": 1e-5, "high": 1e-1},
    },
    size=6,
    num_generations=6,
    after=5120,
    unit="env_steps",
    objective={"evaluation": "main", "pairing": 0, "measure": "return/agent", "goal": "max", "of": "last"},
    pairing={"agent": "agent"},
)
RATES = {
    f"players.{role}.algorithm.learning_rate.value": {"name": "log", "low": 1e-5, "high": 1e-1}
    for role in ("host", "agent")
}
GAMMAS = {
    f"players.{role}.algorithm.gamma": {"name": "choice", "values": [0.8, 0.9, 0.95, 0.98, 0.99, 0.999]}
    for role in ("host", "agent")
}
POLYHEDRA = Task(
    base="dqn-polyhedra",
    overrides=[
        *(f"players.{role}.algorithm.learning_rate={{name: constant, value: 0.001}}" for role in ("host", "agent")),
        "evaluations.0.interval=null",
        "evaluations.0.final_num_games=1000",
        "evaluations.0.pairings=[{host: host, agent: random}]",
        "best.pairing=0",
    ],
    space=RATES | GAMMAS,
    size=6,
    num_generations=6,
    after=1000,
    unit="opt_steps",
    objective={"evaluation": "main", "pairing": 0, "measure": "rho", "goal": "max", "of": "last"},
    pairing={"host": "host", "agent": "random"},
)
TASKS = {task.base: task for task in (CARTPOLE, POLYHEDRA)}


@dataclass(frozen=True)
class Search:
    """One sweep of the table. folder: of the sweeps. scale: of the length of runs."""

    task: Task
    arm: str
    repeat: int
    folder: Path
    scale: float

    @property
    def name(self) -> str:
        return f"{self.task.base}-{self.arm.replace(', ', '-').replace(' ', '-')}-{self.repeat}"

    @property
    def file(self) -> Path:
        return RESULTS / f"{self.name}.json"

    @property
    def sweep(self) -> Path:
        return self.folder / self.name

    def run(self) -> None:
        """Search, play the best run again, and store what was found. A search that was stopped goes on."""
        task, after, cores = self.task, max(1, round(self.task.after * self.scale)), available_cores()
        stop = {"after": after * task.num_generations, "unit": task.unit}
        self.folder.mkdir(parents=True, exist_ok=True)
        base = read_config(ROOT / f"configs/{task.base}.yml", [*task.overrides, f"stop={json.dumps(stop)}"])
        (self.folder / f"{task.base}.yml").write_text(render(base, type(base)))
        evolution: dict[str, Any] = {
            "name": "evolution",
            "size": task.size,
            "generation": {"after": after, "unit": task.unit},
            "quantile": 0.25,
            "crossover": False,
            "mutation": {"factors": [0.8, 1.2], "redraw": 0.25},
        }
        is_random, num_generations = self.arm == "random search", task.num_generations
        data = {
            "seed": self.repeat,
            "base": [f"{task.base}.yml"],
            "space": task.space,
            "constraints": [],
            "seeds": [self.repeat],
            "objective": task.objective,
            "search": ARMS[self.arm] if is_random else evolution | ARMS[self.arm],
            "pruning": None,
            "budget": {"trials": task.size * (1 if is_random else num_generations), "total": None, "minutes": None},
            "max_restarts": 3,
            "place": {"name": "local", "cores": cores, "cores_per_run": base.cores(), "gpus": [], "runs_per_gpu": 1},
            "storage": {"name": "sqlite"},
        }
        file = self.folder / f"{self.name}.yml"
        file.write_text(yaml.safe_dump(data, sort_keys=False))
        subprocess.run([*PALESTRA, "sweep", str(file), "--run", str(self.sweep), "--quiet"], check=False, cwd=ROOT)
        RESULTS.mkdir(parents=True, exist_ok=True)
        self.file.write_text(json.dumps(self._found(), indent=1) + "\n")

    def best_run(self) -> Path:
        """Return the folder of the best trial's run."""
        trials = StoredSweep.open(self.sweep).trials
        best = best_of(trials, self.task.objective["goal"])
        assert best is not None, "no trial has succeeded"
        return self.sweep / f"trials/{place_of(best):04d}/seed-{self.repeat}"

    def _found(self) -> dict[str, Any]:
        sweep, run = StoredSweep.open(self.sweep), self.best_run()
        best = best_of(sweep.trials, self.task.objective["goal"])
        stored = palestra.StoredRun.open(run)
        stored.load("latest")
        played = stored.play(self.task.pairing, num_games=NUM_GAMES, seed=10_000 + self.repeat)
        return {
            "task": self.task.base,
            "arm": self.arm,
            "repeat": self.repeat,
            "scale": self.scale,
            "env_steps": sum(count_of(trial, "env_steps") for trial in sweep.trials),
            "failed": sum(state_of(trial) == "failed" for trial in sweep.trials),
            "best": best.value if best is not None else None,
            "again": played.scores[self.task.objective["measure"]].value,
        }


def table(tasks: list[str]) -> str:
    """Markdown: a row per task and arm, with every repeat."""
    lines = [
        "| task | search | env steps | failed trials | best value found | its run, played again | mean |",
        "|---|---|---|---|---|---|---|",
    ]
    for task in tasks:
        for arm in ARMS:
            searches = [Search(TASKS[task], arm, repeat, Path(), 1.0) for repeat in range(REPEATS)]
            found = [json.loads(search.file.read_text()) for search in searches if search.file.exists()]
            if found:
                columns = [_each(f"{each[key]:,.4g}" for each in found) for key in ("failed", "best", "again")]
                steps, mean = _each(f"{each['env_steps']:,.0f}" for each in found), fmean(e["again"] for e in found)
                lines.append(f"| {task} | {arm} | {steps} | {' | '.join(columns)} | {mean:.4g} |")
    return "\n".join(lines)


def _each(texts: Any) -> str:
    return "; ".join(texts)


def cross_table(folder: Path, scale: float) -> str:
    """Play the best pairs of all arms, of the first repeat, against each other; returns what palestra prints."""
    runs = {
        arm.replace(", ", "-").replace(" ", "-"): Search(POLYHEDRA, arm, 0, folder, scale).best_run() for arm in ARMS
    }
    players = {
        f"{role}-{name}": {"from_run": str(run), "player": role, "checkpoint": "latest"}
        for name, run in runs.items()
        for role in ("host", "agent")
    }
    base = read_config(ROOT / f"configs/{POLYHEDRA.base}.yml", POLYHEDRA.overrides).model_dump(mode="json")
    cup = {
        "seed": 0,
        "game": base["game"],
        "players": players,
        "pairings": [
            {
                "host": [*(name for name in players if name.startswith("host")), "zeillinger", "random"],
                "agent": [*(name for name in players if name.startswith("agent")), "choose_first", "random"],
            }
        ],
        "num_games": NUM_GAMES // 2,
        "max_rounds": 100,
        "num_worlds": 16,
        "info": [],
        "execution": {"device": "cpu", "num_threads": 2, "kernel": "numba", "step_within_s": None},
    }
    file = folder / "cup.yml"
    file.write_text(yaml.safe_dump(cup, sort_keys=False))
    command = [*PALESTRA, "evaluate", str(file)]
    return subprocess.run(command, check=True, cwd=folder, capture_output=True, text=True).stdout


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--repeats", type=int, default=REPEATS, help="so many of each, the first ones")
    parser.add_argument("--scale", type=float, default=1.0, help="of the length of all runs")
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "populations", help="of the sweeps themselves")
    parser.add_argument("--table", action="store_true", help="only print the table of what is finished")
    options = parser.parse_args()
    folder = options.folder.absolute()
    for name in options.tasks if not options.table else []:
        for repeat in range(options.repeats):
            for arm in ARMS:
                search = Search(TASKS[name], arm, repeat, folder, options.scale)
                if not search.file.exists():
                    print(search.name, file=sys.stderr)
                    search.run()
    text = table(options.tasks)
    print(text)
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "learning.md").write_text(f"{text}\n")
    if POLYHEDRA.base in options.tasks and not options.table:
        table_of_all = cross_table(folder, options.scale)
        print(table_of_all)
        (RESULTS / "cross_table.txt").write_text(table_of_all)


if __name__ == "__main__":
    main()
