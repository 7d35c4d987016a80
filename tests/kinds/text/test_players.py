"""Players of other runs that talk in words: held fixed in a seat, or to begin with."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from palestra import make_trainer
from palestra.config import ConfigError
from palestra.kinds.text.players import find_text_player
from palestra.kinds.text.trainer import TextTrainer
from palestra.players import FromRunConfig
from palestra.text.models.sources import FolderConfig
from tests.kinds.text.test_trainer import CONFIG, PLAYER, SEATS

ONE_EPOCH = {"stop": {"after": 1, "unit": "epochs"}, "evaluations": []}


def trained(run: Path, **changed: Any) -> TextTrainer:
    trainer: Any = make_trainer(CONFIG | ONE_EPOCH | changed, run)
    trainer.fit()
    return trainer


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> TextTrainer:
    return trained(tmp_path_factory.mktemp("origin") / "run")


def of(run: Path, player: str = "verifier") -> dict[str, str]:
    return {"from_run": str(run), "player": player, "checkpoint": "latest"}


def weights(trainer: TextTrainer, name: str) -> dict[str, torch.Tensor]:
    seat: Any = trainer.seats[name]
    return {key: value.clone() for key, value in seat.model.state_dict()["weights"].items()}


def assert_equal(first: Mapping[str, torch.Tensor], second: Mapping[str, torch.Tensor]) -> None:
    torch.testing.assert_close(dict(first), dict(second), rtol=0, atol=0)


def test_a_player_of_another_run_is_copied_and_held_fixed(origin: TextTrainer, tmp_path: Path) -> None:
    there = tmp_path / "there"
    shutil.copytree(origin.run.folder.path, there)
    players = {"prover": of(there, "prover"), "verifier": PLAYER | {"imitate": None}}
    trainer = trained(tmp_path / "run", players=players)
    assert_equal(weights(trainer, "prover"), weights(origin, "prover"))
    assert list(trainer.players) == ["verifier"], "a checkpoint holds no player that stays"
    shutil.rmtree(there)
    again = TextTrainer.load(tmp_path / "run")
    assert_equal(weights(again, "prover"), weights(origin, "prover"))
    [copied] = (tmp_path / "run" / "players").glob("*.safetensors")
    copied.write_bytes(b"x" + copied.read_bytes()[1:])
    with pytest.raises(ConfigError, match=r"^players\.prover\.from_run: prover\.safetensors differs from what was wr"):
        TextTrainer.load(tmp_path / "run")


def test_a_player_begins_with_the_weights_of_another_and_comes_back_to_them(
    origin: TextTrainer, tmp_path: Path
) -> None:
    there = tmp_path / "there"
    shutil.copytree(origin.run.folder.path, there)
    warm = PLAYER | {"warm_start": of(there), "imitate": None}
    begun: Any = make_trainer(CONFIG | ONE_EPOCH | {"seed": 5, "players": dict.fromkeys(SEATS, warm)}, tmp_path / "run")
    assert_equal(weights(begun, "prover"), weights(origin, "verifier"))
    begun.fit()
    assert not all(
        torch.equal(value, weights(origin, "verifier")[name]) for name, value in weights(begun, "prover").items()
    )
    shutil.rmtree(there)
    again: Any = TextTrainer.load(tmp_path / "run")
    again.players["prover"].model.reset()
    assert_equal(weights(again, "prover"), weights(origin, "verifier"))


@pytest.mark.parametrize(
    ("warm_start", "changed", "line"),
    [
        ({"player": "anna"}, {}, "expected a player with a model in {run} (prover, verifier), got 'anna'"),
        ({"from_run": "palestra:polyhedra"}, {}, "expected a run in which players talk in words, got "),
        ({"from_run": "nowhere"}, {}, "nowhere"),
        ({"checkpoint": "best"}, {}, "best"),
        ({}, {"width": 32}, "expected a player whose model has width 32, as here, got 'verifier' of {run} with 16"),
    ],
)
def test_another_run_player_or_size_is_told_in_a_line(
    warm_start: dict[str, str], changed: dict[str, Any], line: str, origin: TextTrainer, tmp_path: Path
) -> None:
    run = origin.run.folder.path
    player: Any = PLAYER | {"model": PLAYER["model"] | changed, "warm_start": of(run) | warm_start}  # type: ignore[operator]
    with pytest.raises(ConfigError) as raised:
        make_trainer(CONFIG | ONE_EPOCH | {"players": {"prover": PLAYER, "verifier": player}}, tmp_path / "run")
    [told] = str(raised.value).splitlines()
    assert told.startswith("players.verifier.warm_start: ")
    assert line.format(run=run) in told
    assert not (tmp_path / "run").exists()


def test_a_model_of_a_folder_begins_with_none_of_another_base(origin: TextTrainer, tmp_path: Path) -> None:
    origin.players["prover"].model.export(tmp_path / "prover")
    origin.players["verifier"].model.export(tmp_path / "verifier")
    of_folder = {
        name: FolderConfig(name="folder", path=str(tmp_path / name), adapter=None, dtype="float32") for name in SEATS
    }
    models = {name: each.build(0, torch.device("cpu")) for name, each in of_folder.items()}
    found = find_text_player("prover", FromRunConfig(**of(origin.run.folder.path, "prover")), None)
    with pytest.raises(ConfigError, match=r"^expected a player whose model has .*, as here, got 'prover' of "):
        found.require_fits(of_folder["prover"], models["prover"])
    found.run.players["prover"] = found.run.players["prover"].model_copy(update={"model": of_folder["prover"]})
    own = type(found)(found.origin, found.run, b"", 0, models["prover"].state_dict()["base"], found.weights)
    own.require_fits(of_folder["prover"], models["prover"])
    with pytest.raises(ConfigError, match=r"^expected a player whose model began as the one here \(SHA-256 "):
        own.require_fits(of_folder["verifier"], models["verifier"])
