"""A model is judged in other processes and again afterwards to the same bits; every command takes its run or says why
it does not."""

import copy
import csv
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from conftest import TINY_FIT
from resuming import assert_same_bits, fit, records, stopping_at
from typer.testing import CliRunner

from palestra import make_trainer
from palestra.cli import app
from palestra.config import ConfigError
from palestra.kinds.data.config import ScenarioDataConfig
from palestra.kinds.data.trainer import FitTrainer
from palestra.storage.disk import RunFolderError
from palestra.storage.records_file import read_records
from palestra.training.stored_training import StoredRun, StoredTraining
from tests.forked import FORKING

pytestmark = pytest.mark.usefixtures("forked_evaluators")
GAMES_ONLY = "expected a run in which players play games, got RUN, a run in which a model learns from data"


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "run"
    fit(run, copy.deepcopy(TINY_FIT))
    return run


@pytest.fixture
def run(original: Path, tmp_path: Path) -> Path:
    """One of one's own."""
    return Path(shutil.copytree(original, tmp_path / "run"))


def palestra(*words: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == code, f"{words}: {result.output}"
    return result.output


def evaluations(run: Path) -> dict[int, dict[str, Any]]:
    return {each["opt_steps"]: each for each in records(run) if each["kind"] == "evaluation"}


def test_other_processes_judge_a_model_to_the_same_bits(original: Path, tmp_path: Path) -> None:
    results = {"after": 6, "unit": "items"}
    evaluators = {"num_processes": 1, "results": results, "timeout_s": 60.0, "max_restarts": 1}
    run, config = tmp_path / "beside", copy.deepcopy(TINY_FIT) | {"evaluators": evaluators}
    with stopping_at(7):  # an evaluation does not count yet
        fit(run, config)
    fit(run)
    assert evaluations(run) == evaluations(original)
    best = [Path(folder, "checkpoints", "best").read_text() for folder in (run, original)]
    assert best[0] == best[1]


def test_a_stored_model_is_judged_as_it_was_in_training(run: Path) -> None:
    assert "loss" in palestra("evaluate", run, "--evaluation", "valid")
    found = json.loads((run / "evaluations" / "valid-opt-step-12.json").read_text())
    assert found == evaluations(run)[12]
    told = palestra("evaluate", run, "--watch")
    assert [line.split(": evaluation")[0] for line in told.splitlines()[:-1]] == [
        f"checkpoint {number:08d}" for number in range(4)
    ]
    for step in (0, 4, 8):
        assert json.loads((run / "evaluations" / f"valid-opt-step-{step}.json").read_text()) == evaluations(run)[step]


def test_a_run_that_cannot_be_written_to_is_refused_before_anything_is_judged(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: path != run / "evaluations")  # root may write anywhere
    monkeypatch.setattr(StoredTraining, "judge", lambda *_: pytest.fail("it was judged"))
    told = palestra("evaluate", run, "--evaluation", "valid", code=2)
    assert f"{run / 'evaluations'} cannot be written to; evaluate a copy of the run" in told


def test_a_run_of_any_kind_is_opened_in_python_in_one_way(run: Path, in_tmp_path: Path) -> None:
    """Players that play, and talk, are opened so in tests/runs and tests/kinds/text/test_rollout_files.py."""
    stored = StoredRun.open(run)
    assert len([*stored.records()]) > 0
    stored.load("latest")
    assert json.loads(stored.evaluate("valid", None)[0].read_text()) == evaluations(run)[12]

    config: dict[str, Any] = copy.deepcopy(TINY_FIT) | {"model": None, "evaluations": [], "best": None}
    model = make_trainer(copy.deepcopy(TINY_FIT)).model
    handed_over = FitTrainer(config, run="own")
    handed_over.set_model(model)
    handed_over.fit()
    assert len([*StoredRun.open("own").records()]) > 0
    with pytest.raises(RunFolderError, match="own: expected a run with evaluations, got one without"):
        StoredRun.open("own").load("latest")


def test_items_that_repeat_make_the_interval_of_an_evaluation_wider() -> None:
    pairs = []
    for is_repeated in (False, True):
        trainer = make_trainer(copy.deepcopy(TINY_FIT))
        items = trainer.data["valid"]
        num = len(items)
        if is_repeated:
            rows = torch.arange(num) % (num // 4)
            items.entries = {name: value[rows] for name, value in items.entries.items()}
        with trainer.test_context():
            pairs += trainer.judging.play("valid", num, True, lambda *_: None)["pairs"]
    once, again = pairs
    assert again["distinct"]["items"] <= num // 4
    assert again["distinct"]["items"] < once.get("distinct", {"items": num})["items"]
    [low, high], [narrow, wide] = again["intervals"]["accuracy"], once["intervals"]["accuracy"]
    assert high - low > 1.2 * (wide - narrow)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ["ask", "RUN", "--board", "[]"],
            GAMES_ONLY,
        ),
        (
            ["play", "RUN"],
            GAMES_ONLY,
        ),
        (
            ["compare", "RUN", "--games", "2"],
            "--games: expected no such option, because RUN is a run in which a model learns from data",
        ),
        (
            ["evaluate", "RUN", "--games", "3"],
            "--games: expected no such option, because RUN is a run in which",
        ),
        (["evaluate", "RUN", "--evaluation", "test"], "--evaluation: expected one of valid, got 'test'"),
        (["plot", "RUN", "--x", "env_steps"], "--x: expected one of opt_steps, items, epochs, got 'env_steps'"),
        (["resume", "RUN", "learning.batch_size=4"], "learning.batch_size: expected 8, as before, got 4; a resume"),
    ],
)
def test_what_means_nothing_to_a_model_is_refused_in_a_line(words: list[str], told: str, original: Path) -> None:
    before = {path: path.read_bytes() for path in original.rglob("*") if path.is_file()}
    output = palestra(*(str(original) if word == "RUN" else word for word in words), code=2)
    line = output.splitlines()[-1]
    assert line.startswith(told.replace("RUN", str(original)))
    assert {path: path.read_bytes() for path in original.rglob("*") if path.is_file()} == before


def test_a_resume_may_change_how_data_are_read_and_no_bit(original: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with stopping_at(6):
        fit(run, copy.deepcopy(TINY_FIT))
    palestra("resume", run, "execution.loading.num_workers=1", "--quiet")
    assert FitTrainer.load(run).config.execution.loading.num_workers == 1
    (line,) = (run / "changes.jsonl").read_text().splitlines()
    assert json.loads(line)["key"] == "execution.loading.num_workers"
    assert_same_bits(run, original)
    assert "reproduced to the bit" in palestra("verify", run, "--from", "beginning")


def test_pages_and_tables_say_items(run: Path, tmp_path: Path) -> None:
    page = Path(palestra("report", run, "--out", tmp_path / "page.html").strip()).read_text()
    assert "brackets are 95% intervals over items" in page
    assert "items per second" in page
    for word in ("games", "env step", "episodes", "Sample", "cut off", ">play<"):
        assert word not in page.partition("config.yml of run")[0], word
    head, *_, last = palestra("table", run).splitlines()
    assert head == "run,seed,opt_steps,items,name,value"
    assert last.startswith("run,0,12,88,")
    assert "95% interval over its items" in palestra("compare", run)


def test_training_ends_early_when_a_score_of_the_model_no_longer_improves(tmp_path: Path) -> None:
    of = {"name": "evaluation", "evaluation": "valid", "pairing": None, "measure": "accuracy"}
    stopping = {"name": "early_stopping", "of": of, "goal": "min", "min_delta": 1.0, "patience": 2}
    trainer = fit(tmp_path / "run", copy.deepcopy(TINY_FIT) | {"callbacks": [stopping]})
    assert trainer.opt_steps == 9  # the safe point after the evaluation at 8
    assert read_records(tmp_path / "run" / "records.jsonl")[-1]["ended"].startswith("early stopping: accuracy")
    wrong = stopping | {"of": of | {"measure": "rho"}}
    with pytest.raises(ConfigError, match=r"callbacks.0.of.measure: expected one of .*'accuracy', 'loss'"):
        make_trainer(copy.deepcopy(TINY_FIT) | {"callbacks": [wrong]}).require_ready()


def test_a_first_file_is_written_for_a_model_and_data(in_tmp_path: Path) -> None:
    text = palestra("config", "fit", "classifier", "nip", "witness", "data.train.num_items=40", "stop.after=1")
    found = yaml.safe_load(text)
    assert found["data"]["valid"] == found["data"]["train"] | {"held_out": True}
    assert (found["model"]["num_classes"], found["best"]["measure"]) == (2, "accuracy")
    Path("first.yml").write_text(text)
    assert "complete and consistent" in palestra("check", "first.yml")
    for words, told in (
        ([], "fit: expected a model (classifier, regressor, null, or package.module:Class), got none"),
        (["classifier"], "fit classifier: expected data (rows, scenario, or package.module:Class, or a protocol"),
        (["classifier", "nim"], "fit classifier nim: expected data (rows"),
        (
            ["classifier", "rows"],
            "data.train.file: expected a path, but the key is missing; give it, as data.train.file",
        ),
    ):
        assert palestra("config", "fit", *words, code=2).startswith(told)


def test_a_sweep_finds_a_learning_rate_and_ends_by_what_its_runs_count(
    in_tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("palestra.runtime.signals.subprocess", FORKING)
    Path("base.yml").write_text(yaml.safe_dump(json.loads(json.dumps(TINY_FIT)), sort_keys=False))
    keys = ["search=random", "pruning=null", "seeds=[0]", "budget.trials=null", "place.cores=1"]
    Path("sweep.yml").write_text(
        palestra("config", "sweep", "base.yml", *keys, "budget.total={after: 40, unit: items}")
    )
    palestra("sweep", "sweep.yml", "--run", "sweep", "--quiet")
    for total, told in (
        ("{after: 9, unit: env_steps}", "budget.total.unit: expected one of 'opt_steps', 'items', 'epochs', got 'env"),
        ("{after: 9, unit: opt_steps}", "budget.total.after: expected at least 12, the opt steps of one trial, got 9"),
    ):
        assert palestra("sweep", "sweep", f"budget.total={total}", code=2).startswith(told)
    best = yaml.safe_load(Path("sweep/best.yml").read_text())
    assert best["trainer"] == {"name": "fit"}
    assert "items" in palestra("trials", "sweep").splitlines()[0]
    palestra("trials", "sweep", "--csv", "trials.csv")
    rows = list(csv.DictReader(Path("trials.csv").read_text().splitlines()))
    assert [row["items"] for row in rows] == ["88"]
    palestra("report", "sweep")
    page = Path("sweep/report.html").read_text().partition("sweep.yml")[0]
    assert "env steps" not in page
    assert "88 in all trials that have ended" in page


def test_a_sweep_makes_data_once_for_all_corners_that_have_them(
    in_tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("base.yml").write_text(yaml.safe_dump(json.loads(json.dumps(TINY_FIT)), sort_keys=False))
    made, build = list[int](), ScenarioDataConfig.build
    monkeypatch.setattr(
        ScenarioDataConfig, "build", lambda self, *rest: made.append(self.num_items) or build(self, *rest)
    )
    words = [
        "learning.groups.0.learning_rate.value=0.1,0.3",
        "data.train.num_items=20,22",
        "learning.max_grad_norm=1,2",
    ]
    palestra("sweep", "base.yml", *words, "--dry-run")
    assert made == [20, 22, 22, 22]  # train and valid, twice
