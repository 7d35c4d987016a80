"""The players that come with palestra: who they are, how well they play, and what is refused."""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

import palestra
from palestra.cli import app
from palestra.config import ConfigError, load_yaml
from palestra.kinds.games.stored import open_to_play
from palestra.run import shipped as shipped_runs
from palestra.run.checkpoints import CheckpointError
from palestra.run.shipped import find_run, shipped_configs
from palestra.storage.disk import RunFolderError
from palestra.storage.manifest import MANIFEST


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the shipped run, which is used in its place."""
    shutil.copytree(shipped_runs.FOLDER, tmp_path / "trained")
    monkeypatch.setattr(shipped_runs, "FOLDER", tmp_path / "trained")
    return tmp_path / "trained" / "polyhedra"


@pytest.mark.parametrize("name", ["host", "agent"])
def test_a_shipped_player_is_loaded_by_its_name(name: str) -> None:
    player = palestra.load_player(f"palestra:polyhedra-{name}")
    assert (player.name, player.learning, player.opt_steps) == (name, False, 16_000)
    assert palestra.load_player("palestra:polyhedra", name).opt_steps == 16_000


def test_the_shipped_players_are_those_of_the_shipped_config() -> None:
    path = shipped_configs()["dqn-polyhedra"]
    trained, config = load_yaml(shipped_runs.FOLDER / "polyhedra" / "config.yml"), load_yaml(path)
    assert {key for key in config if trained[key] != config[key]} <= {"output"}


def test_the_shipped_players_are_better_than_scripted_ones() -> None:
    stored = open_to_play("palestra:polyhedra")
    stored.load("latest")

    def rho(host: str, agent: str) -> float:
        return stored.play({"host": host, "agent": agent}, num_games=1000).scores["rho"].value

    for agent in ("random", "greedy"):
        scripted = max(rho(host, agent) for host in ("random", "all_coordinates", "zeillinger"))
        assert rho("host", agent) > 1.1 * scripted
    assert rho("random", "agent") < 0.02 < rho("random", "random")
    for host in ("all_coordinates", "zeillinger", "host"):
        assert rho(host, "agent") < rho(host, "random") / 3


def test_a_shipped_player_sits_in_a_config_and_is_copied_into_the_run(tmp_path: Path) -> None:
    config = load_yaml(shipped_configs()["dqn-polyhedra"])
    config["players"]["host"] = {"from_run": "palestra:polyhedra", "player": "host", "checkpoint": "latest"}
    config |= {"stop": {"after": 8, "unit": "epochs"}, "evaluations": [], "best": None}
    config["output"] |= {"display": "quiet", "recorders": []}
    trainer = palestra.make_trainer(config, run=tmp_path / "run")
    assert trainer.players["host"].opt_steps == 16_000
    trainer.fit()
    assert (tmp_path / "run" / "players" / "host.safetensors").exists()
    config["players"]["host"]["from_run"] = "palestra:chess"
    with pytest.raises(ConfigError, match=r"^players\.host\.from_run: expected a run that palestra ships"):
        palestra.make_trainer(config, run=tmp_path / "other")


def test_commands_ask_and_play_take_the_name() -> None:
    asked = CliRunner().invoke(app, ["ask", "palestra:polyhedra", "--board", "[[0,3,1],[2,2,0]]"])
    assert "host: host (dqn, 16,000 opt steps) chooses" in asked.stdout
    played = CliRunner().invoke(app, ["play", "palestra:polyhedra", "--seed", "3"])
    assert played.exit_code == 0
    assert "one point is left: the host has won" in played.stdout


def test_evaluate_takes_the_name_and_files_results_in_a_folder_of_their_own(folder: Path, in_tmp_path: Path) -> None:
    before = sorted(folder.rglob("*"))
    for number, place in enumerate(["runs/palestra-polyhedra-1", "runs/palestra-polyhedra-2", "mine"]):
        more = ["--run", "mine"] if place == "mine" else ["--pairing", "agent=random"] if number else []
        shown = CliRunner().invoke(app, ["evaluate", "palestra:polyhedra", "--games", "5", *more])
        assert shown.exit_code == 0, shown.output
        assert "at opt step 32000" in shown.stdout
        [file] = (in_tmp_path / place / "evaluations").iterdir()
        assert str(Path(place) / "evaluations" / file.name) in shown.stdout
        pairs = json.loads(file.read_text())["pairs"]
        assert all(pair["games"] + pair["started_over"] == 5 for pair in pairs)
    assert sorted(folder.rglob("*")) == before
    watched = CliRunner().invoke(app, ["evaluate", "palestra:polyhedra", "--watch"])
    assert "--watch: expected a run of your own, got palestra:polyhedra, which trains no more" in watched.output
    refused = CliRunner().invoke(app, ["evaluate", "palestra:chess"])
    assert (refused.exit_code, "palestra:polyhedra" in refused.output) == (2, True)


@pytest.mark.parametrize("name", ["palestra:chess", "palestra:poly", "palestra:", "palestra:../runs"])
def test_an_unknown_name_is_told_the_known_ones(name: str) -> None:
    known = r"expected a run that palestra ships \(palestra:polyhedra\), or one of its players, got "
    with pytest.raises(RunFolderError, match=known):
        find_run(name)
    with pytest.raises(ValueError, match=r"\(host, agent\), got 'rival'"):
        palestra.load_player("palestra:polyhedra-rival")


def test_shipped_players_of_another_format_are_refused(folder: Path) -> None:
    facts = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(facts | {"format": 0}))
    with pytest.raises(RunFolderError, match="is a run of format 0, written by palestra"):
        palestra.load_player("palestra:polyhedra-host")
    (folder / "run.json").write_text(json.dumps(facts))
    manifest = folder / "checkpoints" / "00000001" / MANIFEST
    manifest.write_text(manifest.read_text().replace('"format": ', '"format": 9'))
    with pytest.raises(CheckpointError, match="format"):
        palestra.load_player("palestra:polyhedra-host")
