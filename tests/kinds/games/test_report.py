"""Sample games: what is shown was played by the players of the checkpoint.

Covers palestra.games.polyhedra.pictures.
"""

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import palestra
from palestra.config import load_yaml
from palestra.games.polyhedra.words import board_points, chosen_axes
from palestra.report.page import write_report
from palestra.run.shipped import shipped_configs
from palestra.storage.records_file import read_records
from tests.report.dialogues import train_dialogue
from tests.report.parsing import Parsed

pytestmark = pytest.mark.usefixtures("few_figures")


@pytest.fixture
def few_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("palestra.report.learning.MOST_FIGURES", 1)


def small(name: str, changes: dict[str, Any]) -> dict[str, Any]:
    """A shipped config that ends at once."""
    path = shipped_configs()[name]
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


def test_dialogues_are_told_in_words_for_every_pairing(tmp_path: Path) -> None:
    run = train_dialogue(tmp_path / "nip", "nip", ["game.protocol.max_rounds=3", "evaluations.0.max_rounds=50"])
    page = Parsed(write_report([run], None))
    for pairing in ("prover* vs random", "random vs verifier*", "prover* vs verifier*"):
        assert f"<h3>{pairing}</h3>" in page.html
    articles = re.findall(r"<article>(.*?)</article>", page.html, re.S)
    titles = [re.findall(r"<h4>(.*?)</h4>", article)[0] for article in articles]
    assert len(titles) == 20
    assert [title[-7:] for title in titles] == ["label 0", "label 0", "label 1", "label 1"] * 5
    assert titles == titles[:4] * 5, "the same instances in every pairing"
    for article in articles:
        texts = [re.sub(r"<.*?>", " ", line).split() for line in re.findall(r"<li.*?</li>", article, re.S)]
        assert all(each[0] == "round" and each[2] in ("prover", "verifier") for each in texts)
        assert texts[0][:3] == ["round", "0,", "verifier"]
        verdict = re.search(r"verifier (accepts|rejects|never decides)(?:, which is (right|wrong))?", article)
        assert verdict
        label = int(re.findall(r"label (\d)", article)[0])
        if verdict[2]:
            assert (verdict[2] == "right") == ((verdict[1] == "accepts") == (label == 1))
    shares = [table for name, table in page.tables.items() if re.fullmatch(r"round \d: \d\.\d\d bits", name)]
    assert shares
    for table in shares:
        for column in ("label 0", "label 1"):
            assert sum(value or 0.0 for _, value in table.column(column)) == pytest.approx(1.0, abs=1e-6)


def test_a_dialogue_of_ones_own_is_told_once_it_is_trusted(in_tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "telegram", raising=False)  # another test may have imported the example itself
    examples = Path(__file__).parents[3] / "docs" / "examples"
    (in_tmp_path / "telegram.py").write_text((examples / "telegram.py").read_text())
    config = load_yaml(examples / "telegram.yml") | {"stop": {"after": 2, "unit": "epochs"}, "num_worlds": 8}
    palestra.make_trainer(config, run="run", overrides=["output.recorders=[]", "output.display=quiet"]).fit()
    assert len(re.findall("<article>", write_report([Path("run")], None).read_text())) >= 4
    monkeypatch.setattr("palestra.config.own_modules.read_trusted", set)
    del sys.modules["telegram"]
    text = write_report([Path("run")], None).read_text()
    assert "<article>" not in text
    [told] = re.findall(r"<p[^>]*>(No game[^<]*)", text)
    assert told.startswith("No game is shown: game.protocol is telegram:Telegram, of a module that is not here or that")


def test_bits_of_messages_are_those_of_the_record(tmp_path: Path) -> None:
    """Where the checkpoint is that of the last evaluation, the same games are played again."""
    run = train_dialogue(tmp_path / "adp", "adp", ["best=null"])
    page = Parsed(write_report([run], None))
    last = [record for record in read_records(run / "records.jsonl") if record["kind"] == "evaluation"][-1]
    bits = last["pairs"][0]["scores"]["information/main/0"]
    assert f"round 0: {bits:.2f} bits" in page.tables


def test_points_and_choices_are_read_from_a_state() -> None:
    state = {"points": torch.tensor([[1.0, 2.0, 0.0], [-1.0, -1.0, -1.0]]), "subset": torch.tensor(5)}
    assert board_points(state) == [[1.0, 2.0, 0.0]]
    assert chosen_axes(state) == [0, 2]
