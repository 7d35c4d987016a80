"""An evaluation of one's own: what it is given, what it may give, and that nothing else depends on it.

That it goes on to the same bits after a kill, also in a process of its own: tests/docs/test_examples_resume.py.
"""

import json
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from typer.testing import CliRunner

import palestra
from palestra.cli import app
from palestra.config import ConfigError, UserConfig
from palestra.evaluation.config import play_user_evaluation
from palestra.randomness import global_states
from palestra.run.kinds import read_config
from palestra.storage.records_file import read_records

MakeConfig = Callable[..., dict[str, Any]]
SOURCE = """
import random

import numpy as np
import torch

from palestra.config import UserConfig
from palestra.evaluation.config import UserEvaluation


class Drawing(UserEvaluation):
    scores = ("drawn", "weight")

    class Config(UserConfig):
        kind: str

    def play(self, players, num_games, seed, watch):
        watch(1)
        assert not any(net.training for player in players.values() for net in player.nets.values())
        assert not torch.is_grad_enabled()
        host = players["host"]
        weight = float(sum(value.sum() for net in host.nets.values() for value in net.parameters()))
        host.num_predictions += 3
        if self.config.kind != "good":
            faults = {"other": {"drawn": 1.0}, "text": {"drawn": "x", "weight": 0.0}, "list": [1.0, 2.0]}
            return faults[self.config.kind]
        drawn = seed + random.random() + np.random.rand() + float(torch.rand(())) + host.num_predictions
        return {"weight": weight, "drawn": drawn}


class Other:
    class Config(UserConfig):
        pass
"""
OWN = {
    "name": "own",
    "interval": {"every": 4, "unit": "opt_steps"},
    "at_start": True,
    "num_games": 2,
    "final_num_games": 3,
    "seed": None,
    "played_by": {"name": "drawing_mine:Drawing", "kind": "good"},
}
BEST = {"evaluation": "own", "pairing": None, "measure": "weight", "goal": "min"}


@pytest.fixture
def config(make_config: MakeConfig, in_tmp_path: Path) -> Iterator[dict[str, Any]]:
    (in_tmp_path / "drawing_mine.py").write_text(SOURCE)
    config = make_config({"best": BEST})
    config["evaluations"].append(OWN)
    yield config
    sys.modules.pop("drawing_mine", None)


def shell(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == code, f"{result.output}\n{result.exception!r}"
    return " ".join(result.output.split())


def test_it_is_trained_with_decides_and_is_played_again_from_the_shell(config: dict[str, Any]) -> None:
    Path("own.yml").write_text(yaml.safe_dump(config))
    shell("check", "own.yml")
    text = shell("train", "own.yml", "output.display=plain", "--run", "run")
    assert "Evaluation own" in text
    assert "no clear change (2 games" not in text  # nothing is compared without intervals
    assert "evaluation own at opt step 0: host vs agent: drawn " in text
    records = [each for each in read_records(Path("run/records.jsonl")) if each.get("evaluation") == "own"]
    scores = {each["opt_steps"]: each["pairs"][0]["scores"] for each in records}
    assert len(scores) > 2
    assert len({each["drawn"] for each in scores.values()}) == 1  # it depends on the seed alone
    best = palestra.StoredRun.open("run")
    best.load("best")
    assert scores[best.counters["opt_steps"]]["weight"] == min(each["weight"] for each in scores.values())
    shell("evaluate", "run", "--evaluation", "own")
    [file] = Path("run/evaluations").glob("own-*.json")
    assert json.loads(file.read_text())["pairs"] == records[-1]["pairs"]
    assert records[-1]["pairs"][0]["games"] == 3
    assert '"drawing_mine:Drawing": "' in Path("run/run.json").read_text()
    shell("report", "run")
    assert "weight" in Path("run/report.html").read_text()


def test_it_leaves_no_trace(config: dict[str, Any]) -> None:
    trainer = palestra.Trainer(read_config(config))
    host, evaluation = trainer.players["host"], trainer.config.evaluations[-1]
    host.num_predictions = 7
    for net in host.nets.values():
        net.train()
    found = []
    for _ in range(2):
        states = global_states()
        with trainer.test_context():
            found.append(play_user_evaluation(evaluation.played_by, trainer.players, 2, 5, lambda num: None))
        assert global_states() == states
        random.random()
        np.random.rand()
        torch.rand(3)
    assert found[0] == found[1]
    assert list(found[0]) == ["drawn", "weight"]
    assert host.num_predictions == 7
    assert all(net.training for net in host.nets.values())


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("other", "expected the scores drawn, weight from drawing_mine:Drawing, got ['drawn']"),
        ("text", "expected numbers from drawing_mine:Drawing, got {'drawn': 'x', 'weight': 0.0}"),
        ("list", "expected the scores drawn, weight from drawing_mine:Drawing, got list"),
    ],
)
def test_what_it_gives_must_be_its_scores(kind: str, message: str, config: dict[str, Any]) -> None:
    config["evaluations"][-1]["played_by"] = OWN["played_by"] | {"kind": kind}  # type: ignore[operator]
    trainer = palestra.Trainer(read_config(config))
    part: UserConfig = trainer.config.evaluations[-1].played_by
    with pytest.raises(TypeError) as caught, trainer.test_context():
        play_user_evaluation(part, trainer.players, 2, 5, lambda num: None)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("place", "change", "expected"),
    [
        (
            "best",
            {"measure": "wieght"},
            "best.measure: expected one of 'drawn', 'weight', or a function of your own",
        ),
        ("best", {"measure": "rho"}, "best.measure: expected one of 'drawn', 'weight', or"),
        ("best", {"pairing": 0}, "best.pairing: expected null, because the evaluation 'own' has no"),
        ("played_by", {"kind": 1}, "evaluations.1.played_by.kind: expected a string, got the integer 1"),
        (
            "played_by",
            {"name": "drawing_mine:Other"},
            "evaluations.1.played_by.name: expected a subclass of palestra.evaluation.config.UserEvaluation",
        ),
        (
            "played_by",
            {"name": "main"},
            "evaluations.1.played_by.name: expected one of 'exploitability', or a class of your own as",
        ),
        ("own", {"name": "main"}, "evaluations.1.name: expected a different name for each evaluation, got 'main'"),
        ("own", {"pairings": []}, "evaluations.1: expected a mapping with either"),
    ],
)
def test_what_is_wrong_is_named(place: str, change: Any, expected: str, config: dict[str, Any]) -> None:
    own = config["evaluations"][-1] = OWN | {"played_by": dict(OWN["played_by"])}  # type: ignore[call-overload]
    {"best": config["best"], "own": own, "played_by": own["played_by"]}[place].update(change)
    with pytest.raises(ConfigError) as caught:
        read_config(config)
    assert any(str(error).startswith(expected) for error in caught.value.errors), str(caught.value)
