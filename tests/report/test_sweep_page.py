"""The report of a sweep: exact facts of the study, of any sweep that there may be, and nothing changed by it.

Covers palestra.report.sweep_reading, palestra.report.sweep_figures.
"""

import math
import random
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from optuna.trial import TrialState
from typer.testing import CliRunner, Result

from palestra.cli import app
from palestra.report.sweep_figures import ValueRange
from palestra.report.sweep_page import write_sweep_report
from palestra.report.sweep_reading import SweepData
from palestra.storage.records_file import read_records
from tests.forked import run
from tests.report.parsing import Parsed
from tests.report.sweeps import GAMMA, INTERVAL, KEY, LAMBDA, RATE, SWEEP, MadeSweep

ALL = "The trials, the best ones first."


def reported(sweep: MadeSweep, best: int | None = None) -> Parsed:
    return Parsed(write_sweep_report(sweep.end(best), None))


def palestra_report(*arguments: object, code: int = 0) -> Result:
    result = CliRunner().invoke(app, ["report", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == code, result.output
    return result


# ---- what it says --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dimension", "edges"),
    [
        ({"name": "log", "low": 1e-4, "high": 1e-1}, {1e-4: "lower", 1.3e-4: "lower", 1e-3: None, 0.099: "upper"}),
        ({"name": "uniform", "low": 0.8, "high": 1.0, "step": None}, {0.805: "lower", 0.9: None, 1.0: "upper"}),
        ({"name": "uniform", "low": 0.9, "high": 0.99, "step": 0.09}, {0.9: None, 0.99: None}),
        ({"name": "choice", "values": [0.99, 0.9, 0.95]}, {0.9: "lower", 0.95: None, 0.99: "upper"}),
        ({"name": "choice", "values": [0.9, 0.99]}, {0.9: None, 0.99: None}),
        ({"name": "integer", "low": 1, "high": 1024, "step": 1, "log": True}, {1: "lower", 20: None, 1000: "upper"}),
        ({"name": "integer", "low": 2, "high": 8, "step": 2, "log": False}, {2: "lower", 4: None, 8: "upper"}),
    ],
)
def test_it_is_told_where_the_best_value_lies_at_an_edge(
    tmp_path: Path, dimension: dict[str, Any], edges: dict[float, str | None]
) -> None:
    key = f"{KEY}.batch_size" if dimension["name"] == "integer" else GAMMA
    base = "dqn-cartpole" if dimension["name"] == "integer" else "ppo-cartpole"
    for number, (value, edge) in enumerate(edges.items()):
        sweep = MadeSweep(tmp_path / f"{number}", base=[base], space={key: dimension})
        sweep.draws.enqueue_trial({key: value})
        sweep.add(1.0)
        page = reported(sweep)
        told = f" lies at the {edge} edge of what was searched (" in page.text
        assert told == (edge is not None), value
        assert (f"The key is {key}." in page.text) == told


@pytest.mark.parametrize(("goal", "best", "order"), [("max", 2, ["2", "0", "1"]), ("min", 1, ["1", "0", "2"])])
def test_the_best_trial_stands_first_and_others_after_it(
    tmp_path: Path, goal: str, best: int, order: list[str]
) -> None:
    sweep = MadeSweep(tmp_path / "s", objective=SWEEP["objective"] | {"goal": goal})
    points = [sweep.add(value, reported=[1.0, value], values={"0": value - 1, "1": value + 1}) for value in (7.5, 3, 9)]
    sweep.add(None, TrialState.PRUNED, reported=[2.0])
    sweep.add(None, TrialState.FAIL, failure="seed 0: <script>alert(1)</script>")
    sweep.add(None, TrialState.FAIL, skipped="gamma > 0.95")
    sweep.add(None, TrialState.RUNNING)
    page = reported(sweep, best)
    table = page.tables[ALL]
    assert [text for text, _ in table.column("trial")] == [*order, "6", "3", "4", "5"]
    assert [text for text, _ in table.column("state")][3:] == ["running", "pruned", "failed", "skipped"]
    assert [value for _, value in table.column("return/agent")][:3] == [(7.5, 3, 9)[int(number)] for number in order]
    value = (7.5, 3, 9)[best]
    assert table.column("by seed")[0][0] == f"{value - 1:.3f}, {value + 1:.3f}"
    assert table.column("why")[5:] == [("seed 0: <script>alert(1)</script>", None), ("gamma > 0.95", None)]
    assert "script" not in {tag for tag, _ in page.tags}
    assert "7 trials: 3 succeeded, 1 failed, 1 pruned, 1 skipped, 1 running" in page.text
    point = f"learning_rate {points[best][RATE]:.4g}, gamma {points[best][GAMMA]:.4g}"
    assert f"The best trial so far is {best} with {value:.3f}: {point}." in page.text
    assert f"palestra train {tmp_path / 's' / 'best.yml'}" in page.text
    changed = page.tables["The keys in which best.yml differs from its base, besides the seed."]
    assert (GAMMA, None) in changed.column("key")
    assert f"{'highest' if goal == 'max' else 'lowest'} return/agent of evaluation main, pairing 0" in page.text


def test_without_trials_and_without_a_complete_one_it_says_so(tmp_path: Path) -> None:
    page = reported(MadeSweep(tmp_path / "empty"))
    assert page.text.count("There is no trial yet.") == 2
    sweep = MadeSweep(tmp_path / "running")
    sweep.add(None, TrialState.RUNNING, reported=[1.0, 2.0])
    page = reported(sweep)
    assert "No trial has succeeded so far." in page.text
    assert "it needs 5 trials that succeeded with a finite value, and 0 have" in page.text
    assert "palestra resume" in page.text


def test_a_single_trial_is_enough(tmp_path: Path) -> None:
    sweep = MadeSweep(tmp_path / "s")
    sweep.add(5.0)
    page = reported(sweep, 0)
    assert "The best trial so far is 0 with 5.000" in page.text
    assert "Trials across the space" in page.text


def test_values_that_are_infinite_equal_or_far_off_are_drawn_at_the_edge(tmp_path: Path) -> None:
    sweep = MadeSweep(tmp_path / "s")
    for value in (1.0, 2.0, 3.0, 4.0, 2.5, -math.inf, -1e12):
        sweep.add(value, reported=[math.nan, value])
    page = reported(sweep, 3)
    assert "2 trials are far beyond the range drawn, and stand at its edge." in page.text
    assert [text for text, _ in page.tables[ALL].column("return/agent")][-2:] == ["-1e+12", "-inf"]
    equal = MadeSweep(tmp_path / "equal")
    for _ in range(6):
        equal.add(1.0)
    assert "all 6 trials have the same value" in reported(equal, 0).text


def test_choices_may_be_lists_null_and_of_several_types(tmp_path: Path) -> None:
    values = [None, True, "a<b>", [1, 2], {"x": 0.5}, 3]
    sweep = MadeSweep(tmp_path / "s", space={GAMMA: {"name": "choice", "values": values}})
    for number in range(30):
        sweep.add(float(number))
    page = reported(sweep)
    texts = {text for text, _ in page.tables[ALL].column("gamma")}
    assert texts <= {"null", "true", "a<b>", "[1, 2]", "{x: 0.5}", "3"}
    assert len(texts) > 3
    assert "b" not in {tag for tag, _ in page.tags}
    assert "best.yml cannot be read" in page.text


def test_keys_of_one_base_alone_have_gaps_and_an_importance_of_their_own(tmp_path: Path) -> None:
    space = SWEEP["space"] | {LAMBDA: {"name": "uniform", "low": 0.8, "high": 1.0, "step": None}}
    sweep = MadeSweep(tmp_path / "s", base=["ppo-cartpole", "dqn-cartpole"], space=space)
    points = [sweep.add(0.0) for _ in range(40)]
    for trial, point in zip(sweep.trials, points, strict=True):
        trial.value = math.log(point[RATE])
    page = reported(sweep, max(range(40), key=lambda number: points[number][RATE]))
    mine = [point for point in points if point["base"] == "ppo-cartpole"]
    lambdas = [text for text, _ in page.tables[ALL].column("gae_lambda")]
    assert lambdas.count("-") == 40 - len(mine)
    of_ppo = page.tables[f"Importance of keys: {len(mine)} trials of ppo-cartpole"]
    of_dqn = page.tables[f"Importance of keys: {40 - len(mine)} trials of dqn-cartpole"]
    assert {text for text, _ in of_ppo.column("key")} == {RATE, GAMMA, LAMBDA}
    assert {text for text, _ in of_dqn.column("key")} == {RATE, GAMMA}
    assert of_ppo.column("key")[0][0] == of_dqn.column("key")[0][0] == RATE
    assert math.fsum(value or 0 for _, value in of_ppo.column("share")) == pytest.approx(1)
    searched = page.tables["What was searched."]
    assert searched.column("bases that have it")[2] == ("ppo-cartpole", None)
    assert ">absent<" in page.html


def test_a_thousand_trials_are_thinned_out_and_written_soon(tmp_path: Path) -> None:
    draw = random.Random(0)
    sweep = MadeSweep(tmp_path / "s")
    for _ in range(1000):
        value = draw.gauss(0, 1)
        sweep.add(value, reported=[value] * 20)
    sweep.end(0)
    begin = time.process_time()
    page = Parsed(write_sweep_report(sweep.path, None))
    assert time.process_time() - begin < 20
    assert len(page.html) < 3_000_000
    table = page.tables["The first 300 of 1,000 trials, the best ones first; the study has all."]
    assert len(table.rows) == 301
    assert "Drawn are 400 of 1,000 trials" in page.text
    assert "Drawn are 150 of 1,000 trials" in page.text
    assert "Drawn are 60 of 1,000 trials" in page.text


# ---- curves --------------------------------------------------------------------------------------------


def test_curves_are_what_the_pruner_was_told(tmp_path: Path) -> None:
    sweep = MadeSweep(tmp_path / "s")
    sweep.add(3.0, reported=[1.0, 3.0])
    sweep.add(None, TrialState.PRUNED, reported=[0.5])
    page = reported(sweep, 0)
    table = page.tables["return/agent over env steps"]
    assert [[value for _, value in table.column(head)] for head in ("env steps", "return/agent")] == [
        [1000, 2000],
        [1, 3],
    ]
    assert "A cross ends a trial that was pruned." in page.text


def test_without_a_pruner_curves_come_from_the_records_of_all_seeds(tmp_path: Path) -> None:
    sweep = MadeSweep(tmp_path / "s", pruning=None)
    sweep.add(4.0)
    sweep.add(2.0)
    sweep.record(0, 0, [1.0, 2.0, 5.0])
    sweep.record(0, 1, [1.0, 4.0, 7.0, 9.0])
    sweep.record(1, 0, [1.0, 2.0])
    page = reported(sweep, 0)
    table = page.tables["return/agent over env steps"]
    mine = [row for row in table.rows[1:] if row[1][0] == "0"]
    assert [(step, value) for (_, step), _, (_, value) in mine] == [(0, 1), (INTERVAL, 3), (2 * INTERVAL, 6)]
    assert "the interquartile means over the seeds" in page.text


def test_of_single_evaluations_no_curve_is_drawn(tmp_path: Path) -> None:
    sweep = MadeSweep(tmp_path / "s", pruning=None)
    sweep.add(3.0)
    for seed in (0, 1):
        sweep.record(0, seed, [3.0])
    assert "No trial has been evaluated more than once." in reported(sweep, 0).text


def test_a_real_sweep_is_shown_and_its_trials_stay_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("palestra.report.learning.MOST_FIGURES", 1)
    words = ["ppo-cartpole", "gamma=0.9,0.99", "num_worlds=4", "rollout_length=16", "num_minibatches=2"]
    words += ["stop.after=512", "evaluations.0.interval.every=256", "evaluations.0.num_games=2", "final_num_games=2"]
    sweep = tmp_path / "s"
    command = [sys.executable, "-m", "palestra", "sweep", *words, "recorders=[]", "--run", str(sweep), "--quiet"]
    run(command, check=True, timeout=120)
    palestra_report(sweep)
    page = Parsed(sweep / "report.html")
    best = page.tables[ALL].column("trial")[0][0]
    records = read_records(sweep / f"trials/000{best}/seed-0/records.jsonl")
    returns = [record["pairs"][0]["scores"]["return/agent"] for record in records if record["kind"] == "evaluation"]
    table = page.tables["return/agent over env steps"]
    assert [row[2][1] for row in table.rows[1:] if row[1][0] == best] == returns
    assert page.tables[ALL].column("return/agent")[0][1] == returns[-1]
    palestra_report(sweep / "trials/0000")
    assert "Learning curves" in Parsed(sweep / "trials/0000/report.html").text


# ---- strangers, damage, and what is left alone ---------------------------------------------------------


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("storage", [SWEEP["storage"], {"name": "sqlite"}])
def test_a_report_changes_nothing_but_its_page(tmp_path: Path, storage: Any) -> None:
    sweep = MadeSweep(tmp_path / "a?b#c %41", storage=storage)
    sweep.add(1.0)
    sweep.add(None, TrialState.RUNNING)
    sweep.end(0)
    before = contents(sweep.path)
    palestra_report(sweep.path, "--out", tmp_path / "page.html")
    assert contents(sweep.path) == before
    assert "1 succeeded, 1 running" in Parsed(tmp_path / "page.html").text
    assert palestra_report(sweep.path).output.strip() == str(sweep.path / "report.html")


def test_nothing_that_a_strangers_sweep_names_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sweep = MadeSweep(tmp_path / "s", pruning=None, constraints=["gamma < 1"])
    sweep.add(1.0)
    sweep.record(0, 0, [1.0])
    sweep.end(0)
    Path("stranger.py").write_text("open('harmed', 'w')\ndef of(pair):\n    return 1.0\n")
    text = sweep.folder.config.read_text().replace("return/agent", "stranger:of").replace("gamma < 1", "stranger:of")
    sweep.folder.config.write_text(text.replace("name: random", "name: stranger:Search"))
    page = Parsed(write_sweep_report(sweep.path, None))
    assert "stranger:of" in page.text
    assert not Path("harmed").exists()


def test_a_study_that_is_missing_or_damaged_is_named_in_one_line(tmp_path: Path) -> None:
    journal, sqlite = MadeSweep(tmp_path / "j"), MadeSweep(tmp_path / "q", storage={"name": "sqlite"})
    for sweep, name, code in ((journal, "study.journal", 2), (sqlite, "study.db", 0)):
        output = palestra_report(sweep.path, code=code).output  # a killed sweep may have no study.db yet
        assert ("the study cannot be read" in output) == (code == 2)
        assert not (sweep.path / name).exists()
        (sweep.path / name).write_bytes(b"\x00{}\n")
        assert "the study cannot be read" in palestra_report(sweep.path, code=2).output
        assert (sweep.path / name).read_bytes() == b"\x00{}\n"


def test_a_database_that_a_sweep_names_is_asked_only_if_it_is_trusted(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/x.db"  # no test before trusted this one
    sweep = MadeSweep(tmp_path / "s", storage={"name": "database", "url": url, "password_from": None, "study": "x"})
    assert "expected a place that is trusted" in palestra_report(sweep.path, code=2).output


def test_without_optuna_one_line_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = MadeSweep(tmp_path / "s")
    monkeypatch.setattr("palestra.sweeps.folder.importlib.util.find_spec", lambda name: None)
    assert palestra_report(sweep.path, code=2).output.strip().endswith("pip install 'palestra[optuna]'")


# ---- parts ---------------------------------------------------------------------------------------------


def test_the_range_of_values_leaves_out_what_is_far_worse_and_never_the_best() -> None:
    assert ValueRange.of([1, 2, 3, 4, -1e9], "max") == ValueRange(1, 4)
    assert ValueRange.of([1, 2, 3, 4, 1e9], "min") == ValueRange(1, 4)
    assert ValueRange.of([1, 2, 3, 1e9], "max").high == 1e9
    assert ValueRange.of([5, 5], "max") == ValueRange(2.5, 7.5)
    assert ValueRange.of([math.inf, math.nan], "max") == ValueRange(0, 1)


def test_places_on_axes_are_those_of_the_space(tmp_path: Path) -> None:
    sweep = MadeSweep(tmp_path / "s")
    sweep.end()
    rate, gamma = SweepData(sweep.path).axes
    assert [rate.share(value) for value in (1e-4, 1e-1)] == [0, 1]
    assert rate.share(10**-2.5) == pytest.approx(0.5)
    assert math.isnan(rate.share(1.0))
    assert [gamma.share(value) for value in (0.9, 0.99)] == [0, 1]
    assert math.isnan(gamma.share("other"))
