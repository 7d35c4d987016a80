"""What the shipped configs of lone agents learn. Takes minutes; `pytest -m slow tests/test_learning_gym.py`."""

from pathlib import Path
from typing import Any

import pytest

import palestra
from palestra.storage.records_file import read_records

ROOT = Path(__file__).parents[1]


def returns(folder: Path, name: str, *overrides: str) -> list[float]:
    """The agent's mean return at every evaluation of a run of a shipped config."""
    config = ROOT / "configs" / f"{name}.yml"
    palestra.Trainer(config, run=folder, overrides=("output.display=quiet", *overrides)).fit()
    records: list[dict[str, Any]] = [r for r in read_records(folder / "records.jsonl") if r["kind"] == "evaluation"]
    return [record["pairs"][0]["scores"]["return/agent"] for record in records]


@pytest.mark.slow
def test_sac_swings_the_pendulum_up(tmp_path: Path) -> None:
    before, *_, after = returns(tmp_path / "run", "sac-pendulum", "stop.after=6000")
    assert before < -900 < -200 < after


@pytest.mark.slow
def test_td3_swings_the_pendulum_up(tmp_path: Path) -> None:
    before, *_, after = returns(tmp_path / "run", "td3-pendulum")
    assert before < -900 < -200 < after


@pytest.mark.slow
def test_dqn_learns_to_stay_up(tmp_path: Path) -> None:
    pytest.importorskip("Box2D")
    before, *_, after = returns(tmp_path / "run", "dqn-lunarlander", "stop.after=40000")
    assert after > before + 100


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "score"),
    [
        ("ppo-cartpole-batched", 475),
        ("ppo-acrobot-batched", -100),
        ("sac-pendulum-batched", -180),
        ("dqn-mountain_car-batched", -110),
    ],
)
def test_batched_classic_control_reaches_what_counts_as_solved(name: str, score: float, tmp_path: Path) -> None:
    before, *_, after = returns(tmp_path / "run", name, "output.recorders=[]")
    assert before < score < after
