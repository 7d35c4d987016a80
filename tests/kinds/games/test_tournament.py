"""`palestra evaluate FILE`: players that do not learn meet each other.

Covers palestra.commands.evaluating.
"""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import PLAIN
from resuming import fit
from typer.testing import CliRunner, Result

from palestra.cli import app
from palestra.config import ConfigError, load_yaml
from palestra.kinds.games.tournament import Tournament, TournamentConfig, read_tournament
from palestra.report.page import write_report
from palestra.run.shipped import shipped_tournaments
from palestra.storage.run_folder import RunFolder
from palestra.training.stored_training import StoredRun
from tests.complete_models import find_defaults, find_undescribed
from tests.games.gym_worlds import cart_pole
from tests.sweeps.made_runs import tree

MakeConfig = Callable[..., dict[str, Any]]
Write = Callable[..., Path]

pytestmark = pytest.mark.usefixtures("in_tmp_path")

EXECUTION = {"device": "cpu", "num_threads": 1, "kernel": "numba", "step_within_s": None}

OWN = """
from palestra.players.scripted import ScriptedPlayerConfig, ScriptedPolicy


class Agent(ScriptedPolicy):
    def choose(self, view, legal, keys):
        return legal.byte().argmax(dim=1)


class NthConfig(ScriptedPlayerConfig):
    last: bool


class Nth(ScriptedPolicy):
    Config = NthConfig

    def choose(self, view, legal, keys):
        first = legal.byte().argmax(dim=1)
        return legal.shape[1] - 1 - legal.flip(1).byte().argmax(dim=1) if self.config.last else first
"""


@pytest.fixture
def write(make_config: MakeConfig, tmp_path: Path) -> Write:
    """Writes cup.yml, a tournament on the boards of the tiny runs, with some keys changed."""

    def write_file(**changes: Any) -> Path:
        config = {
            "seed": 3,
            "game": make_config()["game"],
            "players": {},
            "pairings": [{"host": ["zeillinger", "random"], "agent": ["random", "choose_first"]}],
            "num_games": 30,
            "max_rounds": 20,
            "num_worlds": 4,
            "info": [],
            "execution": EXECUTION,
        }
        (tmp_path / "cup.yml").write_text(yaml.safe_dump(config | changes))
        return tmp_path / "cup.yml"

    return write_file


def palestra(*arguments: object, code: int = 0) -> Result:
    result = CliRunner().invoke(app, [*map(str, arguments)])
    assert result.exit_code == code, result.output
    return result


def record_of(folder: Path) -> dict[str, Any]:
    (line,) = (folder / "records.jsonl").read_text().splitlines()
    record: dict[str, Any] = json.loads(line)
    del record["clock"]
    return record


def test_everyone_meets_everyone_and_the_folder_holds_config_record_and_report(write: Write) -> None:
    shown = palestra("evaluate", write()).output
    folder = Path("runs/cup-1")
    assert [pair["players"] for pair in record_of(folder)["pairs"]] == [
        {"host": "zeillinger", "agent": "random"},
        {"host": "zeillinger", "agent": "choose_first"},
        {"host": "random", "agent": "random"},
        {"host": "random", "agent": "choose_first"},
    ]
    assert all(pair["games"] + pair["started_over"] == 30 for pair in record_of(folder)["pairs"])
    assert load_yaml(folder / "config.yml") == load_yaml(write())
    assert sorted(path.name for path in folder.iterdir()) == [
        "config.yml",
        "evaluations",
        "lock",
        "records.jsonl",
        "report.html",
        "run.json",
    ]
    ratings = record_of(folder)["ratings"]
    assert ratings["host"].keys() == {"zeillinger", "random"}
    lines = [line.split() for line in shown.splitlines()]
    assert ["host", "\\", "agent", "random", "choose_first"] in lines
    assert ["zeillinger", "host", f"{ratings['host']['zeillinger']:+.0f}"] in lines
    assert shown.splitlines()[-1] == "4 pairings: runs/cup-1/report.html"


def test_the_same_seed_gives_the_same_bits_and_another_one_others(write: Write) -> None:
    for arguments in ([], [], ["seed=4"]):
        palestra("evaluate", write(), *arguments)
    first, second, other = (record_of(Path("runs") / f"cup-{number}") for number in (1, 2, 3))
    assert first == second
    assert first["pairs"] != other["pairs"]


def test_overrides_games_and_pairings_come_before_the_file(write: Write) -> None:
    palestra(
        "evaluate", write(), "max_rounds=1", "--games", 5, "--pairing", "host=random,agent=greedy", "--run", "here"
    )
    [pair] = record_of(Path("here"))["pairs"]
    assert pair["players"] == {"host": "random", "agent": "greedy"}
    assert pair["games"] + pair["started_over"] == 5
    assert pair["statistics"]["episode_length"]["max"] == 1
    assert "here exists already" in palestra("evaluate", write(), "--run", "here", code=2).stderr


def test_players_of_runs_play_as_in_their_own_runs(write: Write, make_config: MakeConfig, tmp_path: Path) -> None:
    fit(tmp_path / "source", make_config())
    players = {
        name: {"from_run": str(tmp_path / "source"), "player": "host", "checkpoint": checkpoint}
        for name, checkpoint in (("old", "0"), ("new", "latest"))
    }
    file = write(players=players, pairings=[{"host": ["old", "new"], "agent": "random"}])
    palestra("evaluate", file)
    stored = StoredRun.open(tmp_path / "source")
    for pair, checkpoint in zip(record_of(Path("runs/cup-1"))["pairs"], ("0", "latest"), strict=True):
        stored.load(checkpoint)
        own = stored.play({"agent": "random"}, num_games=30, seed=3, max_rounds=20)
        assert (pair["scores"]["rho"], pair["actions"]) == (own.scores["rho"].value, own.record["actions"])


def test_as_many_games_are_played_as_are_asked_for(make_config: MakeConfig, tmp_path: Path) -> None:
    """Also of a run without evaluations: then as many as `palestra evaluate` plays there; and never 0."""
    fit(tmp_path / "run", make_config({"evaluations": [], "best": None}))
    stored = StoredRun.open(tmp_path / "run")
    stored.load("latest")
    assert stored.play({"host": "zeillinger", "agent": "random"}).num_games > 900  # without those over at their start
    assert stored.play({"host": "zeillinger", "agent": "random"}, num_games=20, max_rounds=3).lengths["max"] <= 3
    for asked in ({"num_games": 0}, {"max_rounds": 0}):
        with pytest.raises(ConfigError, match=f"^{next(iter(asked))}: expected an integer >= 1, got 0"):
            stored.play({}, **asked)


def test_players_of_ones_own_meet_ours(write: Write, tmp_path: Path) -> None:
    (tmp_path / "own_players.py").write_text(OWN)
    players = {"last": {"scripted": "own_players:Nth", "last": True}}
    agents = ["own_players:Agent", "choose_first", "last", "choose_last"]
    palestra("evaluate", write(players=players, pairings=[{"host": "zeillinger", "agent": agents}]))
    first, ours, last, our_last = (pair["scores"]["rho"] for pair in record_of(Path("runs/cup-1"))["pairs"])
    assert first == ours != last == our_last
    facts = json.loads(Path("runs/cup-1/run.json").read_text())
    assert facts["user_classes"].keys() == {"own_players:Agent", "own_players:Nth"}


def test_a_game_of_one_role_and_one_of_two_seats_for_the_same_player(write: Write) -> None:
    palestra("evaluate", write(game=cart_pole(), pairings=[{"agent": ["random", "choose_first"]}]))
    returns = [pair["scores"]["return/agent"] for pair in record_of(Path("runs/cup-1"))["pairs"]]
    assert returns[0] > returns[1]
    names = ["random", "nim_optimal", "choose_last"]
    nim = {"name": "nim", "num_heaps": 3, "max_stones": 5, "observation": PLAIN}
    palestra("evaluate", write(game=nim, pairings=[{"first": names, "second": names[:]}], num_games=60))
    ratings = record_of(Path("runs/cup-2"))["ratings"]
    assert max(ratings["first"], key=ratings["first"].get) == "nim_optimal"
    page = write_report([Path("runs/cup-2")], None).read_text()
    for each in record_of(Path("runs/cup-2"))["overall_ratings"]["players"].values():
        assert f"{each['low']:+.0f} to {each['high']:+.0f}" in page


def test_the_report_is_about_the_games_alone(write: Write) -> None:
    palestra("evaluate", write())
    page = write_report([Path("runs/cup-1")], None).read_text()
    assert "Who meets whom" in page
    assert "Ratings" in page
    for text in ("Warning", "opt step", "learns", "before is", "Where the time went"):
        assert text not in page


def test_a_shipped_tournament_is_played_checked_and_printed_by_name() -> None:
    assert list(shipped_tournaments()) == ["tournament-polyhedra"]
    palestra("evaluate", "tournament-polyhedra", "--games", 3)
    assert record_of(Path("runs/tournament-polyhedra-1"))["pairs"]
    assert palestra("check", "tournament-polyhedra").output == "tournament-polyhedra: complete and consistent\n"
    printed = palestra("config", "tournament-polyhedra", "num_games=7").output
    assert load_yaml(printed) == load_yaml(shipped_tournaments()["tournament-polyhedra"]) | {"num_games": 7}


def test_no_key_has_a_default_and_each_is_described() -> None:
    assert find_defaults(TournamentConfig) == []
    assert find_undescribed(TournamentConfig) == []


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        (
            {"pairings": [{"host": ["zeillinger", "nobody"], "agent": "random"}]},
            "pairings.0.host: expected a scripted player",
        ),
        (
            {"pairings": [{"host": "zeillinger"}]},
            "pairings.0.agent: expected a scripted player, or one of the players of this file: none, but the key is "
            "missing\n",
        ),
        (
            {"pairings": []},
            "pairings: expected a list of length >= 1, each item a mapping",
        ),
        (
            {"pairings": [{"host": "zeillinger", "agent": "zeillinger"}]},
            "pairings.0.agent: expected the role host for the player 'zeillinger', got 'agent'",
        ),
        (
            {"players": {"idle": {"from_run": "runs/x", "player": "host", "checkpoint": "best"}}},
            "players.idle: expected a player that sits in a pairing, got one that does not\n",
        ),
        (
            {"execution": EXECUTION | {"step_within_s": 5.0}},
            "execution.step_within_s: expected null, because no game here is an environment, got 5\n",
        ),
        ({"info": ["x"]}, "info: expected [], because the game 'polyhedra' has no info fields, got x\n"),
        ({"num_games": 0}, "num_games: expected an integer >= 1, got 0\n"),
        ({"stop": 3}, "stop: unknown key; known keys: seed, game, players, pairings, num_games, max_rounds,"),
        (
            {
                "players": {"lost": {"from_run": "nowhere", "player": "host", "checkpoint": "best"}},
                "pairings": [{"host": "lost", "agent": "random"}],
            },
            "players.lost.from_run: nowhere is not a run",
        ),
        (
            {
                "game": cart_pole(observation={"normalize": {"eps": 1e-8}, "clip": None}),
                "pairings": [{"agent": "random"}],
            },
            "game.observation.normalize: expected null, because where nobody learns there are no running statistics",
        ),
    ],
)
def test_what_is_wrong_is_told_at_its_place(changes: dict[str, Any], error: str, write: Write) -> None:
    for command in ("evaluate", "check"):
        assert palestra(command, write(**changes), code=2).stderr.startswith(error), palestra(
            command, write(**changes), code=2
        ).stderr
    assert not Path("runs").exists()


def test_a_player_whose_observations_were_normalised_is_refused(
    write: Write, make_config: MakeConfig, tmp_path: Path
) -> None:
    normalized = cart_pole(observation={"normalize": {"eps": 1e-8}, "clip": None})
    config = make_config(
        {"game": normalized, "roles": {"agent": "agent"}, "evaluations": [], "best": None, "stop.after": 1}
    )
    config["players"] = {"agent": config["players"]["agent"]}
    fit(tmp_path / "source", config)
    player = {"from_run": str(tmp_path / "source"), "player": "agent", "checkpoint": "latest"}
    file = write(game=cart_pole(), players={"pole": player}, pairings=[{"agent": "pole"}])
    assert palestra("evaluate", file, code=2).stderr == (
        "players.pole.from_run: expected a player of a run with the game.observation of this file, got another one\n"
    )


def test_commands_for_runs_say_what_a_tournament_is(write: Write, make_config: MakeConfig, tmp_path: Path) -> None:
    file = write()
    palestra("evaluate", file)
    told = "expected a run in which a player learns, got a tournament: runs/cup-1\n"
    for command in ("evaluate", "verify"):
        assert palestra(command, "runs/cup-1", code=2).stderr.endswith(told)
    assert palestra("train", file, "--quiet", code=2).stderr.startswith(
        "expected a config in which a player learns, got that of a tournament; palestra evaluate FILE plays it"
    )
    assert palestra("train", "tournament-polyhedra", "--quiet", code=2).stderr == (
        "tournament-polyhedra: this is a tournament; to play it: palestra evaluate tournament-polyhedra\n"
    )
    training = tmp_path / "training.yml"
    training.write_text(yaml.safe_dump(make_config()))
    error = palestra("evaluate", training, code=2).stderr
    assert error.startswith(f"{training}: expected a tournament, in which nobody learns, got a config that trains")
    error = palestra("evaluate", file, "--watch", code=2).stderr
    assert error == f"--watch: expected no such option, because {file} is a tournament, got --watch\n"


KILLED: dict[str, list[str]] = {  # what is there of a tournament that was killed
    "as it made its folder": ["evaluations/"],
    "as it had its folder": ["checkpoints/", "evaluations/", "lock"],
    "before its config": ["evaluations/", "lock", ".config.yml.7.tmp"],
    "before run.json": ["evaluations/", "lock", "config.yml", ".run.json.7.tmp"],
    "as it played": ["evaluations/", "lock", "config.yml", "run.json", "records.jsonl"],
}


@pytest.mark.parametrize("moment", KILLED)
def test_one_that_was_killed_is_played_in_its_folder_to_the_same_bits(moment: str, write: Write) -> None:
    palestra("evaluate", write())
    whole, again = Path("runs/cup-1"), Path("again")
    for name in KILLED[moment]:
        if name.endswith("/"):
            (again / name).mkdir(parents=True)
        elif name in ("config.yml", "run.json"):
            (again / name).write_bytes((whole / name).read_bytes())
        else:
            (again / name).write_text('{"kind": "evaluation", "tor')
    palestra("evaluate", write(), "--run", "again")
    assert record_of(again) == record_of(whole)
    assert json.loads((again / "run.json").read_text())["format"]
    if moment == "as it played":
        (again / "records.jsonl").write_text('{"kind": "evaluation", "tor')
        palestra("resume", again)
        assert record_of(again) == record_of(whole)


def test_one_that_is_over_or_in_use_and_any_other_folder_stay_as_they_are(write: Write) -> None:
    palestra("evaluate", write(), "--run", "cup")
    before = tree(Path())
    over = "cup holds this tournament, played to its end; to see it: palestra report cup\n"
    assert palestra("evaluate", write(), "--run", "cup", code=2).stderr == over
    assert palestra("resume", "cup", code=2).stderr == over
    other = "cup exists already, and does not hold this tournament\n"
    assert palestra("evaluate", write(), "seed=4", "--run", "cup", code=2).stderr == other
    assert tree(Path()) == before
    for content in (b"\0" + Path("cup/records.jsonl").read_bytes(), b'{"kind": "training"}\n'):
        Path("cup/records.jsonl").write_bytes(content)
        assert "cup" in palestra("resume", "cup", code=2).stderr
        assert Path("cup/records.jsonl").read_bytes() == content, "a record that is damaged, or of something else"
    Path("cup/records.jsonl").unlink()
    with RunFolder(Path("cup")).lock():
        before = tree(Path())
        for command in (("evaluate", write(), "--run", "cup"), ("resume", "cup")):
            assert f"cup is in use by process {os.getpid()}; " in palestra(*command, code=2).stderr
        assert tree(Path()) == before
    for name in ("notes.txt", "evaluations/notes.txt", "run.json", "records.jsonl"):
        file = Path("mine") / name
        file.parent.mkdir(parents=True)
        file.write_text("mine")
        told = palestra("evaluate", write(), "--run", "mine", code=2).stderr
        assert told == "mine exists already, and does not hold this tournament\n"
        assert tree(Path("mine"))[name] == b"mine"
        shutil.rmtree("mine")


def test_a_strangers_tournament_imports_nothing_that_is_not_trusted(write: Write, tmp_path: Path) -> None:
    (tmp_path / "strange.py").write_text("open('harmed', 'w')\n" + OWN)
    file = write(pairings=[{"host": "zeillinger", "agent": "strange:Agent"}])
    Path("cup").mkdir()
    Path("cup/config.yml").write_text(file.read_text())
    assert "is not trusted, and was not imported" in palestra("resume", "cup", code=2).stderr
    assert not Path("harmed").exists()
    palestra("resume", "cup", "--trust")
    assert record_of(Path("cup"))["pairs"]


def test_an_own_loop_may_play_one_from_python(write: Write, tmp_path: Path) -> None:
    tournament = Tournament(read_tournament(write(), ["num_games=4"]))
    tournament.begin(tmp_path / "there", "cup")
    path, record = tournament.evaluate("tournament", None)
    assert path == tmp_path / "there" / "records.jsonl"
    assert len(record["pairs"]) == 4
