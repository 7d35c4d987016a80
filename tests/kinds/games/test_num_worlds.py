"""Numbers of worlds that differ between the players of a run."""

import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from resuming import assert_same_bits, fit, pointed_at
from typer.testing import CliRunner

import palestra
from palestra.cli import app
from palestra.config import ConfigError, check, load_yaml
from palestra.config import render as rendered
from palestra.kinds.games.config import RunConfig
from palestra.kinds.games.trainer import Trainer
from palestra.run.branching import extend
from tests.forked import run as run_forked

MakeConfig = Callable[..., dict[str, Any]]
TWO = {"host": 8, "agent": 3}
KILLED_IN_THE_MIDDLE = """
import os, signal, sys
from palestra.cli import main
from palestra.kinds.games.trainer import Trainer

after_step = Trainer.after_step

def killing(trainer, player, metrics):
    after_step(trainer, player, metrics)
    if trainer.opt_steps == 13:
        os.kill(os.getpid(), signal.SIGKILL)

Trainer.after_step = killing
main()
"""


def shell(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == code, f"{result.output}\n{result.exception!r}"
    return result.output


def test_each_player_plays_in_its_own_number_of_worlds(make_config: MakeConfig, tmp_path: Path) -> None:
    sizes: dict[str, set[int]] = {"host": set(), "agent": set()}
    trainer = Trainer(make_config({"num_worlds": TWO}), run=tmp_path / "run")
    collect = trainer.fused_game.collect

    def collecting(worlds: Any, roles: Any, num_rounds: int) -> Any:
        sizes[roles[0]].add(len(worlds.keys))
        return collect(worlds, roles, num_rounds)

    trainer.fused_game.collect = collecting
    trainer.fit()
    assert sizes == {"host": {8}, "agent": {3}}
    host, agent = trainer.players["host"], trainer.players["agent"]
    assert host.env_steps / 8 == agent.env_steps / 3 > 1
    assert trainer.env_steps == host.env_steps + agent.env_steps
    assert trainer.players["agent"].replay_buffer.num_added % 3 == 0  # type: ignore[union-attr]


def test_equal_numbers_train_to_the_bits_of_one_number(make_config: MakeConfig, tmp_path: Path) -> None:
    fit(tmp_path / "one", make_config())
    fit(tmp_path / "each", make_config({"num_worlds": {"host": 8, "agent": 8}}))
    one, each = (
        json.loads((tmp_path / name / "records.jsonl").read_text().splitlines()[-1]) for name in ("one", "each")
    )
    assert {**one, "clock": None} == {**each, "clock": None}


@pytest.mark.parametrize(
    ("num_worlds", "lines"),
    [
        (
            {"host": 8},
            ["num_worlds.agent: expected an integer >= 1 for each player that learns, but the key is missing"],
        ),
        (TWO | {"bob": 1}, ["num_worlds.bob: unknown key; the players that learn are host, agent"]),
        (
            {"host": 0, "agent": 2.5},
            [
                "num_worlds.host: expected an integer >= 1, got 0",
                "num_worlds.agent: expected an integer >= 1, got the float 2.5",
            ],
        ),
        (
            "8",
            [
                "num_worlds: expected an integer >= 1, or a mapping with one for each learning player, "
                "got the string '8'"
            ],
        ),
        (-1, ["num_worlds: expected an integer >= 1, got -1"]),
    ],
)
def test_wrong_numbers_are_told_one_per_line(num_worlds: Any, lines: list[str], make_config: MakeConfig) -> None:
    with pytest.raises(ConfigError) as raised:
        check(make_config({"num_worlds": num_worlds}), RunConfig)
    assert str(raised.value).splitlines() == lines


def test_a_player_that_does_not_learn_has_no_number(make_config: MakeConfig) -> None:
    config = make_config({"num_worlds": TWO, "players.agent": {"scripted": "random"}, "best": None})
    with pytest.raises(ConfigError, match=r"^num_worlds\.agent: 'agent' does not learn, leave it out; .* are host$"):
        check(config, RunConfig)
    assert check(config | {"num_worlds": {"host": 5}}, RunConfig).worlds_of("host") == 5


def test_a_printed_config_reads_back_equal(make_config: MakeConfig) -> None:
    config = check(make_config({"num_worlds": TWO}), RunConfig)
    text = rendered(config, RunConfig)
    assert "num_worlds:\n  host: 8\n  agent: 3\n" in text
    assert check(load_yaml(text), RunConfig) == config


def test_what_a_roll_out_brings_is_counted_for_each_player(make_config: MakeConfig, in_tmp_path: Path) -> None:
    """The replay buffers hold 40 rows."""
    (in_tmp_path / "tiny.yml").write_text(json.dumps(make_config({"num_worlds": {"host": 8, "agent": 100}})))
    refused = shell("check", "tiny.yml", code=2)
    assert refused.startswith("players.agent.algorithm.replay_buffer.capacity: expected at least ")
    assert len(refused.splitlines()) == 1
    assert shell("train", "tiny.yml", "--quiet", code=2) == refused
    assert "complete and consistent" in shell("check", "tiny.yml", "num_worlds.agent=4")


def test_overrides_change_one_number_or_all(make_config: MakeConfig, in_tmp_path: Path) -> None:
    each, one = make_config({"num_worlds": TWO}), make_config()
    read = [Trainer(each, overrides=[override]).config for override in ("num_worlds.host=5", "num_worlds=4")]
    assert [config.num_worlds for config in read] == [{"host": 5, "agent": 3}, 4]
    assert Trainer(one, overrides=["num_worlds={host: 2, agent: 6}"]).config.worlds_of("agent") == 6
    with pytest.raises(
        ConfigError, match=r"^num_worlds\.host: no such key; did you mean 'num_worlds', which is 8 here"
    ):
        Trainer(one, overrides=["num_worlds.host=64"])
    with pytest.raises(
        ConfigError, match=r"^host: expected a key in full.*: num_worlds\.host, roles\.host, players\.h"
    ):
        Trainer(each, overrides=["host=64"])


# ---- runs that go on -----------------------------------------------------------------------------------


@pytest.fixture
def run(make_config: MakeConfig, tmp_path: Path) -> Path:
    fit(tmp_path / "run", make_config({"num_worlds": TWO}))
    return tmp_path / "run"


def test_an_extended_run_learns_what_a_longer_one_learns(run: Path, make_config: MakeConfig, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^num_worlds\.host: expected 8, as before, got 9"):
        extend(run, ["stop.after=40", "num_worlds.host=9"])
    extend(run, ["stop.after=40"])
    fit(run)
    fit(tmp_path / "longer", make_config({"num_worlds": TWO, "stop.after": 40}))
    found = [pointed_at(path, "latest")["counters"] for path in (run, tmp_path / "longer")]  # type: ignore[index]
    assert found[0] == found[1]


@pytest.mark.parametrize("overrides", [["num_worlds=4"], ["num_worlds.agent=4"], ["num_worlds={host: 8, agent: 4}"]])
def test_a_branch_keeps_each_players_number(run: Path, overrides: list[str], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^num_worlds(\.agent)?: expected .*, on which the state in .* depends, got"):
        Trainer.branch(run / "checkpoints/00000001", overrides, run=tmp_path / "new")


def test_a_branch_may_write_the_same_numbers_in_another_way(make_config: MakeConfig, tmp_path: Path) -> None:
    fit(tmp_path / "one", make_config())
    origin = tmp_path / "one/checkpoints/00000001"
    branched = Trainer.branch(origin, ["num_worlds={host: 8, agent: 8}"], run=tmp_path / "new")
    branched.fit()
    Trainer.branch(origin, [], run=tmp_path / "same").fit()
    found, expected = (pointed_at(tmp_path / name, "latest") for name in ("new", "same"))
    assert found["rows"] == expected["rows"]  # type: ignore[index]


@pytest.mark.parametrize(("freeze", "replace"), [(["agent"], {}), ([], {"agent": "random"})])
def test_the_number_of_a_player_that_learns_no_more_goes(
    freeze: list[str], replace: dict[str, str], run: Path, tmp_path: Path
) -> None:
    new = tmp_path / "new"
    branched = Trainer.branch(run / "checkpoints/00000001", ["best=null"], run=new, freeze=freeze, replace=replace)
    branched.fit()
    assert palestra.load_config(new / "config.yml").num_worlds == {"host": 8}
    assert Trainer.load(new).players["host"].worlds is not None
    assert branched.players["host"].env_steps % 8 == 0
    assert ("num_worlds.agent", 3, None) in [
        (change["key"], change["before"], change["after"])
        for change in map(json.loads, (new / "changes.jsonl").read_text().splitlines())
    ]


def test_a_player_replaced_by_hand_must_leave_the_mapping(run: Path, tmp_path: Path) -> None:
    origin, scripted = run / "checkpoints/00000001", "players.agent={scripted: random}"
    with pytest.raises(ConfigError, match=r"^num_worlds\.agent: 'agent' does not learn, leave it out"):
        Trainer.branch(origin, [scripted, "best=null"], run=tmp_path / "new")
    Trainer.branch(origin, [scripted, "best=null", "num_worlds={host: 8}"], run=tmp_path / "new").fit()
    with pytest.raises(ConfigError, match=r"^num_worlds\.host: expected 8, on which the state .* depends, got 5$"):
        Trainer.branch(origin, [scripted, "best=null", "num_worlds={host: 5}"], run=tmp_path / "newer")


def test_evaluations_of_a_stored_run_are_those_of_training(run: Path) -> None:
    assert Trainer.load(run).evaluations.num_worlds == 8
    last = [json.loads(line) for line in (run / "records.jsonl").read_text().splitlines()]
    trained = next(record for record in reversed(last) if record["kind"] == "evaluation")
    shell("evaluate", str(run), "--games", "12")
    [file] = (run / "evaluations").glob("main-*.json")
    assert json.loads(file.read_text())["pairs"] == trained["pairs"]


def test_a_run_killed_by_sigkill_goes_on_to_the_same_bits_from_the_shell(
    make_config: MakeConfig, in_tmp_path: Path
) -> None:
    config = make_config({"num_worlds": {"host": 64, "agent": 16}})
    for name in ("host", "agent"):
        config["players"][name]["algorithm"]["replay_buffer"]["capacity"] = 1000
    (in_tmp_path / "tiny.yml").write_text(json.dumps(config))
    shell("train", "tiny.yml", "--run", "whole", "--quiet")
    killed = run_forked(
        [sys.executable, "-c", KILLED_IN_THE_MIDDLE, "train", "tiny.yml", "--run", "killed", "--quiet"], check=False
    )
    assert killed.returncode == -signal.SIGKILL
    shell("resume", "killed", "--quiet")
    assert_same_bits(Path("killed"), Path("whole"))
