"""Sweeps: what they run, that kills change nothing, and what they refuse before anything starts.

Covers palestra.commands.sweep, palestra.sweeps.config,
palestra.sweeps.folder, palestra.sweeps.leashed, palestra.sweeps.places, palestra.sweeps.plan, palestra.sweeps.pruning,
palestra.sweeps.search, palestra.sweeps.space, palestra.sweeps.storages,
palestra.sweeps.trials.
"""

import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import optuna
import pytest

from palestra.commands.sweeping import read_new
from palestra.config import ConfigError, load_yaml, render
from palestra.run.kinds import read_config
from palestra.storage.disk import Folder, RunFolderError
from palestra.storage.lock import holder, is_held
from palestra.sweeps.config import SweepConfig, read_sweep
from palestra.sweeps.folder import SweepFolder, runs_in
from palestra.sweeps.outcomes import state_of
from palestra.sweeps.plan import Plan
from palestra.sweeps.space import Base, Space
from tests.sweeps.small_runs import ROOT, done, palestra, write_base

BASE = ROOT / "configs/ppo-cartpole.yml"

SWEEP: dict[str, Any] = {
    "seed": 3,
    "base": ["base.yml"],
    "space": {
        "learning_rate": {"name": "log", "low": 1e-4, "high": 1e-1},
        "gamma": {"name": "choice", "values": [0.9, 0.99]},
    },
    "constraints": [],
    "seeds": [0],
    "objective": {"evaluation": "main", "pairing": 0, "measure": "return/agent", "goal": "max", "of": "last"},
    "search": {"name": "random"},
    "pruning": None,
    "budget": {"trials": 4, "total": None, "minutes": None},
    "max_restarts": 30,
    "place": {"name": "local", "cores": 1, "cores_per_run": 1, "gpus": [], "runs_per_gpu": 1},
    "storage": {"name": "sqlite"},
}


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return write_base(tmp_path)


def write(tmp_path: Path, **changes: Any) -> Path:
    file = tmp_path / "sweep.yml"
    file.write_text(render(read_sweep(SWEEP | changes, []), SweepConfig))
    return file


def told(sweep: Path) -> list[tuple[Any, ...]]:
    """What Optuna's own tools read of the study."""
    study = optuna.load_study(study_name="sweep", storage=f"sqlite:///{sweep / 'study.db'}")
    return [
        (
            trial.number,
            state_of(trial),
            trial.params,
            trial.value,
            trial.intermediate_values,
            trial.user_attrs["values"],
        )
        for trial in study.trials
    ]


def processes_in(folder: Path) -> list[int]:
    """Those whose working directory it is."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cwd"):
        with suppress(OSError):
            if path.readlink() == folder:
                found.append(int(path.parent.name))
    return found


def test_a_sweep_killed_at_random_ends_as_one_that_was_not(base: Path, tmp_path: Path) -> None:
    halving = {"name": "successive_halving", "num_seeds": 1, "min_resource": 256, "reduction_factor": 2}
    tpe = {"name": "tpe", "startup_trials": 2, "ei_candidates": 8, "multivariate": False, "group": False}
    file = write(tmp_path, search=tpe | {"constant_liar": False}, pruning=halving)
    done("sweep", file, "--run", "whole", cwd=tmp_path)
    draw, killed = random.Random(5), tmp_path / "killed"
    command: tuple[object, ...] = ("sweep", file, "--run", "killed")
    for _ in range(6):
        process = palestra(*command, cwd=tmp_path)
        command = ("resume", "killed")
        try:
            process.wait(draw.uniform(0.5, 2.0))
            break
        except subprocess.TimeoutExpired:
            process.send_signal(draw.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM]))
            process.communicate(timeout=60)
        if not killed.exists():
            command = ("sweep", file, "--run", "killed")
    done("resume", "killed", cwd=tmp_path)
    assert told(killed) == told(tmp_path / "whole")
    assert (killed / "best.yml").read_bytes() == (tmp_path / "whole" / "best.yml").read_bytes()
    end = time.monotonic() + 10
    while processes_in(tmp_path) and time.monotonic() < end:
        time.sleep(0.1)
    assert processes_in(tmp_path) == []


def killed_while_it_trained(run: Path) -> bool:
    """Kill the process that trains a run, if it has saved and not ended."""
    folder = Folder(run)
    if not (run / "checkpoints/latest").exists() or not is_held(folder, "lock"):
        return False
    with suppress(ProcessLookupError):  # it has ended in between
        os.kill(int(holder(folder, "lock")), signal.SIGKILL)
        return True
    return False


def test_a_run_that_is_killed_goes_on_and_two_processes_share_a_sweep(base: Path, tmp_path: Path) -> None:
    file = write(tmp_path)
    done("sweep", file, "--run", "whole", cwd=tmp_path)
    first = palestra("sweep", file, "--run", "shared", cwd=tmp_path)
    while not (tmp_path / "shared/trials/0000").exists():
        time.sleep(0.05)
        assert first.poll() is None
    second = palestra("resume", "shared", cwd=tmp_path)
    while not any(map(killed_while_it_trained, (tmp_path / "shared/trials").glob("*/seed-0"))):
        time.sleep(0.005)
        assert first.poll() is None
    output = [process.communicate(timeout=300)[0] for process in (first, second)]
    assert first.returncode == second.returncode == 0, output
    assert told(tmp_path / "shared") == told(tmp_path / "whole")


def test_a_trial_is_to_the_bit_what_train_gives(base: Path, tmp_path: Path) -> None:
    file = write(tmp_path, budget=SWEEP["budget"] | {"trials": 1})
    command = [sys.executable, "-m", "palestra", "sweep", str(file), "--run", "s"]  # interpreters, not forks of one
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    done("train", "s/best.yml", "--run", "alone", "--quiet", cwd=tmp_path)
    runs = [tmp_path / "s/trials/0000/seed-0", tmp_path / "alone"]
    records = [[json.loads(line) for line in (run / "records.jsonl").read_text().splitlines()] for run in runs]
    for record in (record for lines in records for record in lines):
        record.pop("clock", None)
    assert records[0] == records[1]
    states = [(run / "checkpoints" / (run / "checkpoints/latest").read_text().strip()) for run in runs]
    names = sorted(path.name for path in states[0].glob("*.safetensors"))
    assert names
    assert [(states[0] / name).read_bytes() for name in names] == [(states[1] / name).read_bytes() for name in names]
    assert runs_in(tmp_path / "s") == [runs[0]] == runs_in(tmp_path / "s/trials/0000")


def test_a_grid_by_hand_writes_its_file_and_excluded_points_are_skipped(base: Path, tmp_path: Path) -> None:
    output = done("sweep", "base.yml", "gamma=0.9,0.99", "--run", "g", cwd=tmp_path)
    assert "g: 2 trials, each with 1 seed; " in output
    assert "2 trials, 2 succeeded" in output
    written = load_yaml(tmp_path / "g/sweep.yml")
    assert written["space"] == {"players.agent.algorithm.gamma": {"name": "choice", "values": [0.9, 0.99]}}
    again = written | {"constraints": ["gamma > 0.95"], "base": ["base.yml"]}
    (tmp_path / "again.yml").write_text(render(read_sweep(again, []), SweepConfig))
    assert "2 trials, 1 succeeded, 1 skipped" in done("sweep", "again.yml", "--run", "h", cwd=tmp_path)
    assert "expected a new folder" in done("sweep", "again.yml", "--run", "g", cwd=tmp_path, code=2)
    assert "palestra sweep again.yml" in done("train", "again.yml", cwd=tmp_path, code=2)
    wrong = done("sweep", "again.yml", "--seeds", "0", "--at", "1", cwd=tmp_path, code=2)
    assert wrong.splitlines()[-1] == (
        "--seeds: expected no such option, because again.yml says it (seeds=[0,1], place.cores=2), "
        "got --seeds 0, --at 1"
    )
    wrong = done("sweep", "base.yml", "gamma=0.9,", "--run", "i", cwd=tmp_path, code=2)
    assert wrong.splitlines()[-1] == "gamma: expected a value before and after each comma, got '0.9,'"


def test_a_config_that_comes_twice_in_a_grid_by_hand_is_named() -> None:
    with pytest.raises(
        ConfigError, match=r"^ppo-cartpole: expected configs of different names, got ppo-cartpole twice$"
    ):
        read_new("ppo-cartpole,ppo-cartpole", [], None, None)


def test_a_sweep_of_which_all_trials_fail_ends_with_1(base: Path, tmp_path: Path) -> None:
    output = done("sweep", "base.yml", "learning_rate.initial=1e30,1e31", "--run", "s", cwd=tmp_path, code=1)
    assert "2 trials, 2 failed" in output
    assert "trial 0: seed 0: " in output


def test_of_a_stored_sweep_the_budget_may_change_and_what_its_trials_are_may_not(base: Path, tmp_path: Path) -> None:
    done("sweep", write(tmp_path, budget=SWEEP["budget"] | {"trials": 1}), "--run", "s", cwd=tmp_path)
    assert "2 trials, 2 succeeded" in done("sweep", "s", "budget.trials=2", cwd=tmp_path)
    assert load_yaml(tmp_path / "s/sweep.yml")["budget"]["trials"] == 2
    before = (tmp_path / "s/sweep.yml").read_bytes()
    for change in ("seed=4", "learning_rate.high=0.5", "algorithm.gamma={name: choice, values: [0.5]}"):
        assert "expected the value with which the sweep began" in done("sweep", "s", change, cwd=tmp_path, code=2)
    journal = "storage={name: journal, path: null, study: x}"
    assert "storage: expected the value" in done("sweep", "s", journal, cwd=tmp_path, code=2)
    assert (tmp_path / "s/sweep.yml").read_bytes() == before


def test_runs_of_another_point_are_not_taken_for_those_of_a_trial(base: Path, tmp_path: Path) -> None:
    done("sweep", "base.yml", "gamma=0.9,0.99", "--run", "g", "--quiet", cwd=tmp_path)
    config = tmp_path / "g/trials/0000/config.yml"
    config.write_text(config.read_text().replace("gamma: 0.9", "gamma: 0.8"))
    with closing(sqlite3.connect(tmp_path / "g/study.db")) as study, study:
        study.execute("UPDATE trials SET state = 'RUNNING'")  # as if their process had been killed
        study.execute("DELETE FROM trial_values")
    output = done("resume", "g", cwd=tmp_path, code=1)
    assert "trial 0: failed: g/trials/0000/config.yml: expected the config of the trial's point, in which" in output
    assert "2 trials, 1 succeeded, 1 failed" in output


def test_a_journal_is_the_same_file_in_every_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    storage = {"name": "journal", "path": "x.journal", "study": "s"}
    assert read_sweep(SWEEP | {"storage": storage}, []).storage.model_dump()["path"] == str(tmp_path / "x.journal")


def test_bases_are_pruned_by_steps_of_one_unit_and_a_pruning_that_never_begins_is_named(base: Path) -> None:
    pruning = {"name": "median", "num_seeds": 1, "startup_trials": 1, "warmup_steps": 0}
    space = {"gamma": {"name": "choice", "values": [0.9, 0.99]}}
    sweep = SWEEP | {"base": ["ppo", "dqn"], "space": space, "pruning": pruning}
    bases = {"ppo": read_config(base), "dqn": read_config(ROOT / "configs/dqn-cartpole.yml")}
    with pytest.raises(ConfigError, match=r"^pruning: expected .* in one unit, .* got ppo env_steps, dqn opt_steps$"):
        Plan(read_sweep(sweep, []), bases)
    late = {"name": "successive_halving", "num_seeds": 1, "min_resource": 1280, "reduction_factor": 2}
    for first, notes in ((1280, 1), (1024, 0)):
        changed = SWEEP | {"space": space, "pruning": late | {"min_resource": first}}
        found = Plan(read_sweep(changed, []), {"ppo": bases["ppo"]}).notes()
        assert len(found) == notes
    assert Plan(read_sweep(SWEEP | {"space": space, "pruning": late}, []), {"ppo": bases["ppo"]}).notes() == [
        "pruning ends no trial of ppo: it begins at step 1280, after the last one of the evaluation, 1024"
    ]
    longer = space | {"stop.after": {"name": "choice", "values": [1024, 2048]}}
    assert Plan(read_sweep(SWEEP | {"space": longer, "pruning": late}, []), {"ppo": bases["ppo"]}).notes() == []


def test_bases_that_train_for_different_times_are_named(base: Path) -> None:
    bases = {"ppo": read_config(base), "dqn": read_config(ROOT / "configs/dqn-cartpole.yml")}
    space = {"gamma": {"name": "choice", "values": [0.9, 0.99]}}
    [note] = Plan(read_sweep(SWEEP | {"base": ["ppo", "dqn"], "space": space}, []), bases).notes()
    assert note == "the bases do not train for the same time (stop): ppo 1024 env_steps, dqn 24704 opt_steps"
    space |= {"stop.after": {"name": "choice", "values": [800]}, "stop.unit": {"name": "choice", "values": ["epochs"]}}
    assert Plan(read_sweep(SWEEP | {"base": ["ppo", "dqn"], "space": space}, []), bases).notes() == []


def test_an_objective_that_no_learning_player_wants_is_told(base: Path) -> None:
    contrary = SWEEP | {"objective": SWEEP["objective"] | {"goal": "min"}}
    [note] = Plan(read_sweep(contrary, []), {"ppo": read_config(base)}).notes()
    assert note == "objective.goal=min looks for the lowest return/agent, which agent wants high"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"space": {"gama": SWEEP["space"]["gamma"]}}, "space.gama: no such key; did you mean"),
        (
            {"space": {"gamma": {"name": "uniform", "low": 0.5, "high": 1.5, "step": None}}},
            "gamma: expected a discount",
        ),
        (
            {"space": {key: {"name": "choice", "values": [1, 2]} for key in ("seed", "record")}},
            "space.seed: expected no dimension, because seeds lists the seeds, got choice\n"
            "space.output.record: expected a key that changes a result, got choice",
        ),
        (
            {
                "space": {
                    "gamma": {"name": "choice", "values": [0.9, 1.5]},
                    "gae_lambda": {"name": "choice", "values": [0.9, 0.95]},
                }
            },
            r"gamma: expected a discount.* \(at gamma=1\.5\)$",
        ),
        ({"constraints": ["gamma > 1"]}, "none of 2000 random points fulfils"),
        (
            {"search": {"name": "grid"}, "space": {"gamma": {"name": "uniform", "low": 0, "high": 0.9, "step": 1e-12}}},
            "space: expected at most 100,000 points with search 'grid', got more",
        ),
        (
            {"space": {"gamma": {"name": "uniform", "low": 0, "high": 0.9, "step": 5e-324}}},
            "space.gamma.step: expected a longer one between low and high, got",
        ),
        ({"seeds": list(range(10_001))}, "seeds: expected a list of length >= 1, of length <= 10000"),
        ({"objective": SWEEP["objective"] | {"evaluation": "other"}}, "objective.evaluation: expected one of main"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(base: Path, changes: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Plan(read_sweep(SWEEP | changes, []), {"base": read_config(base)})


def test_keys_of_one_base_alone_are_drawn_with_it_alone() -> None:
    bases = [Base("a", {"x": 1, "y": 2}, SweepConfig), Base("b", {"x": 1}, SweepConfig)]
    sweep = read_sweep(SWEEP | {"space": {k: {"name": "choice", "values": [1, [2]]} for k in "xy"}}, [])
    points = Space(bases, sweep.space).points()
    assert len(points) == 4 + 2
    assert points[1] == {"base": "a", "x": 1, "y": "[2]"}
    assert points[-1] == {"base": "b", "x": "[2]"}
    assert SweepFolder(Path("s")).trial(3).path == Path("s/trials/0003")


def test_a_stored_sweep_imports_no_module_that_is_not_trusted(base: Path, tmp_path: Path) -> None:
    done("sweep", "base.yml", "gamma=0.9,0.99", "--run", "g", cwd=tmp_path)
    (tmp_path / "stranger.py").write_text("open('harmed', 'w')\ndef fits(config):\n    return True\n")
    written = load_yaml(tmp_path / "g/sweep.yml") | {"base": ["base.yml"]}
    own = written | {"constraints": ["own:fits"]}
    (tmp_path / "own.py").write_text("def fits(config):\n    return config['num_worlds'] > 4\n")
    (tmp_path / "own.yml").write_text(render(read_sweep(own, []), SweepConfig))
    assert "constraints: expected some that can be fulfilled" in done("sweep", "own.yml", cwd=tmp_path, code=2)
    stored = written | {"constraints": ["stranger:fits"]}
    file = tmp_path / "g/sweep.yml"
    file.write_text(file.read_text().replace("constraints: []", f"constraints: {json.dumps(stored['constraints'])}"))
    assert "is not trusted" in done("resume", "g", cwd=tmp_path, code=2)
    assert not (tmp_path / "harmed").exists()


def test_a_sweep_begins_in_a_new_or_empty_folder_alone_and_harms_no_other(tmp_path: Path) -> None:
    path, bases = tmp_path / "s", {"base": BASE.read_text()}
    text = render(read_sweep(SWEEP, []), SweepConfig)
    (tmp_path / ".s.0123.tmp").mkdir()  # left by a process that was killed
    path.mkdir()
    first = SweepFolder.create(path, text, bases)
    assert SweepFolder.create(path, text, bases).id == first.id, "another process was faster"
    for mine in ("base/base.yml", "trials/thesis.tex", "sweep.json", "sweep.yml", "lock"):
        file = tmp_path / "mine" / mine
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("mine")
        with pytest.raises(RunFolderError, match="mine exists already, and is no sweep of this file"):
            SweepFolder.create(tmp_path / "mine", text, bases)
        assert file.read_text() == "mine"
        shutil.rmtree(tmp_path / "mine")
    with pytest.raises(RunFolderError, match="s exists already, and is no sweep of this file"):
        SweepFolder.create(path, text.replace("seed: 3", "seed: 4"), bases)
    assert sorted(file.name for file in tmp_path.iterdir()) == [".s.0123.tmp", "s"]


def test_two_folders_share_a_study_and_both_know_the_best(base: Path, tmp_path: Path) -> None:
    journal = {"name": "journal", "path": str(tmp_path / "shared.journal"), "study": "both"}
    file = write(tmp_path, storage=journal, budget=SWEEP["budget"] | {"trials": 3})
    first = palestra("sweep", file, "--run", "a", cwd=tmp_path)
    second = palestra("sweep", file, "--run", "b", cwd=tmp_path)
    output = [process.communicate(timeout=300)[0] for process in (first, second)]
    assert first.returncode == second.returncode == 0, output
    backend = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(journal["path"]))
    trials = optuna.load_study(study_name="both", storage=backend).trials
    assert {state_of(trial) for trial in trials} == {"succeeded"}
    assert len(trials) in (3, 4), "both may begin the last one at the same time"
    assert len({trial.user_attrs["folder"] for trial in trials}) == 2
    for folder in "ab":
        (tmp_path / folder / "best.yml").unlink()  # as if it had been killed before it was written
        done("resume", folder, cwd=tmp_path)
    assert (tmp_path / "a/best.yml").read_bytes() == (tmp_path / "b/best.yml").read_bytes()
    best = max(trials, key=lambda trial: (trial.value, -trial.number))
    assert load_yaml(tmp_path / "a/best.yml")["players"]["agent"]["algorithm"]["gamma"] == pytest.approx(
        best.params["players.agent.algorithm.gamma"]
    )
