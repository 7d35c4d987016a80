"""What docs/self-play.md shows is run.

Covers palestra.games.positions.
"""

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import palestra
from palestra.commands.starting import starting_config
from palestra.evaluation.exploitability import Exploitability
from palestra.games import make_game
from palestra.games.game import TensorGame
from palestra.games.positions import positions_of
from palestra.players import make_script
from palestra.players.scripted import OptimalConfig
from palestra.storage.records_file import read_records
from palestra.testing import check_game

TEXT = (Path(__file__).parents[2] / "docs" / "self-play.md").read_text()


def shown(key: str) -> Any:
    """The first block of YAML with this key, or with a player of this name."""
    blocks = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", TEXT, re.S)]
    return next(block for block in blocks if key in block or key in block.get("players", {}))


def test_who_meets_whom_is_four_lines_more(in_tmp_path: Path) -> None:
    config: dict[str, Any] = starting_config("ppo", ["connect_four"]).model_dump()
    players = shown("past")["players"]
    config["players"]["player"] |= players.pop("player")
    config["players"] |= players
    config |= {"num_worlds": 16, "stop": {"after": 1, "unit": "epochs"}, "evaluations": [], "best": None}
    trainer: Any = palestra.Trainer(config, run="run")
    trainer.fit()
    assert len(trainer.seating.past["past"].kept) == 1


def test_the_evaluation_decides_and_the_optimal_player_sits_in_a_pairing(in_tmp_path: Path) -> None:
    config: dict[str, Any] = starting_config("ppo", ["nim"]).model_dump()
    config["players"] |= shown("master")["players"]
    config |= {"num_worlds": 16, "stop": {"after": 2, "unit": "epochs"}} | shown("evaluations")
    pairing = {**config["evaluations"][0], "name": "main", "num_games": 50, "final_num_games": 50, "max_rounds": 100}
    del pairing["played_by"]
    pairing |= {"game": None, "references": None, "pairings": [{"first": "master", "second": "player"}]}
    config["evaluations"].append(pairing)
    trainer = palestra.Trainer(config, run="run")
    trainer.fit()
    records = [each for each in read_records(Path("run/records.jsonl")) if each["kind"] == "evaluation"]
    exact, main = records[-2:]
    scores = exact["pairs"][0]["scores"]
    assert [*scores] == ["exploitability", "exploitability/first", "exploitability/second"]
    assert scores["exploitability"] == pytest.approx(
        (scores["exploitability/first"] + scores["exploitability/second"]) / 2
    )
    assert main["pairs"][0]["won"]["first"] > 0.5


def test_the_game_of_the_document_is_enumerated_and_solved(in_tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", TEXT, re.S)
    (in_tmp_path / "race.py").write_text(code)
    monkeypatch.setattr(sys, "path", [str(in_tmp_path), *sys.path])
    game = make_game({"name": "race:Race"})
    assert isinstance(game, TensorGame)
    check_game(game)
    positions = positions_of(game, 100)
    count, mover, values = positions.state["count"], positions.state["mover"], positions.values({})
    is_over = count == 21
    wins = (21 - count) % 4 != 0  # who is to move leaves a multiple of 4
    assert values[~is_over].tolist() == (2.0 * (wins ^ (mover == 1))[~is_over] - 1).tolist()
    assert positions.mean(values) == pytest.approx(1 / 3)
    optimal = OptimalConfig(scripted="optimal", max_positions=100)
    seats = {role: [(1.0, make_script(optimal, game, role))] for role in game.roles}
    assert Exploitability(game, 100).scores(seats)["exploitability"] == 0.0
    sys.modules.pop("race")
