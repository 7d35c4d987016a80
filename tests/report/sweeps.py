"""Sweeps for tests of reports: folders whose studies are written with Optuna, without a run."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState, create_trial

from palestra.config import load_yaml, render
from palestra.kinds.games.config import RunConfig
from palestra.sweeps.config import SweepConfig, read_sweep
from palestra.sweeps.folder import SweepFolder
from palestra.sweeps.space import Base, Space
from tests.records import evaluation_of, played_pair, returns_in

CONFIGS = Path(__file__).parent.parent.parent / "configs"
INTERVAL = 20_000  # of the evaluations of ppo-cartpole
KEY = "players.agent.algorithm"
RATE, GAMMA, LAMBDA = f"{KEY}.learning_rate", f"{KEY}.gamma", f"{KEY}.gae_lambda"

SWEEP: dict[str, Any] = {
    "seed": 3,
    "base": ["ppo-cartpole"],
    "space": {
        RATE: {"name": "log", "low": 1e-4, "high": 1e-1},
        GAMMA: {"name": "choice", "values": [0.9, 0.99]},
    },
    "constraints": [],
    "seeds": [0, 1],
    "objective": {"evaluation": "main", "pairing": 0, "measure": "return/agent", "goal": "max", "of": "last"},
    "search": {"name": "random"},
    "pruning": {"name": "median", "num_seeds": 1, "startup_trials": 1, "warmup_steps": 0},
    "budget": {"trials": 1000, "total": None, "minutes": None},
    "max_restarts": 3,
    "place": {"name": "local", "cores": 1, "cores_per_run": 1, "gpus": [], "runs_per_gpu": 1},
    "storage": {"name": "journal", "path": None, "study": "sweep"},
}


class MadeSweep:
    """A sweep in a new folder. First `add`, then `end`."""

    def __init__(self, path: Path, **changes: Any) -> None:
        data = SWEEP | changes
        self.config = read_sweep(data | {"base": [f"base/{name}.yml" for name in data["base"]]}, [])
        texts = {name: (CONFIGS / f"{name}.yml").read_text() for name in data["base"]}
        self.folder = SweepFolder.create(path, render(self.config, SweepConfig), texts)
        bases = [Base(name, load_yaml(text), RunConfig) for name, text in texts.items()]
        self.space = Space(bases, self.config.space)
        self.path, self.trials = path, list[FrozenTrial]()
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.draws = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))

    def add(
        self, value: float | None, state: TrialState = TrialState.COMPLETE, reported: Sequence[float] = (), **notes: Any
    ) -> dict[str, Any]:
        """A trial at a random point, which it gives. reported: its values at the steps 1000, 2000, ..."""
        drawn = self.draws.ask()
        point = self.space.suggest(drawn)
        trial = create_trial(
            state=state,
            value=value,
            params=drawn.params,
            distributions=drawn.distributions,
            intermediate_values={1000 * (step + 1): each for step, each in enumerate(reported)},
            user_attrs={"folder": self.folder.id, "counts": {"env_steps": 2048}} | notes,
        )
        self.trials.append(trial)
        return point

    def end(self, best: int | None = None) -> Path:
        """Write the study; best: the trial of which best.yml is written."""
        goal = "maximize" if self.config.objective.goal == "max" else "minimize"
        storage = self.config.storage.open(self.folder.root, for_writing=True)
        study = optuna.create_study(storage=storage, study_name=self.config.storage.study, direction=goal)
        study.add_trials(self.trials)
        if best is not None:
            config = self.space.config_at(self.trials[best].params)
            self.folder.root.write("best.yml", render(config, RunConfig).encode())
        return self.path

    def record(self, number: int, seed: int, returns: Sequence[float]) -> None:
        """Write the records of a trial's run, with evaluations every INTERVAL env steps."""
        run = self.folder.trial(number).make().below(f"seed-{seed}").make()
        pairs = [played_pair({"agent": "agent"}, ["agent"], {"return/agent": value}, 0.0) for value in returns]
        records = [
            evaluation_of([pair], returns_in("agent"), ["agent"], env_steps=INTERVAL * step, opt_steps=10 * step)
            for step, pair in enumerate(pairs)
        ]
        run.write("records.jsonl", "".join(f"{json.dumps(record)}\n" for record in records).encode())
