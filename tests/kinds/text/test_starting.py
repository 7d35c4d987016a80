"""First files of players that talk in words: an algorithm, a protocol and a scenario."""

from pathlib import Path

import pytest

from palestra import make_trainer
from palestra.commands.starting import starting_config
from palestra.config import ConfigError, load_yaml, render
from palestra.config.variants import members_of, names_of
from palestra.games.dialogue.protocols import AnyProtocolConfig
from palestra.kinds.text.config import TextConfig
from palestra.kinds.text.starting import starting_text, text_algorithms
from palestra.run.kinds import read_config

PROTOCOLS = names_of(members_of(AnyProtocolConfig))
CLAIMS = {"name": "claims"}
OWN = """
from palestra.text.algorithms.algorithm import Example, TextAlgorithm, UserAlgorithmConfig


class All(TextAlgorithm):
    class Config(UserAlgorithmConfig):
        usual = {"weight": 2.0}
        weight: float

    def examples(self, rollouts, keys):
        return [Example(row, self.config.weight) for row in rollouts.of(self.seat.player)]
"""
FEW = ["num_questions=2", "num_rollouts=1", "stop.after=1", "evaluations=[]", "best=null", "output.recorders=[]"]
SMALL = ["num_layers=1", "model.width=8", "num_heads=2", "sampling.max_tokens=2", "imitate.num_questions=4"]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_file_for_every_algorithm_and_protocol_is_complete(protocol: str) -> None:
    for algorithm in text_algorithms():
        config = starting_text(algorithm, {"protocol": {"name": protocol}, "scenario": CLAIMS}, [])
        assert read_config(load_yaml(render(config, TextConfig))) == config
        assert config.roles.keys() == config.players.keys()
        assert next(iter(config.players.values())).algorithm.model_dump().popitem()[0] == "tuning"  # type: ignore[union-attr]


def test_a_file_for_an_algorithm_of_ones_own_trains(in_tmp_path: Path) -> None:
    Path("all_of_it.py").write_text(OWN)
    config = starting_config("all_of_it:All", ["solo_verifier", "claims", *FEW, *SMALL])
    assert isinstance(config, TextConfig)
    trainer = make_trainer(config, in_tmp_path / "run", overrides=["output.display=quiet"])
    trainer.fit()
    assert trainer.opt_steps == 3, "two by imitation, one on its own answers"


def test_a_model_of_a_folder_imitates_nobody_and_the_rest_of_its_keys_is_usual() -> None:
    of_folder = "players.verifier.model={name: folder, path: there}"
    game = {"protocol": {"name": "nip"}, "scenario": CLAIMS}
    prover, verifier = starting_text("policy_gradient", game, [of_folder, "max_rounds=3"]).players.values()
    assert prover.imitate is not None  # type: ignore[union-attr]
    assert verifier.imitate is None  # type: ignore[union-attr]
    assert verifier.model.dtype == "float32"  # type: ignore[union-attr]


def test_a_key_by_its_last_words_means_the_one_that_the_complete_file_has() -> None:
    game = {"protocol": {"name": "solo_verifier"}, "scenario": CLAIMS}
    own = "players.verifier.imitate={scripted: random, num_questions: 9}"
    config = starting_text("supervised", game, [own, "num_questions=8"])
    assert config.num_questions == 8
    assert config.players["verifier"].imitate.num_questions == 9  # type: ignore[union-attr]


SCENARIO = "expected a scenario (claims, rows, code_validation, or package.module:Class)"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["supervised"], "supervised: expected a protocol and a scenario after supervised, such as nip claims, got "),
        (["supervised", "nipp"], "supervised nipp: expected a protocol (nip, adp, "),
        (["supervised", "nip"], f"supervised nip: {SCENARIO}, got none; shipped configs: supervised-claims"),
        (["supervised", "nip", "witness"], f"supervised nip witness: {SCENARIO}, got 'witness'"),
        (["supervised", "nip", "rows"], "game.scenario.file: expected a path, but the key is missing; give it, as "),
        (["supervised", "nip", "claims", "lenth=3"], "lenth: no such key"),
        (
            ["supervised", "nip", "no_such_file:Sums"],
            "game.scenario.name: importing 'no_such_file' failed: ModuleNotFoundError",
        ),
    ],
)
def test_words_that_name_no_file_are_one_line(words: list[str], told: str, in_tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        starting_config(words[0], words[1:])
    assert len(str(raised.value).splitlines()) == 1
    assert str(raised.value).startswith(told)
