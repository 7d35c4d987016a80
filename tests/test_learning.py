"""What the shipped configs learn. Takes minutes; `pytest -m slow tests/test_learning.py`."""

from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

import palestra
from palestra.storage.records_file import read_records

ROOT = Path(__file__).parents[1]
AGENTS = ("random", "choose_first", "choose_last", "greedy")


def evaluations(folder: Path, *overrides: str) -> list[dict[tuple[str, str], float]]:
    """rho of every pairing, at every evaluation of a run of the shipped config."""
    config = ROOT / "configs" / "dqn-polyhedra.yml"
    palestra.Trainer(config, run=folder, overrides=("output.display=quiet", *overrides)).fit()
    records: list[dict[str, Any]] = [r for r in read_records(folder / "records.jsonl") if r["kind"] == "evaluation"]
    return [
        {(p["players"]["host"], p["players"]["agent"]): p["scores"]["rho"] for p in record["pairs"]}
        for record in records
    ]


@pytest.mark.slow
def test_three_seeds_of_the_shipped_config_beat_the_plain_players_and_zeillinger(tmp_path: Path) -> None:
    runs = [evaluations(tmp_path / str(seed), f"seed={seed}") for seed in range(3)]
    before, rho = ({pairing: fmean(run[at][pairing] for run in runs) for pairing in runs[0][at]} for at in (0, -1))
    for agent in AGENTS:
        for host in ("random", "all_coordinates", "zeillinger"):
            assert rho["host", agent] > rho[host, agent]
    assert rho["random", "agent"] <= 0.02
    assert rho["host", "greedy"] > 0.02 > before["host", "greedy"]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "num_opt_steps"), [("ppo-connect_four", 1600), ("dqn-connect_four", 5000)])
def test_a_quarter_of_the_shipped_training_beats_random_play_at_connect_four_in_both_seats(
    name: str, num_opt_steps: int, tmp_path: Path
) -> None:
    overrides = ("output.display=quiet", f"stop.after={num_opt_steps}")
    palestra.Trainer(ROOT / "configs" / f"{name}.yml", run=tmp_path / "run", overrides=overrides).fit()
    record = [r for r in read_records(tmp_path / "run" / "records.jsonl") if r["kind"] == "evaluation"][-1]
    won = {
        role: pair["won"][role]
        for pair in record["pairs"]
        if "random" in pair["players"].values()
        for role, who in pair["players"].items()
        if who == "player"
    }
    assert set(won) == {"first", "second"}
    assert min(won.values()) > 0.93
