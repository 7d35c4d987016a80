"""The curves of a run's metrics: in few points, and the same after a resume."""

import math
from pathlib import Path

import pytest
from conftest import MakeConfig

from palestra import Trainer
from palestra.run.records import MOST_POINTS, Curve, History


@pytest.mark.parametrize("num", [1, 127, 128, 1000, 100_000])
def test_a_curve_has_few_points_each_the_mean_of_as_many_values(num: int) -> None:
    curve = Curve()
    for i in range(num):
        curve.add(float(i))
    assert len(curve.points) in range(1, MOST_POINTS)
    assert curve.points == sorted(curve.points)
    share = 1 << int(math.log2(num / len(curve.points)))  # values of a point
    assert num - share < share * len(curve.points) <= num
    assert curve.points == [i * share + (share - 1) / 2 for i in range(len(curve.points))]
    assert curve.last == num - 1


def test_what_is_no_number_in_a_record_has_no_curve_and_null_is_nan() -> None:
    history = History(("env_steps", "opt_steps"))
    told = {
        "env_steps": 8,
        "opt_steps": 4,
        "inexact": True,
        "loss": None,
        "q": {"histogram": {}},
        "note": {"text": "x"},
    }
    history.add({"players": {"host": told | {"episodes": {"number": 2, "length": 3.5, "return/host": 1}}}})
    assert history.points("host").keys() == {"loss", "number", "length", "return/host"}
    assert math.isnan(history.last("host").pop("loss"))
    assert history.last("host")["length"] == 3.5
    assert history.points("nobody") == {}


def test_a_resumed_run_shows_the_whole_curve(make_config: MakeConfig, tmp_path: Path) -> None:
    trainer = Trainer(make_config(), run=tmp_path / "run")
    trainer.fit()
    resumed = Trainer.load(tmp_path / "run")
    resumed.fit()
    one, other = trainer.progress.now(), resumed.progress.now()
    assert len(one.curves["host"]["loss"]) == 6
    assert one.curves == other.curves
