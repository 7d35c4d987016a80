"""`palestra trials`, `palestra sweep --dry-run` and `palestra evaluate SWEEP`.

Covers palestra.commands.ranked_trials, palestra.commands.sweeping, palestra.sweeps.naming, palestra.sweeps.outcomes.
"""

import csv
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.trial import TrialState, create_trial

from palestra.commands.ranked_trials import to_csv
from palestra.commands.sweeping import RunTime, dry_run, read_new
from palestra.config import render
from palestra.recording.results import duration_text
from palestra.report.groups import trial_names
from palestra.storage.disk import Folder, RunFolderError
from palestra.sweeps.config import SweepConfig
from palestra.sweeps.folder import SweepFolder
from palestra.sweeps.naming import choice_texts, short_keys
from palestra.sweeps.plan import read_bases, starting_sweep
from palestra.sweeps.storages import SQLiteConfig
from palestra.sweeps.stored import StoredSweep
from tests.forked import run
from tests.report.sweeps import KEY as LEARNER
from tests.report.sweeps import RATE as RATES
from tests.report.sweeps import MadeSweep

PALESTRA = [sys.executable, "-m", "palestra"]
GAMMA, RATE = "players.agent.algorithm.gamma", "players.agent.algorithm.learning_rate.initial"
SMALL = ["num_worlds=4", "rollout_length=16", "num_minibatches=2", "stop.after=1024", "output.save.every=256"]
SMALL += ["evaluations.0.interval.every=256", "evaluations.0.num_games=2", "final_num_games=4", "recorders=[]"]


def palestra(*arguments: object, cwd: Path, code: int = 0) -> str:
    command = [*PALESTRA, *map(str, arguments)]
    found = run(command, cwd=cwd, capture_output=True, text=True, timeout=300)
    assert found.returncode == code, found.stdout + found.stderr
    return found.stdout if code == 0 else found.stderr


def stored_sweep(path: Path, *trials: dict[str, Any]) -> Path:
    """The folder of a sweep with these trials, as if they had been run."""
    config = starting_sweep(["ppo-cartpole"])
    base = read_bases(config.base, Path())["ppo-cartpole"]
    SweepFolder.create(path, render(config, SweepConfig), {"ppo-cartpole": render(base, type(base))})
    study = optuna.create_study(storage=f"sqlite:///{path / 'study.db'}", study_name="sweep", direction="maximize")
    distributions = {GAMMA: CategoricalDistribution([0.9, 0.99]), RATE: FloatDistribution(1e-4, 1.0, log=True)}
    study.add_trials([create_trial(**trial, distributions=distributions) for trial in trials])
    return path


def trial(rate: float, value: float | None, state: Any = TrialState.COMPLETE, **attributes: Any) -> dict[str, Any]:
    return {"params": {GAMMA: 0.9, RATE: rate}, "value": value, "state": state, "user_attrs": attributes}


def test_trials_are_listed_best_first_and_failures_say_why(tmp_path: Path) -> None:
    failed = trial(1.0, None, TrialState.FAIL, failure="seed 0: the loss is not a number")
    skipped = trial(0.5, None, TrialState.FAIL, skipped="gamma > 0.95")
    pruned = trial(
        0.2, 9.25, TrialState.PRUNED, counts={"env_steps": 20000}, values={"0": 28.0, "1": 9.25}
    )  # between its seeds
    done = [trial(0.01, 71.5, values={"0": 70.0, "1": 73.0}), trial(0.02, 480.25, counts={"env_steps": 200000})]
    sweep = stored_sweep(tmp_path / "s", failed, done[0], pruned, skipped, done[1])
    lines = palestra("trials", sweep, "--csv", "t.csv", cwd=tmp_path).splitlines()
    assert [line.split()[:2] for line in lines[1:6]] == [
        ["4", "succeeded"],
        ["1", "succeeded"],
        ["0", "failed"],
        ["2", "pruned"],
        ["3", "skipped"],
    ]
    assert lines[0].split()[-5:] == ["gamma", "learning_rate", "env", "steps", "why"]
    assert lines[2].split()[2:5] == ["71.5", "70", "73"]
    assert lines[4].split()[2:4] == ["28", "9.25"], "it has no value"
    assert lines[3].endswith("seed 0: the loss is not a number")
    assert lines[5].endswith("excluded by gamma > 0.95")
    assert lines[6] == "5 trials: 2 succeeded, 1 failed, 1 pruned, 1 skipped"
    rows = list(csv.DictReader((tmp_path / "t.csv").read_text().splitlines()))
    assert [row["trial"] for row in rows] == ["4", "1", "0", "2", "3"]
    assert rows[1]["seed-1"] == "73.0"
    assert rows[0][RATE] == "0.02"
    only = palestra("trials", sweep, "--state", "pruned", cwd=tmp_path).splitlines()
    assert [line.split()[0] for line in only] == ["trial", "2", "5"]
    wrong = palestra("trials", sweep, "--state", "lost", cwd=tmp_path, code=2)
    assert wrong == "--state: expected one of succeeded, failed, pruned, skipped, running, got 'lost'\n"
    assert palestra("trials", tmp_path, cwd=tmp_path, code=2).startswith(f"{tmp_path} is not a sweep")


def test_what_a_strangers_study_says_stays_in_its_line(tmp_path: Path) -> None:
    hostile = "\x1b]0;owned\x07\x9b2J\u202e[/red]\nall is well"
    failed, skipped = (trial(1.0, None, TrialState.FAIL, **{kind: hostile}) for kind in ("failure", "skipped"))
    sweep = stored_sweep(tmp_path / "s", failed, skipped)
    study = optuna.load_study(storage=f"sqlite:///{sweep / 'study.db'}", study_name="sweep")
    choice = CategoricalDistribution([hostile, "other"])
    study.add_trial(create_trial(params={hostile: hostile}, distributions={hostile: choice}, value=1.0))
    text = palestra("trials", sweep, cwd=tmp_path)
    assert text.replace("\n", "").isprintable()
    assert text.count(r"\x1b]0;owned\x07\x9b2J\u202e[/red]\nall is well") == 4
    assert len(text.splitlines()) == 5


def test_a_csv_tells_null_from_a_key_that_a_base_does_not_have(tmp_path: Path) -> None:
    sweep = stored_sweep(tmp_path / "s")
    study = optuna.load_study(storage=f"sqlite:///{sweep / 'study.db'}", study_name="sweep")
    choices = {"clip": CategoricalDistribution([None, 0.5, "off"]), "dueling": CategoricalDistribution([True, False])}
    for point in ({"clip": None, "dueling": True}, {"clip": 0.5, "dueling": False}, {"clip": "off"}):
        study.add_trial(create_trial(params=point, distributions={key: choices[key] for key in point}, value=1.0))
    stored = StoredSweep.open(sweep)
    rows = csv.DictReader(to_csv(stored, stored.trials).splitlines())
    assert [(row["clip"], row["dueling"]) for row in rows] == [("null", "true"), ("0.5", "false"), ("off", "")]


def test_a_study_in_the_midst_of_which_a_process_was_killed_names_the_remedy(tmp_path: Path) -> None:
    whole, killed = stored_sweep(tmp_path / "s", *[trial(0.01, 1.0)] * 50), tmp_path / "k"
    with closing(sqlite3.connect(whole / "study.db", isolation_level=None)) as writer:
        writer.execute("PRAGMA cache_size = 1")  # so that what is not committed is in the file already
        writer.execute("BEGIN")
        writer.execute("UPDATE trial_params SET param_value = 0")
        shutil.copytree(whole, killed)
    before = {file.name: file.read_bytes() for file in killed.glob("study.db*")}
    assert before.keys() == {"study.db", "study.db-journal"}
    message = f"{killed}: a process was killed while it wrote the study; to repair it: palestra resume {killed}\n"
    assert palestra("trials", killed, cwd=tmp_path, code=2) == message
    assert {file.name: file.read_bytes() for file in killed.glob("study.db*")} == before
    SQLiteConfig(name="sqlite").open(Folder(killed), for_writing=True).get_all_studies()
    assert [each.params for each in StoredSweep.open(killed).trials] == [{GAMMA: 0.9, RATE: 0.01}] * 50


@pytest.mark.parametrize(
    "undone",
    [
        "DROP TABLE version_info",
        "DELETE FROM version_info",
        "DROP TABLE alembic_version",
        "DELETE FROM alembic_version",
        "DELETE FROM studies",
    ],
)
def test_a_study_that_was_not_made_whole_has_no_trials(undone: str, tmp_path: Path) -> None:
    sweep = stored_sweep(tmp_path / "s")
    with closing(sqlite3.connect(sweep / "study.db")) as writer, writer:
        writer.execute(undone)
    assert StoredSweep.open(sweep).trials == []
    (sweep / "trials/0000").mkdir()  # so there was a study
    with pytest.raises(RunFolderError, match="the study cannot be read"):
        StoredSweep.open(sweep)


def test_the_table_imports_no_torch(tmp_path: Path) -> None:
    sweep = stored_sweep(tmp_path / "s", trial(0.01, 1.0))
    code = f"import sys\nfrom palestra.cli import main\ntry:\n    main(['trials', {str(sweep)!r}])\nfinally:\n"
    found = subprocess.run(
        [sys.executable, "-c", code + "    print('torch' in sys.modules)"], capture_output=True, text=True
    )
    assert found.stdout.splitlines()[-1] == "False", found.stderr


def test_a_database_that_a_strangers_sweep_names_is_not_contacted(tmp_path: Path) -> None:
    sweep = stored_sweep(tmp_path / "s")
    file, url = sweep / "sweep.yml", "postgresql+psycopg://me@localhost:1/x"
    text = file.read_text()
    stranger = f"storage:\n  name: database\n  url: {url}\n  password_from: HOME\n  study: x\n"
    file.write_text(text[: text.index("storage:")] + stranger)
    for command in (["trials", sweep], ["resume", sweep]):
        message = palestra(*command, cwd=tmp_path, code=2)
        assert "@localhost:1/x, which gets the secret in HOME is not trusted" in message
    file.write_text(text[: text.index("storage:")] + "storage: {name: journal, path: ../own.txt, study: x}\n")
    assert "own.txt is not trusted" in palestra("resume", sweep, cwd=tmp_path, code=2)
    assert not (tmp_path / "own.txt").exists()


def test_a_dry_run_counts_and_times_and_leaves_nothing(tmp_path: Path) -> None:
    grid = ["ppo-cartpole", *SMALL, "gamma=0.9,0.95,0.99", "--seeds", "0..1", "--at", "1"]
    lines = palestra("sweep", *grid, "--dry-run", cwd=tmp_path).splitlines()
    assert lines[:3] == ["3 trials, each with 2 seeds; 1 run at a time", "6 runs", "6,144 env steps"]
    assert lines[3].startswith("a run of ppo-cartpole as it is takes about 0:00:")
    assert lines[4].startswith("the sweep takes about 0:00:")
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_counts_the_stop_of_each_point(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("palestra.commands.sweeping.run_time", lambda base, seed: RunTime(5.0, 20.0, base.stop))

    def lines(*space: str) -> list[str]:
        return list(dry_run(*read_new("ppo-cartpole", [*space], "0..1", 1)[:2]))

    several = lines("stop.after=100000,200000,8000000", "gamma=0.9,0.99")
    assert several[1:] == [
        "12 runs",
        "33.2M env steps",
        "a run of ppo-cartpole as it is takes about 0:00:25, its start and evaluations included",
        "runs of trials take about 0:00:25 to 0:26:45, by their base and their stop",
        f"the sweep takes about {duration_text(4 * (25 + 45 + 1605))}",
    ]
    assert lines("gamma=0.9,0.99")[-1] == f"the sweep takes about {duration_text(4 * 25)}"
    in_minutes = lines("stop.after=1,3", "stop.unit=minutes")
    assert in_minutes[-1] == f"the sweep takes about {duration_text(2 * (65 + 185))}"
    assert "is unknown" in lines("stop.unit=epochs,env_steps")[-1]


def test_the_runs_of_a_trial_are_evaluated_and_listed(tmp_path: Path) -> None:
    palestra("sweep", "ppo-cartpole", *SMALL, "gamma=0.9,0.99", "--run", "s", "--quiet", cwd=tmp_path)
    output = palestra("evaluate", "s", "--games", "2", "evaluations.0.max_rounds=20", cwd=tmp_path)
    assert output.count("evaluation main, 2 pairings at opt step") == 2
    found = [list((tmp_path / f"s/trials/000{n}/seed-0/evaluations").iterdir()) for n in (0, 1)]
    assert [len(files) for files in found] == [1, 1]
    refused = palestra("evaluate", "s", "--watch", cwd=tmp_path, code=2)
    assert "--watch: expected no such option, because s has several runs" in refused
    assert "expected a sweep's file" in palestra("sweep", "s", "--dry-run", cwd=tmp_path, code=2)
    assert "2 trials: 2 succeeded" in palestra("trials", "s", cwd=tmp_path)
    remedy = f"to go on with the sweep: palestra resume {tmp_path / 's'}\n"
    told = palestra("resume", "s/trials/0000", cwd=tmp_path, code=2)
    assert told.endswith(f"s/trials/0000 is a trial of a sweep; {remedy}")
    rows = [line.split() for line in palestra("compare", "s", cwd=tmp_path).splitlines()]
    assert [row[:3] for row in rows[1:3]] == [["gamma", "0.9", "0000/seed-0"], ["gamma", "0.99", "0001/seed-0"]]


def test_a_dry_run_asks_whether_the_storage_can_be_used(tmp_path: Path) -> None:
    config = render(starting_sweep(["ppo-cartpole", "storage.name=journal"]), SweepConfig)
    (tmp_path / "sweep.yml").write_text(config)
    nowhere = palestra("sweep", "sweep.yml", "storage.path=nowhere/x", "--dry-run", cwd=tmp_path, code=2)
    assert (
        nowhere.splitlines()[-1] == f"storage.path: expected a file that can be written, got {tmp_path / 'nowhere/x'}"
    )
    url = "storage={name: database, url: 'sqlite:////nowhere/x.db', password_from: null, study: x}"
    nowhere = palestra("sweep", "sweep.yml", url, "--dry-run", cwd=tmp_path, code=2)
    assert nowhere.splitlines()[-1].startswith(
        "storage.url: expected a database that can be reached, got sqlite:////nowhere/x.db"
    )


def test_trials_are_named_by_their_base_and_few_keys(tmp_path: Path) -> None:
    bases = ["ppo-cartpole", "dqn-cartpole"]
    two = MadeSweep(tmp_path / "two", base=bases)
    points = [two.add(1.0) for _ in range(9)]
    path = two.end()
    runs = [path / f"trials/{number:04d}/seed-0" for number in range(9)]
    names = trial_names([*runs, tmp_path / "other"])
    assert names == {
        run: f"{point['base']}, learning_rate {point[RATES]:.4g}, gamma {point[GAMMA]:g}"
        for run, point in zip(runs, points, strict=True)
    }
    values = {"name": "choice", "values": [0.1, 0.2]}
    keys = ["gamma", "gae_lambda", "entropy_coefficient", "value_coefficient"]
    many = MadeSweep(tmp_path / "many", space={f"{LEARNER}.{key}": values for key in keys})
    many.add(1.0)
    run = many.end() / "trials/0000/seed-0"
    assert trial_names([run]) == {run: "trial 0"}
    (many.path / "study.journal").write_text("{")
    assert trial_names([run]) == {}


@pytest.mark.parametrize(
    ("stored", "texts"),
    [
        (["{name: constant, value: 0.1}", "{name: constant, value: 0.2}"], ["constant 0.1", "constant 0.2"]),
        (["{name: constant, value: 0.1}", "{name: linear, initial: 1, final: 0}"], ["constant", "linear"]),
        (
            ["{name: a, x: 1, y: 1}", "{name: a, x: 1, y: 2}", "{name: a, x: 2, y: 1}", "{name: b, x: 1}"],
            ["a x 1, y 1", "a x 1, y 2", "a x 2, y 1", "b"],
        ),
        (["{name: a}", "a", None, 1], ["{name: a}", "a", "null", "1"]),
        (["[64, 64]", "{not: [closed", True], ["[64, 64]", "{not: [closed", "true"]),
    ],
)
def test_texts_of_choices_tell_what_differs(stored: list[Any], texts: list[str]) -> None:
    assert list(choice_texts(*stored).values()) == texts


@pytest.mark.parametrize(
    ("keys", "short"),
    [
        (["a.gamma", "b.learning_rate.value"], ["gamma", "learning_rate"]),
        (["players.host.gamma", "players.agent.gamma"], ["host.gamma", "agent.gamma"]),
        (["x", "y.x"], ["x", "y.x"]),
        (["p.rate.initial", "a.width", "b.width"], ["rate", "a.width", "b.width"]),
        (["b.rate.initial", "b.rate.num_steps", "c.hidden.0"], ["rate.initial", "rate.num_steps", "hidden.0"]),
        (["a.hidden.0", "a.hidden.1", "b.width"], ["hidden.0", "hidden.1", "width"]),
        (["a.hidden.0", "b.hidden.0", "c.0.value"], ["a.hidden.0", "b.hidden.0", "c.0"]),
    ],
)
def test_short_keys_mean_one_key_alone(keys: list[str], short: list[str]) -> None:
    assert list(short_keys(keys).values()) == short
