"""Sample games: what is shown was played by the players of the checkpoint.

Covers palestra.games.polyhedra.pictures.
"""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import palestra
from palestra.commands.suggest_config import shipped_configs
from palestra.config import load_yaml
from palestra.games.polyhedra.words import board_points, chosen_axes
from palestra.report.page import write_report
from tests.report.parsing import Parsed

pytestmark = pytest.mark.usefixtures("no_plots", "few_figures")


@pytest.fixture
def few_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("palestra.report.learning.MOST_FIGURES", 1)


def small(name: str, changes: dict[str, Any]) -> dict[str, Any]:
    """A shipped config that ends at once."""
    (path,) = [path for path in shipped_configs() if path.stem == name]
    config = load_yaml(path) | {"stop": {"after": 1, "unit": "env_steps"}, "best": None} | changes
    config["evaluations"][0] |= {"num_games": 2, "final_num_games": 2}
    config["output"] |= {"display": "quiet", "recorders": []}
    return config


def reported(config: dict[str, Any], run: Path) -> Parsed:
    palestra.Trainer(config, run=run).fit()
    return Parsed(write_report([run], None))


def test_boards_of_a_game_follow_from_its_moves(make_config: Any, tmp_path: Path) -> None:
    page = reported(make_config({"game.rescale": False}), tmp_path / "run")
    told = re.findall(r"Round (\d+): (\d+) points\. Host names ([x\d, ]+); agent picks (x\d)\. The points", page.text)
    assert told[0][0] == "1"
    for _, num_points, named, picked in told:
        assert int(num_points) > 1
        assert picked in named.split(", ")
        assert len(named.split(", ")) >= 2
    assert re.search(r"A game of middle length: \d+ rounds, (to its end|until it was cut off)", page.text)
    assert "host vs random in evaluation main, from the best checkpoint" in page.text


@pytest.mark.parametrize("env", ["CartPole-v1", "tests.gym_probes:Walk-v0"])
def test_no_environment_is_built_for_a_report_and_the_page_says_so(
    env: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = {"sutton_barto_reward": False, "max_episode_steps": 9} if env == "CartPole-v1" else {}
    game = {**small("dqn-cartpole", {})["game"], "id": env, "arguments": arguments}
    palestra.Trainer(small("dqn-cartpole", {"game": game, "num_worlds": 1}), run=tmp_path / "run").fit()
    monkeypatch.setattr("gymnasium.make", lambda *args, **kwargs: pytest.fail("an environment is built"))
    page = Parsed(write_report([tmp_path / "run"], None))
    assert f"No game is shown: game is the environment {env}, which a report does not build" in page.text


def test_moves_of_another_game_are_a_table(tmp_path: Path) -> None:
    page = reported(small("dqn-nim", {"num_worlds": 4}), tmp_path / "run")
    (table,) = (table for label, table in page.tables.items() if "A game of middle length" in label)
    assert [text for text, _ in table.rows[0]][:3] == ["move", "role", "action"]
    assert table.column("heaps")[-1][0] == "0 0 0"


def test_points_and_choices_are_read_from_a_state() -> None:
    state = {"points": torch.tensor([[1.0, 2.0, 0.0], [-1.0, -1.0, -1.0]]), "subset": torch.tensor(5)}
    assert board_points(state) == [[1.0, 2.0, 0.0]]
    assert chosen_axes(state) == [0, 2]
