"""What the shipped configs learn. Takes minutes; `pytest -m slow tests/test_learning.py`."""

from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

import palestra
from palestra.recording.recorders import read_records

ROOT = Path(__file__).parents[1]
AGENTS = ("random", "choose_first", "choose_last", "greedy")


def last_evaluation(config: Path, folder: Path, seed: int) -> dict[tuple[str, str], float]:
    trainer = palestra.Trainer(config, run=folder, overrides=(f"seed={seed}", "output.display=quiet"))
    trainer.fit()
    evaluations: list[dict[str, Any]] = [r for r in read_records(folder / "records.jsonl") if r["kind"] == "evaluation"]
    return {(pair["players"]["host"], pair["players"]["agent"]): pair["rho"] for pair in evaluations[-1]["pairs"]}


@pytest.mark.slow
def test_three_seeds_of_the_shipped_config_beat_the_plain_players(tmp_path: Path) -> None:
    runs = [last_evaluation(ROOT / "configs" / "dqn-polyhedra.yml", tmp_path / str(seed), seed) for seed in range(3)]
    rho = {pairing: fmean(run[pairing] for run in runs) for pairing in runs[0]}
    for agent in AGENTS:
        assert rho["host", agent] > rho["random", agent]
        assert rho["host", agent] > rho["all_coordinates", agent]
    assert rho["random", "agent"] <= 0.02


@pytest.mark.slow
def test_the_quick_config_already_shows_the_curve_rise(tmp_path: Path) -> None:
    config, folder = ROOT / "configs" / "dqn-polyhedra-quick.yml", tmp_path / "run"
    after = last_evaluation(config, folder, 0)
    first = next(r for r in read_records(folder / "records.jsonl") if r["kind"] == "evaluation")
    before = {(pair["players"]["host"], pair["players"]["agent"]): pair["rho"] for pair in first["pairs"]}
    assert after["host", "choose_first"] > 2 * before["host", "choose_first"]
    assert after["host", "greedy"] > 2 * before["host", "greedy"]
    assert after["random", "agent"] < before["random", "agent"] / 2
