"""`palestra evaluate RUN key=value --pairing ...` and `StoredRun.play`: other games, other players, other numbers.

Covers palestra.run.stored, palestra.kinds.games.stored.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from resuming import fit
from typer.testing import CliRunner, Result

from palestra.cli import app
from palestra.config import ConfigError
from palestra.report.page import write_report
from palestra.report.reading import read_moments
from palestra.run.changes import Changes
from palestra.training.stored_training import StoredRun

MakeConfig = Callable[..., dict[str, Any]]


SETS = {"name": "newton_sets", "point_widths": [8], "head_widths": [8]}

OWN = """
from palestra.players.scripted import ScriptedPolicy


class Agent(ScriptedPolicy):
    def choose(self, view, legal, keys):
        return legal.byte().argmax(dim=1)
"""


@pytest.fixture
def run(make_config: MakeConfig, tmp_path: Path) -> Path:
    """Of networks that take boards with any number of points."""
    nets = {f"players.{name}.algorithm.net": SETS for name in ("host", "agent")}
    fit(tmp_path / "run", make_config(nets))
    return tmp_path / "run"


def evaluate(*arguments: object, code: int = 0) -> Result:
    result = CliRunner().invoke(app, ["evaluate", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result


def filed(run: Path) -> dict[str, Any]:
    return {path.name: json.loads(path.read_text()) for path in (run / "evaluations").glob("*.json")}


def test_a_network_of_sets_plays_on_larger_boards(run: Path) -> None:
    records = (run / "records.jsonl").read_bytes()
    evaluate(run)
    plain = filed(run)["main-opt-step-24.json"]
    evaluate(run, "game.max_num_points=40")
    [(name, larger)] = [(name, record) for name, record in filed(run).items() if "changes" in record]
    assert larger["changes"] == ["game.max_num_points=40"]
    assert larger["pairs"][0]["scores"]["rho"] != plain["pairs"][0]["scores"]["rho"]
    assert larger["pairs"][0]["players"] == plain["pairs"][0]["players"]
    evaluate(run, "game.max_num_points=40")  # the same question: the same bits in the same file
    assert filed(run) == {"main-opt-step-24.json": plain, name: larger}
    assert (run / "records.jsonl").read_bytes() == records


def test_on_boards_of_the_size_of_training_a_player_that_was_fitted_plays_as_ever(run: Path) -> None:
    stored = StoredRun.open(run)
    stored.load("latest")
    boards = [[[1, 3, 0], [2, 2, 5], [4, 0, 1], [0, 5, 2]]]
    own = stored.play({}, game={"initial_points": boards})
    larger = stored.play({}, game={"initial_points": boards, "max_num_points": 40})
    assert own == larger


def test_stand_ins_play_with_the_weights_of_the_loaded_checkpoint(run: Path) -> None:
    stored, played = StoredRun.open(run), []
    stored.change_evaluations(Changes(["game.max_num_points=40"], []))
    for checkpoint in ("0", "latest"):
        stored.load(checkpoint)
        played.append(stored.evaluations.play("main", 30, with_scripted=False))
    afresh = StoredRun.open(run)
    afresh.load("latest")
    afresh.change_evaluations(Changes(["game.max_num_points=40"], []))
    assert afresh.evaluations.play("main", 30, with_scripted=False) == played[1] != played[0]


def test_a_pairing_takes_the_place_of_those_of_the_config(run: Path) -> None:
    shown = evaluate(run, "--pairing", "host=zeillinger,agent=agent", "--pairing", "agent=random", "--games", 5).output
    assert "2 pairings at opt step 24" in shown
    [record] = filed(run).values()
    assert [pair["players"] for pair in record["pairs"]] == [
        {"host": "zeillinger", "agent": "agent"},
        {"host": "host", "agent": "random"},
    ]
    assert [pair["games"] + pair["started_over"] for pair in record["pairs"]] == [5, 5]
    assert record["changes"] == ["--pairing host=zeillinger,agent=agent", "--pairing agent=random"]


def test_a_run_without_evaluations_plays_a_pairing_by_numbers_that_are_told(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    run = tmp_path / "bare"
    fit(run, make_config({"evaluations": [], "best": None}))
    told = evaluate(run, code=2).output
    remedy = "--pairing host=host,agent=agent"
    assert told == f"evaluations: expected at least one in the run's config, got []; {remedy} plays one\n"
    shown = evaluate(run, *remedy.split()).output
    assert "the run has no evaluations: 1000 games (--games), each of at most 1000 rounds" in shown
    [(name, record)] = filed(run).items()
    assert name.startswith("asked-opt-step-24-")
    [pair] = record["pairs"]
    assert pair["games"] + pair["started_over"] == 1000
    shown = evaluate(run, "--pairing", "agent=random", "--games", 5, "evaluations.0.max_rounds=2").output
    assert "5 games (--games), each of at most 2 rounds" in shown
    [short] = [record for other, record in filed(run).items() if other != name]
    assert short["pairs"][0]["players"] == {"host": "host", "agent": "random"}
    assert short["changes"] == ["evaluations.0.max_rounds=2", "--pairing agent=random"]


def test_a_player_of_ones_own_sits_in_a_pairing(run: Path, in_tmp_path: Path) -> None:
    (in_tmp_path / "own_agents.py").write_text(OWN)
    evaluate(run, "--pairing", "agent=own_agents:Agent", "--pairing", "agent=choose_first")
    [record] = filed(run).values()
    own, ours = record["pairs"]
    assert own["players"] == {"host": "host", "agent": "own_agents:Agent"}
    assert own["scores"]["rho"] == ours["scores"]["rho"]
    stored = StoredRun.open(run)
    stored.load("latest")
    assert stored.play({"agent": "own_agents:Agent"}).scores["rho"].value == own["scores"]["rho"]


def test_overrides_change_one_evaluation_and_the_other_keeps_its_file(make_config: MakeConfig, tmp_path: Path) -> None:
    config = make_config({"stop.after": 1})
    config["evaluations"].append(config["evaluations"][0] | {"name": "other"})
    fit(tmp_path / "run", config)
    evaluate(tmp_path / "run", "evaluations.0.final_num_games=3")
    names = sorted(filed(tmp_path / "run"))
    assert len(names) == 2
    assert names[0].startswith("main-opt-step-1-")
    assert names[1] == "other-opt-step-1.json"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (
            ["game.dimension=4"],
            "game: expected a game in which 'host' can play as 'host'; its network q has weights "
            "point_layers.0.weight of shape (8, 3); there they have shape (8, 4)",
        ),
        (
            ["--pairing", "host=agent"],
            "--pairing host: expected a player that can play as 'host', got 'agent'; its network q has weights",
        ),
        (["--pairing", "guest=host"], "--pairing guest: unknown key; the known roles: host, agent"),
        (["--pairing", "host"], "--pairing: expected role=player,role=player, such as host=zeillinger, got 'host'"),
        (["--pairing", "host=hots"], "--pairing host: expected a scripted player"),
        (["num_worlds=3"], "num_worlds: no such key, and none like it; at the top there are game, evaluations"),
        (["evaluations.0.num_games=0"], "evaluations.0.num_games: expected an integer >= 1, got 0"),
        (["game.max_num_points=x"], "game.max_num_points: expected"),
    ],
)
def test_what_does_not_fit_is_one_clear_error(arguments: list[str], error: str, run: Path) -> None:
    result = evaluate(run, *arguments, code=2)
    assert result.stderr.startswith(error), result.stderr
    assert filed(run) == {}


def test_a_checkpoint_is_watched_with_changes_too(run: Path) -> None:
    shown = evaluate(run, "--watch", "--pairing", "agent=choose_first", "--games", 4).output
    assert "checkpoint 00000000: evaluation main at opt step 0: host vs choose_first" in shown
    assert evaluate(run, "--watch", "--pairing", "agent=choose_first", "--games", 4).output == shown
    assert len(filed(run)) == 4


def test_the_report_says_what_was_changed_and_comparisons_leave_it_out(run: Path) -> None:
    evaluate(run, "game.max_num_points=40", "--games", 5)
    page = write_report([run], None).read_text()
    assert "at opt step 24, with game.max_num_points=40." in page
    text = (run / "records.jsonl").read_text().splitlines()
    (run / "records.jsonl").write_text("".join(f"{line}\n" for line in text if '"evaluation"' not in line))
    [moment] = read_moments([run], "latest")
    assert moment.run.evaluated == ()


def test_play_gives_the_result_as_an_object(run: Path) -> None:
    stored = StoredRun.open(run)
    stored.load("best")
    played = stored.play({"agent": "random"}, num_games=40, seed=3)
    assert played == stored.play({"host": "host", "agent": "random"}, num_games=40, seed=3, max_rounds=10)
    assert played != stored.play({"agent": "random"}, num_games=40, seed=4)
    assert played.num_games + played.record["started_over"] == 40
    assert played.scores["rho"].low < played.scores["rho"].value < played.scores["rho"].high
    assert (
        played.scores["return/host"].low
        <= played.scores["return/host"].value
        == played.return_statistics["host"]["mean"]
    )
    assert played.lengths["max"] <= 8
    assert played.won["host"] + played.won["agent"] == 1
    assert filed(run) == {}
    short = stored.play({}, game=stored.config.game.model_dump() | {"max_rounds": 1})
    assert short.lengths["max"] == 1


def test_play_says_what_does_not_fit(run: Path) -> None:
    stored = StoredRun.open(run)
    with pytest.raises(ConfigError, match=r"^game: expected a game in which 'host' can play as 'host'; its network"):
        stored.play({}, game={"dimension": 4})
    with pytest.raises(ConfigError, match=r"^game\.dimension: expected .*, got 0"):
        stored.play({}, game={"dimension": 0})
    with pytest.raises(ConfigError, match=r"^pairing\.agent: expected the role host for the player 'zeillinger'"):
        stored.play({"agent": "zeillinger"})
