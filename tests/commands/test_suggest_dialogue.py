"""`palestra config ALGORITHM PROTOCOL SCENARIO` prints a whole file that trains; what is wrong is one line."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from palestra.cli import app
from palestra.config import load_yaml
from palestra.config.variants import members_of, names_of
from palestra.games.dialogue.protocols import AnyProtocolConfig
from palestra.storage.records_file import read_records

PROTOCOLS = [name for name in names_of(members_of(AnyProtocolConfig)) if ":" not in name]
FEW = ["num_worlds=8", "stop.after=2", "evaluations.0.num_games=4", "evaluations.0.final_num_games=4"]

pytestmark = pytest.mark.usefixtures("no_plots", "in_tmp_path")


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
    assert 0.0 <= learned["measures"]["accuracy"] <= 1.0


def test_a_centralized_critic_that_is_asked_for_has_networks_for_all_that_it_observes() -> None:
    asked = "players.prover.algorithm.centralized_critic=true"
    printed = CliRunner().invoke(app, ["config", "ppo", "nip", "witness", *FEW, asked])
    assert printed.exit_code == 0, printed.output
    Path("run.yml").write_text(printed.stdout)
    prover, verifier = (load_yaml(Path("run.yml"))["players"][name]["algorithm"] for name in ("prover", "verifier"))
    shown = ["label", "variant", "messages", "prover/bits", "verifier/bits"]
    own = ["bits", "messages", "round"]
    assert list(prover["body"]["value"]["entries"]) == [*own, *(f"critic/{name}" for name in shown)]
    assert list(prover["body"]["policy"]["entries"]) == list(verifier["body"]["value"]["entries"]) == own
    assert verifier["centralized_critic"] is False
    trained = CliRunner().invoke(app, ["train", "run.yml", "--run", "run", "--quiet"])
    assert trained.exit_code == 0, trained.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nip"], "nip: expected a scenario after the protocol (witness, or package.module:Class), got none\n"),
        (["nip", "x=1"], "nip: expected a scenario after the protocol (witness, or package.module:Class), got none\n"),
        (["adp", "nim"], "adp: expected a scenario after the protocol (witness, or package.module:Class), got 'nim'\n"),
    ],
)
def test_a_protocol_without_a_scenario_is_told(words: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["config", "ppo", *words])
    assert (result.exit_code, result.stderr) == (2, message)
