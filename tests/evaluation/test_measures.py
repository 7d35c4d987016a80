"""Which number of an evaluation decides: every statistic by its name, and functions of one's own."""

import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from typer.testing import CliRunner

import palestra
from palestra.cli import app
from palestra.config import ConfigError, UntrustedError
from palestra.evaluation.evaluator import Games
from palestra.evaluation.measures import BestConfig, GameMeasures, Measure, paths_of_measures
from palestra.games.game import wins_by_return
from palestra.games.polyhedra import game as rho
from palestra.run.kinds import read_config
from palestra.runtime.scores import DeclaredScore
from palestra.runtime.statistics import describe
from palestra.storage.records_file import read_records

MakeConfig = Callable[..., dict[str, Any]]
ROLES, PAIRING = ["host", "agent"], {"host": "mine", "agent": "random"}
LENGTHS, WORTH = torch.tensor([1, 2, 3, 10]), torch.tensor([0.0, 1.0, 1.0, 1.0], dtype=torch.float64)


class Named:
    """What a measure needs of an evaluation."""

    name, own_scores = "main", None
    pairings = ({"host": "x", "agent": "random"}, PAIRING)


DECLARED = (
    *rho.SCORES,
    *(DeclaredScore(name, "", "share", ("host",), (), shown=True) for name in ("accuracy", "precision")),
)
OF_GAME = GameMeasures(DECLARED, info=["x", "a/std"])


def keys(measure: str, pairing: int | None = 1) -> BestConfig:
    return BestConfig(evaluation="main", pairing=pairing, measure=measure, goal="max")


def record() -> dict[str, Any]:
    """The record of an evaluation of four games."""
    finished, earned = torch.tensor([True, True, True, False]), torch.tensor([5.0, 1.0, 2.0, -3.0])
    info = {"info/x": WORTH, "final_info/x": 2 * WORTH, "info/a/std": WORTH, "final_info/a/std": WORTH}
    returns = {"host": earned, "agent": -earned}
    scores = {"rho": rho.estimate_rho(finished, LENGTHS), "accuracy": 0.75, "precision": None}
    games = Games(finished, LENGTHS, returns, 0, {}, {}, info, DECLARED, scores, wins_by_return(returns))
    return {"evaluation": "main", "pairs": [{"players": PAIRING, "learned": ["host"], **games.summary()}]}


def measured(measure: str, pairing: int | None = 1) -> float | None:
    return Measure(keys(measure, pairing), [Named()], {"main": OF_GAME}).of(record())  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("measure", "expected"),
    [
        ("rho", 3 / 16),
        ("return/host", 1.25),
        ("accuracy", 0.75),
        ("return/agent/median", -1.5),
        ("return/host/max", 5.0),
        ("length", 4.0),
        ("length/iqm", 2.5),
        ("length/std", describe(LENGTHS)["std"]),
        ("won/host", 0.75),
        ("info/x", 0.75),
        ("final_info/x/min", 0.0),
        ("final_info/x", 1.5),
        ("info/a/std", 0.75),  # a field of this name, and no statistic of another
    ],
)
def test_every_statistic_is_a_measure(measure: str, expected: float) -> None:
    assert measured(measure) == expected


def test_every_measure_is_in_a_record() -> None:
    """None of the names that a check admits leads nowhere."""
    names = paths_of_measures(ROLES, OF_GAME)
    assert len(names) == 47
    assert all(math.isfinite(measured(name)) for name in names if name != "precision")  # type: ignore[arg-type]


def test_what_is_null_in_a_record_is_not_a_number() -> None:
    assert math.isnan(measured("precision"))  # type: ignore[arg-type]


def test_a_pairing_that_was_not_played_has_no_measure() -> None:
    assert measured("rho", 0) is None


# ---- functions of one's own ------------------------------------------------------------------------------

SOURCE = """
def gap(pair):
    return pair["statistics"]["episode_length"]["iqm"] - pair["statistics"]["episode_length"]["median"]


def worst(record):
    return min(pair["scores"]["rho"] for pair in record["pairs"] if pair["learned"])


def text(pair):
    return "none"


limit = 3
"""


@pytest.fixture
def mine(in_tmp_path: Path) -> Iterator[Path]:
    (in_tmp_path / "scores_mine.py").write_text(SOURCE)
    yield in_tmp_path
    sys.modules.pop("scores_mine", None)


@pytest.mark.usefixtures("mine")
def test_a_function_gets_the_pairing_or_with_null_the_record() -> None:
    assert measured("scores_mine:gap") == 0.0
    assert measured("scores_mine:worst", None) == 3 / 16


@pytest.mark.usefixtures("mine")
def test_what_is_no_number_is_an_error_that_names_the_function() -> None:
    with pytest.raises(TypeError, match=r"expected a number from scores_mine:text, got 'none'"):
        measured("scores_mine:text")


def test_the_best_checkpoint_is_that_of_the_function_and_its_source_is_filed(
    mine: Path, make_config: MakeConfig
) -> None:
    (mine / "run.yml").write_text(
        yaml.safe_dump(make_config({"best.measure": "scores_mine:worst", "best.pairing": None}))
    )
    result = CliRunner().invoke(app, ["train", "run.yml", "--run", "run", "--quiet"])
    assert result.exit_code == 0, result.output
    assert '"scores_mine:worst": "' in (mine / "run" / "run.json").read_text()
    stored = palestra.StoredRun.open("run")
    records = [each for each in read_records(stored.folder.records) if each["kind"] == "evaluation"]
    scores = {each["opt_steps"]: min(p["scores"]["rho"] for p in each["pairs"] if p["learned"]) for each in records}
    stored.load("best")
    assert scores[stored.counters["opt_steps"]] == max(scores.values())
    del sys.modules["scores_mine"]
    (mine / "scores_mine.py").write_text(SOURCE + "\n# changed\n")
    (mine / "scores_mine.py").chmod(0o666)  # so that somebody else may have changed it
    with pytest.raises(UntrustedError, match=r"module 'scores_mine'.* has changed since it was trusted"):
        palestra.StoredRun.open("run")


@pytest.mark.usefixtures("mine")
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            {"measure": "scores_mine:gab"},
            "measure: expected a function of module 'scores_mine' ('gap', 'worst', 'text'",
        ),
        ({"measure": "scores_mine:limit"}, "measure: expected a function of module 'scores_mine' ('gap', "),
        ({"measure": "nowhere_at_all:x"}, "measure: importing 'nowhere_at_all' failed"),
        ({"measure": "length/iqr"}, "measure: expected one of 'rho', "),
        ({"measure": "info/success"}, "measure: expected one of 'rho', "),
        ({"pairing": None}, "pairing: expected a pairing with a player that learns (0, 1), got null, which only a"),
        ({"evaluation": "mian"}, "evaluation: expected one of main, got 'mian'"),
    ],
)
def test_a_wrong_measure_is_named_with_those_that_there_are(
    change: dict[str, Any], expected: str, make_config: MakeConfig
) -> None:
    config = make_config({f"best.{key}": value for key, value in change.items()})
    with pytest.raises(ConfigError) as caught:
        read_config(config)
    [error] = [error for error in caught.value.errors if error.path.startswith("best")]
    assert f"{error.path}: {error.message}".startswith(f"best.{expected}")


def test_a_near_name_and_the_key_of_the_fields_are_told(make_config: MakeConfig) -> None:
    for measure, hint in (("length/iqr", "; did you mean 'length/iqm'?"), ("info/x", "; output.info names the fields")):
        with pytest.raises(ConfigError) as caught:
            read_config(make_config({"best.measure": measure}))
        assert hint in str(caught.value)
