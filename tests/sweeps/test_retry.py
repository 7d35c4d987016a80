"""Trials that have failed are run again on demand: the same points, whose runs go on, and nothing else changes."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from palestra.cli import app
from palestra.commands.ranked_trials import ranked, trial_lines
from palestra.commands.sweeping import work_on
from palestra.config import load_yaml
from palestra.kinds.games.config import RunConfig
from palestra.report.groups import trial_names
from palestra.report.sweep_reading import SweepData
from palestra.run.kinds import read_config
from palestra.sweeps import sweep as sweep_module
from palestra.sweeps.config import read_sweep
from palestra.sweeps.display import SweepDisplay
from palestra.sweeps.outcomes import counts_text, state_of, value_of
from palestra.sweeps.places import Job
from palestra.sweeps.stored import StoredSweep
from palestra.sweeps.sweep import Sweep
from tests.sweeps.made_runs import Over, begin_run, end_run, evaluation
from tests.sweeps.test_study import BASE, SWEEP

GRID = {"search": {"name": "grid"}, "space": {"gamma": {"name": "choice", "values": [0.9, 0.95, 0.99]}}}
STEPS = 100_000


@pytest.fixture(autouse=True)
def in_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep_module, "POLL_S", 0.0)
    monkeypatch.setattr(sweep_module, "LOOK_S", 0.0)


class Place:
    """Where runs take no time: their value is their discount. failing: the trials whose runs fail for now. started: the
    commands."""

    num_runs = 1

    def __init__(self, failing: Sequence[str]) -> None:
        self.failing, self.started = failing, list[list[str]]()

    def start(self, arguments: Sequence[str], log: Path) -> Job:
        run = Path(next(each for each in arguments if "seed-" in each))
        self.started.append([arguments[0], f"{run.parent.name}/{run.name}"])
        if arguments[0] == "train":
            begin_run(run, run.parent / "config.yml", int(run.name.removeprefix("seed-")))
        if run.parent.name in self.failing:
            (run / "records.jsonl").write_text(evaluation(STEPS // 2, 0.0))
            log.write_text("No space left on device\n")
            return Over(1)
        [player] = load_yaml(run / "config.yml")["players"].values()
        end_run(run, STEPS, player["algorithm"]["gamma"])
        return Over(0)


def sweep_of(path: Path, failing: Sequence[str] = (), **changes: Any) -> Sweep:
    """A sweep in a folder, or that which lies there."""
    if path.exists():
        sweep = Sweep.open(path, [f"{key}={value}" for key, value in changes.items()], SweepDisplay(), trust=False)
    else:
        base = read_config(BASE)
        assert isinstance(base, RunConfig)
        config = read_sweep(SWEEP | {"pruning": None} | changes, [])
        sweep = Sweep.create(path, config, {"ppo-cartpole": base}, SweepDisplay())
    sweep.place = Place(failing)
    return sweep


def told(path: Path) -> list[tuple[Any, ...]]:
    trials = StoredSweep.open(path).trials
    return sorted((state_of(trial), value_of(trial), json.dumps(trial.params)) for trial in trials)


def test_failed_trials_begin_again_with_their_points_and_runs_also_if_that_is_killed(tmp_path: Path) -> None:
    sweep_of(tmp_path / "whole", **GRID).work()
    path = tmp_path / "s"
    sweep = sweep_of(path, ["0000", "0001"], **GRID)
    sweep.work()
    assert [trial.number for trial in sweep.failed()] == [0, 1]
    killed = sweep_of(path)
    killed.study.retry(killed.failed()[0])  # and the process ends
    del killed
    again = sweep_of(path)
    assert again.retry_failed() == 1, "the other one waits already"
    again.work()
    assert again.place.started == [["resume", "0000/seed-0"], ["resume", "0001/seed-0"]]
    assert told(path) == told(tmp_path / "whole")
    assert [each.name for each in sorted((path / "trials").iterdir())] == ["0000", "0001", "0002"]
    assert (path / "best.yml").read_bytes() == (tmp_path / "whole/best.yml").read_bytes()
    assert again.progress().counts == {"succeeded": 3}
    assert sweep_of(path).retry_failed() == 0


def test_a_trial_that_began_again_counts_once_and_moves_no_draw(tmp_path: Path) -> None:
    budget = {"trials": 4, "total": {"after": 4 * STEPS, "unit": "env_steps"}, "minutes": None}
    sweep_of(tmp_path / "whole", search={"name": "random"}, budget=budget).work()
    path = tmp_path / "s"
    sweep_of(path, ["0001"], search={"name": "random"}, budget=budget | {"trials": 3}).work()
    for failing in (["0001"], []):
        sweep = sweep_of(path, failing)
        assert sweep.retry_failed() == 1
        sweep.work()
    sweep = sweep_of(path, **{"budget.trials": 4})
    sweep.work()
    assert told(path) == told(tmp_path / "whole")
    assert sweep.progress().count == 4 * STEPS


def test_what_shows_trials_says_which_one_began_again(tmp_path: Path) -> None:
    path = tmp_path / "s"
    sweep_of(path, ["0001"], **GRID).work()
    sweep = sweep_of(path)
    sweep.retry_failed()
    sweep.work()
    stored, why = StoredSweep.open(path), "again, because trial 1 failed: seed 0: No space left on device"
    assert counts_text(list(map(state_of, stored.trials))) == "3 trials: 3 succeeded"
    [line] = [line for line in str(trial_lines(stored, ranked(stored, None))).splitlines() if line.startswith("    3")]
    assert line.endswith(why)
    assert [(trial.number, trial.place, trial.why) for trial in SweepData(path).trials][-1] == (3, 1, why)
    run = path / "trials/0001/seed-0"
    assert trial_names([run]) == {run: "gamma 0.95"}


def test_a_sweep_with_a_failed_trial_ends_with_1_and_names_the_way_on(tmp_path: Path) -> None:
    path, console = tmp_path / "s", Console(record=True, width=200)
    with pytest.raises(Exception, match="1"):
        work_on(sweep_of(path, ["0001"], **GRID), console)
    assert f"to run it again: palestra resume {path} --retry-failed" in console.export_text()
    work_on(sweep_of(path), console, retry_failed=True)
    assert "1 trial that failed begins again" in console.export_text()


def test_only_the_trials_of_a_sweep_are_run_again(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["resume", str(tmp_path), "--retry-failed"])
    assert (result.exit_code, result.stderr) == (2, f"--retry-failed: expected the folder of a sweep, got {tmp_path}\n")
