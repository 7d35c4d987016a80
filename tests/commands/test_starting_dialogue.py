"""`palestra config ALGORITHM PROTOCOL SCENARIO` prints a whole file that trains; what is wrong is one line."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from palestra.cli import app
from palestra.config import load_yaml
from palestra.config.usual import completed
from palestra.config.variants import members_of, names_of
from palestra.games import make_game
from palestra.games.dialogue.protocols import AnyProtocolConfig
from palestra.kinds.games.starting import ALGORITHM, spaces_of
from palestra.storage.records_file import read_records

PROTOCOLS = [name for name in names_of(members_of(AnyProtocolConfig)) if ":" not in name]
FEW = ["num_worlds=8", "stop.after=2", "evaluations.0.num_games=4", "evaluations.0.final_num_games=4"]

pytestmark = pytest.mark.usefixtures("in_tmp_path")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_config_prints_for_a_protocol_trains(protocol: str) -> None:
    printed = CliRunner().invoke(app, ["config", "ppo", protocol, "witness", "game.scenario.num_bits=3", *FEW])
    assert printed.exit_code == 0, printed.output
    Path("run.yml").write_text(printed.stdout)
    config = load_yaml(Path("run.yml"))
    assert config["game"]["protocol"]["name"] == protocol
    assert config["game"]["scenario"]["num_bits"] == 3
    assert config["trainer"]["name"] == "together"
    assert config["best"]["measure"] == "accuracy"
    trained = CliRunner().invoke(app, ["train", "run.yml", "--run", "run", "--quiet"])
    assert trained.exit_code == 0, trained.output
    last = [record for record in read_records(Path("run/records.jsonl")) if record["kind"] == "evaluation"][-1]
    learned = last["pairs"][config["best"]["pairing"]]
    assert learned["learned"] == list(config["roles"])
    assert 0.0 <= learned["scores"]["accuracy"] <= 1.0


def test_a_centralized_critic_that_is_asked_for_has_networks_for_all_that_it_observes() -> None:
    asked = "players.prover.algorithm.centralized_critic=true"
    printed = CliRunner().invoke(app, ["config", "ppo", "nip", "witness", *FEW, asked])
    assert printed.exit_code == 0, printed.output
    Path("run.yml").write_text(printed.stdout)
    prover, verifier = (load_yaml(Path("run.yml"))["players"][name]["algorithm"] for name in ("prover", "verifier"))
    assert prover["body"]["value"]["name"] == "mlp"  # of all numbers that it observes
    assert verifier["centralized_critic"] is False
    trained = CliRunner().invoke(app, ["train", "run.yml", "--run", "run", "--quiet"])
    assert trained.exit_code == 0, trained.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nip"], "nip: expected a scenario after the protocol (witness, rows, or package.module:Class), got none\n"),
        (
            ["nip", "x=1"],
            "nip: expected a scenario after the protocol (witness, rows, or package.module:Class), got none\n",
        ),
        (
            ["adp", "nim"],
            "adp: expected a scenario after the protocol (witness, rows, or package.module:Class), got 'nim'\n",
        ),
    ],
)
def test_a_protocol_without_a_scenario_is_told(words: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["config", "ppo", *words])
    assert (result.exit_code, result.stderr) == (2, message)


@pytest.mark.parametrize("trainer", ["together", "in_turn"])
def test_a_prover_by_dqn_plays_beside_a_verifier_by_ppo(trainer: str) -> None:
    """A role with one choice has Discrete actions, which DQN needs."""
    words = ["config", "ppo", "nip", "witness", "game.scenario.num_bits=3", f"trainer.name={trainer}", *FEW[:-2]]
    words += ["game.protocol.max_rounds=3", "players.verifier.algorithm.rollout_length=2"]
    printed = CliRunner().invoke(app, [*words, "players.prover.algorithm.rollout_length=2"])
    assert printed.exit_code == 0, printed.output
    Path("run.yml").write_text(printed.stdout)
    game = make_game(load_yaml(Path("run.yml"))["game"])
    dqn = completed({"name": "dqn"}, ALGORITHM, spaces_of(game, "prover"))
    dqn |= {"warmup_env_steps": 0, "batch_size": 8, "updates_per_turn": 2, "rollout_length": 2}
    mixed = [f"players.prover.algorithm={json.dumps(dqn)}", "stop={after: 6, unit: epochs}"]
    trained = CliRunner().invoke(app, ["train", "run.yml", *mixed, "--run", "run", "--quiet"])
    assert trained.exit_code == 0, trained.output
    last = [record for record in read_records(Path("run/records.jsonl")) if record["kind"] == "training"][-1]
    assert last["players"]["prover"]["opt_steps"] >= 5 * 2  # at first there may be too few rows
    assert last["players"]["verifier"]["opt_steps"] > 0


# ---- rows ----------------------------------------------------------------------------------------------


def write_table(label: str = "label") -> None:
    """A column of every kind: numbers, texts, many texts, one that lacks a value."""
    rows = [[i / 3, "ab"[i % 2], f"name {i}", "" if i == 5 else i, i % 2] for i in range(40)]
    lines = [["size", "colour", "name", "age", label], *rows]
    Path("data.csv").write_text("".join(",".join(map(str, line)) + "\n" for line in lines))


def test_config_for_rows_is_completed_from_the_file_and_trains() -> None:
    write_table()
    few = [*FEW, "num_worlds=8"]
    printed = CliRunner().invoke(app, ["config", "ppo", "nip", "rows", "game.scenario.file=data.csv", *few])
    assert printed.exit_code == 0, printed.output
    Path("run.yml").write_text(printed.stdout)
    scenario = load_yaml(Path("run.yml"))["game"]["scenario"]
    assert scenario["label"] == "label"
    assert scenario["sees"] == {"prover": ["size", "colour"], "verifier": []}
    assert scenario["categorical"] == ["colour"]
    assert CliRunner().invoke(app, ["train", "run.yml", "--run", "run", "--quiet"]).exit_code == 0


def test_a_lone_verifier_is_suggested_to_see_all_columns_and_overrides_count() -> None:
    write_table("sick")
    words = ["game.scenario.file=data.csv", "game.scenario.label=sick", "game.scenario.num_tokens=3"]
    printed = CliRunner().invoke(app, ["config", "ppo", "solo_verifier", "rows", *words])
    assert printed.exit_code == 0, printed.output
    Path("run.yml").write_text(printed.stdout)
    scenario = load_yaml(Path("run.yml"))["game"]["scenario"]
    assert scenario["sees"] == {"verifier": ["size", "colour"]}
    assert (scenario["label"], scenario["num_tokens"]) == ("sick", 3)
    chosen = ["game.scenario.sees={verifier: [size]}", "game.scenario.categorical=[]"]
    assert CliRunner().invoke(app, ["config", "ppo", "solo_verifier", "rows", *words, *chosen]).exit_code == 0


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], "game.scenario.file: expected a path, but the key is missing; give it, as game.scenario.file=data.csv"),
        (["game.scenario.file=none.csv"], "game.scenario.file: expected a file at 'none.csv', got none (looked in "),
        (
            ["game.scenario.file=data.csv"],
            "game.scenario.label: expected one of the columns (size, colour, name, age, sick), but the key is missing; "
            "give it, as game.scenario.label=sick",
        ),
        (
            ["game.scenario.file=data.csv", "game.scenario.label=sick", "game.protocol.first=me"],
            "game.protocol.first: expected one of 'verifier', 'prover', got 'me'",
        ),
    ],
)
def test_what_config_for_rows_lacks_is_told(words: list[str], line: str) -> None:
    write_table("sick")
    result = CliRunner().invoke(app, ["config", "ppo", "nip", "rows", *words])
    assert result.exit_code == 2
    assert result.stderr.startswith(line), result.stderr
    assert result.stderr.count("\n") == 1


def test_a_protocol_of_ones_own_whose_keys_are_missing_is_told_before_what_the_file_would_complete() -> None:
    text = (Path(__file__).parents[2] / "docs" / "examples" / "telegram.py").read_text()
    assert text.count('"num_words": 2, ') == 1
    Path("wires.py").write_text(text.replace('"num_words": 2, ', ""))
    write_table("sick")
    words = ["game.scenario.file=data.csv", "game.scenario.label=sick"]
    result = CliRunner().invoke(app, ["config", "ppo", "wires:Telegram", "rows", *words])
    line = "game.protocol.num_words: expected an integer >= 1, but the key is missing; give it, as game.protocol.num_wo"
    assert (result.exit_code, result.stderr.startswith(line)) == (2, True), result.output
