"""A search, a pruner and a place of the user's own; the pruners by name, beside what Optuna's own say of the recorded
values; several bases; GPUs."""

import math
import re
import sys
import time
from pathlib import Path
from typing import Any

import optuna
import pytest

from palestra.config import ConfigError, check, render
from palestra.run.kinds import read_config
from palestra.sweeps import places
from palestra.sweeps.config import SweepConfig, read_sweep
from palestra.sweeps.outcomes import state_of
from palestra.sweeps.places import LocalConfig
from palestra.sweeps.stored import StoredSweep
from tests.forked import run

ROOT = Path(__file__).parent.parent.parent
SMALL = ["num_worlds=4", "rollout_length=16", "num_minibatches=2", "stop.after=1024", "output.save.every=512"]
SMALL += ["evaluations.0.interval.every=256", "evaluations.0.num_games=2", "final_num_games=4", "recorders=[]"]
SMALL += ["evaluations.0.max_rounds=50"]
SWEEP: dict[str, Any] = {
    "seed": 1,
    "base": ["base.yml"],
    "space": {
        "learning_rate.initial": {"name": "log", "low": 1e-5, "high": 1e-1},
        "gamma": {"name": "uniform", "low": 0.8, "high": 0.99, "step": None},
    },
    "constraints": [],
    "seeds": [0],
    "objective": {"evaluation": "main", "pairing": 0, "measure": "return/agent", "goal": "max", "of": "last"},
    "search": {"name": "random"},
    "pruning": None,
    "budget": {"trials": 6, "total": None, "minutes": None},
    "max_restarts": 0,
    "place": {"name": "local", "cores": 1, "cores_per_run": 1, "gpus": [], "runs_per_gpu": 1},
    "storage": {"name": "journal", "path": None, "study": "sweep"},
}
OWN = """
import optuna
from palestra.config import Config, UserConfig
from palestra.sweeps.places import LocalConfig, LocalPlace, Place
from palestra.sweeps.pruning import Pruning
from palestra.sweeps.search import Search


class Quasi(Search):
    Config = UserConfig

    def sampler(self, seed):
        return optuna.samplers.QMCSampler(seed=seed)


class Never(optuna.pruners.BasePruner):
    def prune(self, study, trial):
        return trial.number % 2 == 1


class Odd(Pruning):
    Config = UserConfig

    def pruner(self):
        return Never()


class HereConfig(UserConfig):
    note: str


class Here(Place):
    Config = HereConfig

    def __init__(self, config):
        super().__init__(config)
        self.inner = LocalPlace(LocalConfig(name="local", cores=1, cores_per_run=1, gpus=[], runs_per_gpu=1))

    @property
    def num_runs(self):
        return 1

    def start(self, arguments, log):
        with open("started.txt", "a") as file:
            file.write(f"{self.config.note} {' '.join(arguments)}\\n")
        return self.inner.start(arguments, log)
"""


BROKEN = """

class Raising(Quasi):
    def sampler(self, seed):
        return {}["seed"]


class Nothing(Odd):
    def pruner(self):
        return None


def boom(config):
    return config["nokey"]


def measure(pair):
    raise ValueError("no such number")
"""


def swept(folder: Path, **changes: Any) -> StoredSweep:
    base = read_config(ROOT / "configs/ppo-cartpole.yml", SMALL)
    (folder / "base.yml").write_text(render(base, type(base)))
    (folder / "sweep.yml").write_text(render(SWEEP | changes, SweepConfig))
    command = [sys.executable, "-m", "palestra", "sweep", "sweep.yml", "--run", "s"]
    found = run(command, cwd=folder, capture_output=True, text=True, timeout=600)
    assert found.returncode == 0, found.stdout + found.stderr
    assert "Warning" not in found.stdout + found.stderr
    return StoredSweep.open(folder / "s")


def test_a_search_a_pruner_and_a_place_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    names = {"search": {"name": "mine:Quasi"}, "pruning": {"name": "mine:Odd"}}
    sweep = swept(
        tmp_path, **names, place={"name": "mine:Here", "note": "by me"}, budget=SWEEP["budget"] | {"trials": 4}
    )
    assert [state_of(trial) for trial in sweep.trials] == ["succeeded", "pruned", "succeeded", "pruned"]
    lines = (tmp_path / "started.txt").read_text().splitlines()
    assert [line.split()[:3] for line in lines] == [["by", "me", "train"]] * 4


def test_a_measure_that_raises_ends_its_trials_and_not_the_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_measures.py").write_text(BROKEN[BROKEN.index("def measure") :])
    monkeypatch.chdir(tmp_path)
    objective = SWEEP["objective"] | {"measure": "my_measures:measure"}
    with pytest.raises(AssertionError, match="2 trials, 2 failed"):
        swept(tmp_path, objective=objective, budget=SWEEP["budget"] | {"trials": 2})
    reasons = [trial.user_attrs["failure"] for trial in StoredSweep.open(tmp_path / "s", trust=True).trials]
    assert reasons == ["seed 0: my_measures:measure raised ValueError: no such number"] * 2


@pytest.mark.parametrize("name", ["median", "successive_halving"])
def test_what_is_pruned_is_what_optunas_own_pruner_says_of_the_recorded_values(name: str, tmp_path: Path) -> None:
    keys = {
        "median": {"startup_trials": 1, "warmup_steps": 256},
        "successive_halving": {"min_resource": 256, "reduction_factor": 2},
    }
    sweep = swept(tmp_path, pruning={"name": name, "num_seeds": 1, **keys[name]})
    own = {
        "median": optuna.pruners.MedianPruner(n_startup_trials=1, n_warmup_steps=256),
        "successive_halving": optuna.pruners.SuccessiveHalvingPruner(min_resource=256, reduction_factor=2),
    }
    study = optuna.create_study(direction="maximize", pruner=own[name])
    for trial in sweep.trials:  # one at a time, so they came in this order
        again, pruned_at = study.ask(), None
        for step, value in sorted(trial.intermediate_values.items()):
            again.report(value, step)
            if again.should_prune():
                pruned_at = step
                break
        study.tell(
            again, state=optuna.trial.TrialState.PRUNED if pruned_at else None, values=None if pruned_at else 0.0
        )
        assert (pruned_at is not None) == (state_of(trial) == "pruned")
        assert pruned_at in (None, max(trial.intermediate_values)), "and nothing was recorded after that"
    assert {state_of(trial) for trial in sweep.trials} == {"succeeded", "pruned"}


def test_wilcoxon_ends_a_trial_after_some_of_its_seeds(tmp_path: Path) -> None:
    rates = {"name": "choice", "values": [0.003, 1.0]}
    pruning = {"name": "wilcoxon", "p_threshold": 0.4, "startup_seeds": 2}
    sweep = swept(
        tmp_path,
        space={"learning_rate.initial": rates},
        search={"name": "grid"},
        seeds=[0, 1, 2, 3],
        pruning=pruning,
        budget={"trials": None, "total": None, "minutes": None},
    )
    best, other = sweep.trials
    assert state_of(best) == "succeeded"
    assert len(best.user_attrs["values"]) == 4
    assert state_of(other) == "pruned"
    assert 2 <= len(other.user_attrs["values"]) < 4
    assert sorted(other.intermediate_values) == list(range(len(other.user_attrs["values"])))


def test_each_run_sees_its_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import os, time; print(os.environ['CUDA_VISIBLE_DEVICES'], flush=True); time.sleep(60)"
    monkeypatch.setattr(places, "COMMAND", [sys.executable, "-c", code])
    keys = {"name": "local", "cores": 1, "cores_per_run": 1, "gpus": ["2", "5"], "runs_per_gpu": 2}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(places, "available_cores", lambda: 8)
        place = check(keys | {"cores": 8}, LocalConfig).build()
    assert place.num_runs == 4
    jobs = [place.start([], tmp_path / f"{number}.log") for number in range(4)]
    end = time.monotonic() + 30
    logs = [tmp_path / f"{number}.log" for number in range(4)]
    while time.monotonic() < end and not all(log.read_text().strip() for log in logs):
        time.sleep(0.05)
    assert [log.read_text().strip() for log in logs] == ["2", "5", "2", "5"]
    jobs[1].signal(9)
    while jobs[1].poll() is None:
        time.sleep(0.01)
    again = place.start([], tmp_path / "4.log")
    while not (tmp_path / "4.log").read_text().strip():
        time.sleep(0.05)
    assert (tmp_path / "4.log").read_text().strip() == "5"
    for job in (*jobs, again):
        job.signal(9)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"place": SWEEP["place"] | {"cores": 10_000}}, r"place\.cores: expected at most \d+, the cores"),
        ({"place": SWEEP["place"] | {"cores_per_run": 2}}, r"place\.cores_per_run: expected at most cores = 1, got 2"),
        (
            {"budget": SWEEP["budget"] | {"total": {"after": 10, "unit": "env_steps"}}},
            r"budget\.total\.after: expected at least 1024, the env steps of one trial, got 10",
        ),
        ({"budget": SWEEP["budget"] | {"trials": 0}}, r"budget\.trials: expected"),
        ({"constraints": ["num_worlds * 4"]}, r"constraints\.0: .*expected a comparison, .*got 16"),
        ({"constraints": ["2 > 1"]}, r"constraints\.0: expected a comparison between keys"),
        (
            {"space": {"num_minibatches": {"name": "choice", "values": [2, 700]}}},
            r"num_minibatches: expected at most .*700",
        ),
        ({"seeds": [1, 1]}, r"seeds\.1: expected each value once"),
        ({"base": ["nowhere.yml"]}, r"base\.0: .*nowhere\.yml: there is no such file"),
        ({"pruning": {"name": "wilcoxon", "p_threshold": 0.1, "startup_seeds": 2}}, r"pruning\.startup_seeds: .*1"),
        ({"search": {"name": "mine:Raising"}}, r"^search: mine:Raising raised KeyError: 'seed'$"),
        ({"pruning": {"name": "mine:Nothing"}}, r"^pruning: expected a pruner of Optuna from mine:Nothing, got None$"),
        ({"constraints": ["mine:boom"]}, r"^constraints\.0: mine:boom raised KeyError: 'nokey' \(at "),
        (
            {
                "space": {"num_passes": {"name": "integer", "low": 1, "high": 5, "step": 1, "log": False}},
                "constraints": ["1 / (num_passes - 3) < 9"],
                "search": {"name": "grid"},
            },
            r"^constraints\.0: .* cannot be computed: division by zero \(at .*num_passes=3\)$",
        ),
        (
            {"space": SWEEP["space"] | {"players.agent.algorithm.gamma": SWEEP["space"]["gamma"]}},
            r"^space\.players\.agent\.algorithm\.gamma: expected each key once, got .*gamma twice$",
        ),
        (
            {"space": {"gamma": {"name": "choice", "values": [0.9, math.nan]}}},
            r"^space\.gamma\.values\.1: expected a number, got \.nan$",
        ),
        ({"search": {"name": "grid"}}, r"space\.learning_rate\.initial: expected values that can be listed"),
        (
            {"storage": {"name": "database", "url": "postgresql+psycopg://me@localhost:1/x", "password_from": None}},
            r"storage\.study: .*missing",
        ),
        (
            {"storage": {"name": "database", "url": "sqlite:////nowhere/x.db", "password_from": None, "study": "s"}},
            r"storage\.url: expected a database that can be reached, got sqlite:////nowhere/x\.db",
        ),
        (
            {"storage": {"name": "database", "url": "sqlite:////x.db", "password_from": "UNSET_X", "study": "s"}},
            r"storage\.password_from: .*UNSET_X.*unset",
        ),
        (
            {"storage": {"name": "database", "url": "postgresql://me:secret@h/x", "password_from": None, "study": "s"}},
            r"storage\.url: expected a URL without a password",
        ),
    ],
)
def test_what_cannot_work_is_one_line_before_anything_starts(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    base = read_config(ROOT / "configs/ppo-cartpole.yml", SMALL)
    (tmp_path / "base.yml").write_text(render(base, type(base)))
    text = str(SWEEP | changes)
    for python, yaml in {"None": "null", "False": "false", " nan": " .nan"}.items():
        text = text.replace(python, yaml)
    (tmp_path / "sweep.yml").write_text(text)
    (tmp_path / "mine.py").write_text(OWN + BROKEN)
    command = [sys.executable, "-m", "palestra", "sweep", "sweep.yml", "--run", "s"]
    found = run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert found.returncode == 2
    lines = [line for line in found.stderr.splitlines() if not line.startswith("importing")]
    assert len(lines) == (2 if changes == {"search": {"name": "grid"}} else 1), "a line per key"
    assert re.search(message, lines[0]), lines
    assert "Traceback" not in found.stderr
    assert "secret" not in found.stderr
    assert not (tmp_path / "s").exists()


def test_an_evaluation_by_minutes_cannot_decide_a_pruning(tmp_path: Path) -> None:
    from palestra.sweeps.plan import Plan

    changes = [*SMALL, "evaluations.0.interval={every: 1, unit: minutes}"]
    base = read_config(ROOT / "configs/ppo-cartpole.yml", changes)
    pruning = {"name": "median", "num_seeds": 1, "startup_trials": 1, "warmup_steps": 0}
    with pytest.raises(ConfigError, match=r"pruning: expected evaluation .main. with .* got minutes"):
        Plan(read_sweep(SWEEP | {"pruning": pruning}, []), {"base": base})
