"""Named evaluations of one run: each with its own seed, game, players and interval.

Covers palestra.commands.evaluate.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import LEARNER, PLAIN

import palestra
from palestra.evaluation.evaluations import Evaluations
from palestra.games.polyhedra.game import PolyhedraGame
from palestra.players import SCRIPTED
from palestra.report.page import write_report
from palestra.report.reading import read_runs
from palestra.storage.records_file import read_records
from palestra.training.stored_training import StoredRun
from tests.games.gym_worlds import cart_pole
from tests.report.parsing import Parsed

MakeConfig = Callable[..., dict[str, Any]]


def named(config: dict[str, Any], name: str, **changes: Any) -> dict[str, Any]:
    """One more evaluation like the first, under another name and with other values."""
    config["evaluations"].append(config["evaluations"][0] | {"name": name} | changes)
    return config


def evaluations_of(run: Path) -> list[dict[str, Any]]:
    return [record for record in read_records(run / "records.jsonl") if record["kind"] == "evaluation"]


def fit(config: dict[str, Any], run: Path) -> palestra.Trainer:
    trainer = palestra.Trainer(config, run=run)
    trainer.fit()
    return trainer


def test_each_evaluation_has_its_own_interval_and_number_of_games(make_config: MakeConfig, tmp_path: Path) -> None:
    config = named(make_config(), "rare", interval={"every": 12, "unit": "opt_steps"}, num_games=5, final_num_games=7)
    named(config, "late", at_start=False, interval={"every": 16, "unit": "opt_steps"})
    fit(config, tmp_path / "run")
    found = [(record["evaluation"], record["opt_steps"]) for record in evaluations_of(tmp_path / "run")]
    assert found == [
        ("main", 0),
        ("rare", 0),
        ("main", 8),
        ("rare", 12),
        ("main", 16),
        ("late", 16),
        ("main", 24),
        ("rare", 24),
        ("late", 24),
    ]
    games = {
        (record["evaluation"], record["opt_steps"]): record["pairs"][0]["games"] + record["pairs"][0]["started_over"]
        for record in evaluations_of(tmp_path / "run")
    }
    assert (games["rare", 12], games["rare", 24], games["main", 16]) == (5, 7, 8)


@pytest.mark.parametrize("at_start", [True, False])
def test_the_players_of_the_start_are_the_best_only_if_they_were_evaluated(
    make_config: MakeConfig, tmp_path: Path, at_start: bool
) -> None:
    config = make_config({"stop.after": 1, "evaluations.0.interval": None, "evaluations.0.at_start": at_start})
    config["best"] = {"evaluation": "main", "pairing": 0, "measure": "tests.evaluation.test_named_evaluations:early"}
    config["best"]["goal"] = "max"
    trainer = fit(config, tmp_path / "run")
    assert [record["opt_steps"] for record in evaluations_of(tmp_path / "run")] == ([0, 1] if at_start else [1])
    assert trainer.checkpoints.stored.best() == (0 if at_start else 1)


def early(pair: dict[str, Any]) -> float:
    """A measure that is best before training; final games are more."""
    return -float(pair["games"] + pair["started_over"])


def test_a_seed_of_its_own_means_other_starts_and_the_same_seed_the_same(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    config = named(named(make_config({"stop.after": 1}), "same", seed=0), "other", seed=1)
    fit(config, tmp_path / "run")
    main, same, other = evaluations_of(tmp_path / "run")[:3]
    assert main["pairs"] == same["pairs"]
    assert main["pairs"] != other["pairs"]


def test_a_scripted_player_under_a_name_of_its_own_is_played_and_shown_once(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config({"stop.after": 1, "players.agent": {"scripted": "choose_first"}, "num_worlds": 4})
    names = [("host", "agent"), ("host", "random"), ("host", "choose_first"), ("random", "choose_first")]
    config["evaluations"][0]["pairings"] = [{"host": host, "agent": agent} for host, agent in names]
    config["best"] = {"evaluation": "main", "pairing": 0, "measure": "rho", "goal": "max"}
    played: list[dict[str, str]] = []
    play = Evaluations._play
    monkeypatch.setattr(Evaluations, "_play", lambda self, *args: (played.append(dict(args[2])), play(self, *args))[1])
    fit(config, tmp_path / "run")
    first, last = evaluations_of(tmp_path / "run")[0], evaluations_of(tmp_path / "run")[-1]
    as_agent, _, bare, _ = first["pairs"]
    assert [(each["host"], each["agent"]) for each in played[:3]] == [names[0], names[1], names[3]]
    assert as_agent["same_as"] == bare["players"]
    assert as_agent["scores"]["rho"] == bare["scores"]["rho"]
    (run,) = read_runs([tmp_path / "run"])
    shown = [tuple(seat.player for seat in pair.seats) for pair, _ in run.evaluated[0].pairs]
    assert shown == names[1:]
    page = Parsed(write_report([tmp_path / "run"], None))
    (score,) = page.tables["The runs, as of their last records; training alone counts as time."].column("last score")
    assert score[1] == last["pairs"][0]["scores"]["rho"]  # of the pairing that `best` names


def test_an_evaluation_may_be_played_in_another_game(make_config: MakeConfig, tmp_path: Path) -> None:
    config = make_config({"stop.after": 1})
    short = config["game"] | {"max_rounds": 1}
    trainer = fit(named(config, "short", game=short), tmp_path / "run")
    assert isinstance(trainer.evaluations.games["short"], PolyhedraGame)
    main, other = evaluations_of(tmp_path / "run")[:2]
    assert all(pair["statistics"]["episode_length"]["max"] == 1 for pair in other["pairs"])
    assert any(pair["statistics"]["episode_length"]["max"] > 1 for pair in main["pairs"])


def test_exploration_plays_no_part_in_evaluations(make_config: MakeConfig) -> None:
    found = []
    for epsilon in (0.0, 1.0):
        exploration = {"name": "epsilon_greedy", "epsilon": {"name": "constant", "value": epsilon}}
        config = make_config({f"players.{name}.algorithm.exploration": exploration for name in ("host", "agent")})
        found.append(palestra.Trainer(config).evaluations.play("main", 30, with_scripted=False))
    assert found[0] == found[1]


def test_another_game_is_seen_through_what_the_runs_game_has_learned(make_config: MakeConfig, tmp_path: Path) -> None:
    normalized = {"observation": {"normalize": {"eps": 1e-8}, "clip": None}}
    changes = {
        "game": cart_pole(**normalized),
        "roles": {"agent": "agent"},
        "players": {"agent": LEARNER},
        "best": None,
    }
    config = make_config(changes | {"evaluations.0.pairings": [{"agent": "agent"}]})
    short = config["game"] | {
        "wrappers": [{"name": "gymnasium.wrappers:TimeLimit", "arguments": {"max_episode_steps": 5}}]
    }
    trainer = fit(named(config, "short", game=short), tmp_path / "run")
    assert trainer.game.state_dict()["observation"]
    assert str(trainer.evaluations.games["short"].state_dict()) == str(trainer.game.state_dict())


def test_a_game_in_which_the_players_do_not_fit_is_one_clear_error(make_config: MakeConfig) -> None:
    config = make_config()
    config = named(config, "wide", game=config["game"] | {"dimension": 4})
    with pytest.raises(palestra.ConfigError) as caught:
        palestra.Trainer(config)
    assert {error.path for error in caught.value.errors} == {"evaluations.1.game"}
    assert caught.value.errors[0].message == (
        "expected a game in which 'host' can play as 'host'; its network q has weights layers.0.weight of shape "
        "(8, 24); there they have shape (8, 30)"
    )


@pytest.mark.parametrize(
    ("changes", "path", "message"),
    [
        ({"name": "main"}, "evaluations.1.name", "expected a different name for each evaluation, got 'main' twice"),
        (
            {"name": "a/b"},
            "evaluations.1.name",
            "expected a string of length <= 180, that matches '^[A-Za-z0-9][A-Za-z0-9_.-]*$', got 'a/b'",
        ),
        (
            {"name": "m" * 181},
            "evaluations.1.name",
            f"expected a string of length <= 180, that matches '^[A-Za-z0-9][A-Za-z0-9_.-]*$', got '{'m' * 76}...",
        ),
        (
            {"game": {"name": "nim", "num_heaps": 2, "max_stones": 3, "observation": PLAIN}},
            "evaluations.1.game.name",
            "expected a game with the roles of the run's game, host, agent, got 'nim' with the roles first, second",
        ),
        (
            {"pairings": [{"host": "hots", "agent": "random"}]},
            "evaluations.1.pairings.0.host",
            f"expected a scripted player ({', '.join(SCRIPTED)}) or a class of your own as 'package.module:Class', "
            "got 'hots'; players of this file: host, agent",
        ),
    ],
)
def test_what_is_wrong_with_an_evaluation_is_told_at_its_place(
    changes: dict[str, Any], path: str, message: str, make_config: MakeConfig
) -> None:
    with pytest.raises(palestra.ConfigError) as caught:
        palestra.Trainer(named(make_config(), changes.pop("name", "more"), **changes))
    [error] = caught.value.errors
    assert error.path == path
    assert error.message == message


def test_best_names_an_evaluation(make_config: MakeConfig, tmp_path: Path) -> None:
    with pytest.raises(palestra.ConfigError, match=r"best\.evaluation: expected one of .*, got 'mane'"):
        palestra.Trainer(make_config({"best.evaluation": "mane"}))
    config = named(make_config({"best.evaluation": "more"}), "more", seed=5)
    trainer = fit(config, tmp_path / "run")
    rho = {
        r["opt_steps"]: r["pairs"][0]["scores"]["rho"]
        for r in evaluations_of(tmp_path / "run")
        if r["evaluation"] == "more"
    }
    stored = StoredRun.open(tmp_path / "run")
    stored.load("best")
    assert trainer.evaluating.best is not None
    assert rho[stored.counters["opt_steps"]] == trainer.evaluating.best.value == max(rho.values())


def test_a_record_tells_the_spread_of_returns_and_lengths_and_the_ratings(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    fit(make_config({"stop.after": 1, "evaluations.0.num_games": 40}), tmp_path / "run")
    record = evaluations_of(tmp_path / "run")[0]
    keys = {"mean", "std", "min", "max", "median", "iqm", "iqm_low", "iqm_high"}
    for pair in record["pairs"]:
        spread = pair["statistics"]
        assert spread["episode_return"].keys() == {"host", "agent"}
        assert spread["episode_length"].keys() == spread["episode_return"]["host"].keys() == keys
        assert spread["episode_return"]["host"]["mean"] == pytest.approx(pair["scores"]["return/host"])
        assert spread["episode_length"]["mean"] == pytest.approx(pair["steps"] / pair["games"])
    assert record["ratings"].keys() == {"host", "agent"}
    assert record["ratings"]["host"].keys() == {"host", "random"}


# ---- players of other runs -------------------------------------------------------------------------------


def test_a_player_of_another_run_may_sit_in_pairings_alone(make_config: MakeConfig, tmp_path: Path) -> None:
    source = fit(make_config(), tmp_path / "source")
    config = make_config({"players.rival": from_run(tmp_path / "source"), "stop.after": 1})
    config["evaluations"][0]["pairings"].append({"host": "rival", "agent": "random"})
    trainer = fit(config, tmp_path / "run")
    pair = evaluations_of(tmp_path / "run")[0]["pairs"][-1]
    assert (pair["players"], pair["learned"]) == ({"host": "rival", "agent": "random"}, [])
    source.evaluations.configs["main"] = trainer.evaluations.configs["main"].model_copy(
        update={"pairings": [{"host": "host", "agent": "random"}]}
    )
    [alone] = source.evaluations.play("main", 8, with_scripted=True)["pairs"]
    assert pair["scores"]["rho"] == alone["scores"]["rho"]
    assert pair["actions"] == alone["actions"]


def test_a_run_keeps_its_players_of_other_runs(make_config: MakeConfig, tmp_path: Path) -> None:
    fit(make_config(), tmp_path / "source")
    config = make_config({"players.rival": from_run(tmp_path / "source")})
    config["evaluations"][0]["pairings"].append({"host": "rival", "agent": "random"})
    trainer = fit(config, tmp_path / "run")
    (tmp_path / "source").rename(tmp_path / "gone")
    again = palestra.Trainer.load(tmp_path / "run").players["rival"]
    for one, other in zip(again.nets.values(), trainer.players["rival"].nets.values(), strict=True):
        for key, value in one.state_dict().items():
            assert torch.equal(value, other.state_dict()[key])
    assert again.opt_steps == 12
    stored = StoredRun.open(tmp_path / "run")
    stored.load("latest")
    path, _ = stored.evaluate("main", None)
    assert json.loads(path.read_text())["pairs"] == evaluations_of(tmp_path / "run")[-1]["pairs"]


def test_a_branch_takes_the_players_that_its_origin_keeps(make_config: MakeConfig, tmp_path: Path) -> None:
    fit(make_config(), tmp_path / "source")
    config = make_config({"players.rival": from_run(tmp_path / "source"), "stop.after": 1})
    config["evaluations"][0]["pairings"].append({"host": "rival", "agent": "random"})
    fit(config, tmp_path / "run")
    shutil.rmtree(tmp_path / "source")
    fit(make_config({"seed": 9}), tmp_path / "source")  # another one has taken its place
    palestra.Trainer.branch(tmp_path / "run/checkpoints/00000000", ["stop.after=2"], run=tmp_path / "branch").fit()
    for file in (tmp_path / "run" / "players").iterdir():
        assert (tmp_path / "branch" / "players" / file.name).read_bytes() == file.read_bytes()
    shutil.rmtree(tmp_path / "source")
    palestra.Trainer.branch(tmp_path / "branch/checkpoints/00000000", ["stop.after=3"], run=tmp_path / "twig").fit()
    assert evaluations_of(tmp_path / "twig")[0]["pairs"][-1] == evaluations_of(tmp_path / "run")[0]["pairs"][-1]


def test_a_kept_player_that_is_damaged_is_told(make_config: MakeConfig, tmp_path: Path) -> None:
    fit(make_config(), tmp_path / "source")
    config = make_config({"players.rival": from_run(tmp_path / "source"), "stop.after": 1})
    config["evaluations"][0]["pairings"].append({"host": "rival", "agent": "random"})
    fit(config, tmp_path / "run")
    weights = tmp_path / "run" / "players" / "rival.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    with pytest.raises(palestra.ConfigError, match=r"rival\.safetensors differs from what was written"):
        palestra.Trainer.load(tmp_path / "run")


def test_a_player_of_another_run_that_meets_nobody_is_told(make_config: MakeConfig) -> None:
    with pytest.raises(palestra.ConfigError, match=r"players\.rival: expected a player that sits in a role"):
        palestra.Trainer(make_config({"players.rival": from_run(Path("source"))}))


def from_run(source: Path) -> dict[str, Any]:
    return {"from_run": str(source), "player": "host", "checkpoint": "latest"}
