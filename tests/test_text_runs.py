"""What commands and callbacks do with a run of players that talk in words; all share one run."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from resuming import records
from typer.testing import CliRunner

from palestra import make_trainer
from palestra.cli import app
from palestra.config import ConfigError
from palestra.kinds.text.trainer import TextTrainer
from palestra.text.rollouts import Rollouts
from tests.kinds.text.test_trainer import CONFIG, MAIN, SEATS

OF = {"name": "evaluation", "evaluation": "main", "pairing": 0, "measure": "accuracy"}
PLATEAU = {"of": OF, "goal": "max", "min_delta": 2.0, "patience": 1}
RETURNS = {"name": "training_returns", "role": "verifier", "interval": {"every": 1, "unit": "epochs"}}
BEST = {"evaluation": "main", "pairing": 0, "measure": "retries/prover", "goal": "min"}
RATE = {"player": "prover", "key": "tuning.groups.0.learning_rate"}


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> TextTrainer:
    folder = tmp_path_factory.mktemp("text") / "run"
    stopping = [
        {"name": "early_stopping", **PLATEAU, "patience": 2},  # after imitation there is an evaluation, too
        {"name": "early_stopping", **PLATEAU, "of": RETURNS, "patience": 9},
    ]
    recorded = {"evaluations": [MAIN, MAIN | {"name": "late", "interval": None, "at_start": False}], "best": BEST}
    trainer = make_trainer(CONFIG | recorded | {"callbacks": stopping, "stop": {"after": 9, "unit": "epochs"}}, folder)
    trainer.fit()
    assert isinstance(trainer, TextTrainer)
    return trainer


@pytest.fixture
def run(trainer: TextTrainer) -> Path:
    return trainer.run.folder.path


def told(*words: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, [*words])
    assert done.exit_code == code, (done.output, done.exception)
    return done.output + (done.stderr if code else "")


def test_best_and_early_stopping_go_by_dialogues(trainer: TextTrainer, run: Path) -> None:
    assert trainer.epochs == 1, "the second and third evaluations did not improve by 2"
    assert len(trainer.recent_returns("verifier")) == 8
    assert (run / "checkpoints" / "best").exists()


def test_a_record_of_training_has_the_statistics_of_its_dialogues(run: Path) -> None:
    [found] = [each["dialogues"] for each in records(run) if "dialogues" in each]
    by_role = {f"{name}/{role}" for role in SEATS for name in ("return", "tokens", "retries", "cut_off")}
    assert found.keys() >= {"accuracy", "undecided", "length", *by_role}
    assert found["return/verifier/worst"] <= found["return/verifier"]
    assert 1 <= found["length"] <= CONFIG["game"]["protocol"]["max_rounds"]
    table = told("table", str(run))
    assert "dialogues/return/verifier/worst" in table
    assert "evaluation/main/prover vs verifier/cut_off/verifier" in table


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["evaluate"], "evaluation main, 2 pairings"),
        (["evaluate", "--games", "3", "--evaluation", "late", "--pairing", "prover=random"], "late, 1 pairing "),
        (["evaluate", "evaluations.0.num_games=7", "--evaluation", "main"], "evaluation main, 2 pairings"),
        (["compare", "--games", "3"], "accuracy"),
        (["plot", "--out", "plot.png"], "plot.png"),
        (["report", "--out", "page.html"], "page.html"),
    ],
    ids=lambda each: each[0] if isinstance(each, list) else "",
)
def test_commands_show_it_as_any_other_run(words: list[str], expected: str, run: Path, in_tmp_path: Path) -> None:
    assert expected in told(words[0], str(run), *words[1:])


PAIRING = "prover=honest,verifier=reject"  # in which nobody learns, so that `best` of the run goes by no such pairing


def test_a_pairing_that_was_asked_for_is_filed_beside_those_of_the_run(run: Path) -> None:
    before = set((run / "evaluations").glob("*.json"))
    words = ("evaluate", str(run), "--games", "3", "--evaluation", "main", "--pairing", PAIRING)
    told(*words)
    assert not list((run / "evaluations").glob("*.parquet"))
    [file] = set((run / "evaluations").glob("*.json")) - before
    record = json.loads(file.read_text())
    assert [pair["players"] for pair in record["pairs"]] == [{"prover": "honest", "verifier": "reject"}]
    assert (record["pairs"][0]["games"], record["changes"]) == (3, [f"--pairing {PAIRING}"])
    assert f"its dialogues: {file.with_suffix('.parquet')}" in told(*words, "--rollouts")
    assert json.loads(file.read_text()) == record
    kept = Rollouts.from_parquet(file.with_suffix(".parquet").read_bytes())
    assert {each.player for each in kept.rows} == {"honest", "reject"}
    assert len(list(kept.dialogues())) == len(yaml.safe_load(file.with_suffix(".yml").read_text())) == 3


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--pairing", "verifier=anna"], "--pairing verifier: expected a player of this file (prover, verifier, "),
        (["--pairing", "judge=random"], "--pairing judge: unknown key; the roles of the game are prover, verifier"),
        (["game.protocol.max_rounds=3"], "game.protocol.max_rounds: expected a change of evaluations alone, because"),
        (["--video"], "--video: expected no such option, because "),
        (["--games", "0"], "--games"),
    ],
)
def test_what_an_evaluation_cannot_change_is_told_in_a_line(words: list[str], expected: str, run: Path) -> None:
    assert expected in told("evaluate", str(run), *words, code=2)


CHANGES = "callbacks.0.name: expected a callback that changes no player, because this is a run in which players talk "
LATER = {"at": {"after": 1, "unit": "epochs"}, "schedule": {"name": "constant", "value": 0.1}}


@pytest.mark.parametrize(
    ("callback", "line"),
    [
        ({"name": "early_stopping", **PLATEAU, "of": OF | {"measure": "rho"}}, "callbacks.0.of.measure: expected one "),
        ({"name": "early_stopping", **PLATEAU, "of": RETURNS | {"role": "host"}}, "callbacks.0.of.role: expected one "),
        ({"name": "reduce_on_plateau", **PLATEAU, **RATE, "factor": 0.5}, CHANGES),
        ({"name": "change_schedule", **RATE, **LATER}, CHANGES),
        ({"name": "freeze", "player": "prover", "net": "model", "weights": ["*"], "num_opt_steps": None}, CHANGES),
    ],
    ids=lambda each: each["name"] if isinstance(each, dict) else "",
)
def test_callbacks_that_know_no_such_players_are_told_in_a_line(
    callback: dict[str, Any], line: str, tmp_path: Path
) -> None:
    trainer = make_trainer(CONFIG | {"callbacks": [callback]}, tmp_path / "run")
    with pytest.raises(ConfigError) as raised:
        trainer.fit()
    [found] = str(raised.value).splitlines()
    assert found.startswith(line)
    assert not (tmp_path / "run").exists()
