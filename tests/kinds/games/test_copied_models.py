"""Models that learned from data, in the seats of a run and of a tournament.

Covers palestra.players.seated_models.
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import save_file
from typer.testing import CliRunner

import palestra
from palestra.cli import app
from palestra.config import ConfigError
from palestra.kinds.games.trainer import Trainer
from palestra.randomness import world_keys
from palestra.storage.records_file import read_records
from tests.combinations import DQN
from tests.fitted import CLASSIFIER, MLP, PAIR, fitted, working_in
from tests.games.gym_worlds import cart_pole

SITTERS = '''
import torch
from palestra.models.model import Model
from fitted_parts import Pair


def build():
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))


class Leans(Pair):
    """Goes where the pole leans, or to 1."""

    def select_action(self, observation, legal):
        return (observation["observation"][:, 2] > 0).long()

    def sample_action(self, observation, legal, keys):
        return torch.ones_like(keys)


class Forbidden(Pair):
    def select_action(self, observation, legal):
        return torch.full((len(legal),), 2)


class Changes(Pair):
    num_asked = 0

    def select_action(self, observation, legal):
        self.num_asked += 1
        return torch.full((len(legal),), self.num_asked % 2)
'''
SELECTED = {"from_model": "source", "checkpoint": "latest", "acts": "selected"}
MODULE = {"torch_module": "sitters:build", "weights": "net.safetensors"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with runs of models, and the weights of one of them for a torch module."""
    path = tmp_path_factory.mktemp("seats")
    with working_in(path):
        (path / "sitters.py").write_text(SITTERS)
        fitted("source")
        fitted("three", CLASSIFIER | {"num_classes": 3})
        for name in ("Leans", "Forbidden", "Changes"):
            fitted(name, PAIR | {"name": f"sitters:{name}"})
        fitted("pair", PAIR)
        weights = palestra.load_model("source").model.state_dict()
        save_file({name.removeprefix("net.layers."): value for name, value in weights.items()}, "net.safetensors")
    return path


@pytest.fixture
def here(folder: Path) -> Iterator[Path]:
    with working_in(folder):
        yield folder


def shell(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == code, f"{result.output}\n{result.exception!r}"
    return result.output


def with_players(make_config: Any, **players: dict[str, Any]) -> dict[str, Any]:
    """A lone agent learns in cart-pole, and others play in evaluations."""
    config = make_config({"game": cart_pole(), "roles": {"agent": "agent"}, "best": None, "stop.after": 2})
    learner = {"algorithm": DQN | {"net": MLP}, "warm_start": None, "updates": {"name": "constant"}, "meets": None}
    config["players"] = {"agent": learner, **players}
    config["evaluations"][0] |= {
        "pairings": [{"agent": name} for name in players],
        "num_games": 4,
        "final_num_games": 4,
        "max_rounds": 60,
        "interval": None,
        "at_start": True,
    }
    return config


def test_a_model_in_a_seat_plays_the_games_of_a_torch_module_with_its_weights(here: Path, make_config: Any) -> None:
    players = {"model": SELECTED, "module": MODULE}
    shutil.copytree("source", "gone")
    players["moved"] = SELECTED | {"from_model": "gone"}
    trainer = Trainer(with_players(make_config, **players), run="run")
    trainer.fit(num_steps=1, unit="opt_steps")
    shutil.rmtree("gone")
    Trainer.load("run").fit()  # the run has its own copy
    Trainer.branch("run/checkpoints/latest", ["stop.after=3"], run="branch").fit()
    for file in ("json", "yml", "safetensors"):
        assert Path(f"branch/players/moved.{file}").read_bytes() == Path(f"run/players/moved.{file}").read_bytes()
    games = [each["pairs"] for each in read_records(Path("run/records.jsonl")) if each["kind"] == "evaluation"]
    assert len(games) == 2
    for one, other, moved in games:
        for pair in (other, moved):
            assert (pair["scores"], pair["intervals"]) == (one["scores"], one["intervals"])
    views = torch.randn(100, 4) * 3
    scripts = [Trainer.load("run").players[name].script for name in players]
    legal = torch.rand(100, 2) < 0.7
    actions = [script.act({"observation": views}, legal, torch.arange(100), {}).action for script in scripts]
    assert all(torch.equal(actions[0], other) for other in actions[1:])
    assert actions[0].unique().tolist() == [0, 1]
    assert "model" in shell("evaluate", "run", "--games", "2")
    assert "reproduced to the bit" in shell("verify", "run")
    for damage, told in (
        ("run/players/moved.safetensors", "moved.safetensors differs from what was written"),
        ("run/players/moved.yml", "moved.yml differs from what was written"),
    ):
        before = Path(damage).read_bytes()
        Path(damage).write_bytes(before[:-1] + b"x")
        with pytest.raises(ConfigError, match=rf"^players.moved.from_model: {told}"):
            Trainer.load("run")
        Path(damage).write_bytes(before)


def test_a_classifier_draws_legal_actions_by_the_keys_alone_as_probable_as_they_are(here: Path) -> None:
    model = palestra.load_model("source").model
    view = {"observation": torch.randn(1, 4).expand(20_000, 4)}
    keys = world_keys(7, 20_000, torch.device("cpu"))
    everything = torch.ones(20_000, 2, dtype=torch.bool)
    drawn = model.sample_action(view, everything, keys)
    assert torch.equal(drawn, model.sample_action(view, everything, keys))
    share = model(view).softmax(dim=1)[0, 1].item()
    assert drawn.float().mean().item() == pytest.approx(share, abs=0.02)
    for action in (0, 1):
        alone = torch.arange(2).eq(action).expand(20_000, 2)
        assert model.sample_action(view, alone, keys).eq(action).all()
        assert model.select_action(view, alone).eq(action).all()


def test_models_meet_in_a_tournament(here: Path) -> None:
    cup = {
        "seed": 0,
        "game": cart_pole(),
        "players": {
            "leans": {"from_model": "Leans", "checkpoint": "latest", "acts": "selected"},
            "right": {"from_model": "Leans", "checkpoint": "0", "acts": "sampled"},
        },
        "pairings": [{"agent": ["leans", "right"]}],
        "num_games": 4,
        "max_rounds": 100,
        "num_worlds": 4,
        "info": [],
        "execution": {"device": "cpu", "num_threads": 1, "kernel": "numba", "step_within_s": None},
    }
    Path("cup.yml").write_text(yaml.safe_dump(cup))
    shell("evaluate", "cup.yml", "--run", "cup")
    (record,) = read_records(Path("cup/records.jsonl"))
    leans, right = (pair["scores"]["return/agent"] for pair in record["pairs"])
    assert leans > 20 > right  # always to the right ends after ten steps


@pytest.mark.parametrize(
    ("sitter", "told"),
    [
        ({"from_model": "nowhere"}, "nowhere is not a run: nowhere/config.yml is missing"),
        (
            {"from_model": "palestra:polyhedra"},
            "expected a run in which a model learns from data",
        ),
        ({"checkpoint": "77"}, "there is no checkpoint 00000077 in source/checkpoints; expected one of 0 (@0), "),
        ({"from_model": "three"}, "expected a classifier of 2 classes, as 'agent' has actions, got one of 3"),
        ({"from_model": "pair"}, "expected a model with the method select_action, got Pair, which has none"),
        (
            {"from_model": "Forbidden"},
            "expected a legal action (flags [0, 1] in world 0) of 'agent' from",
        ),
        (
            {"from_model": "Changes"},
            "expected the same choices of 'Changes' for the same view, legal actions and keys",
        ),
    ],
)
def test_a_model_that_cannot_sit_there_is_told_in_one_line(
    here: Path, make_config: Any, sitter: dict[str, Any], told: str
) -> None:
    Path("own.json").write_text(json.dumps(with_players(make_config, model=SELECTED | sitter)))
    (line,) = shell("train", "own.json", "--run", "refused", "--quiet", code=2).splitlines()
    assert line.startswith(f"players.model.from_model: {told}"), line
    assert not Path("refused").exists()


def test_how_it_acts_must_be_said(here: Path, make_config: Any) -> None:
    for acts, told in (("drawn", "expected one of 'selected', 'sampled', got 'drawn'"), (None, "expected one of")):
        with pytest.raises(ConfigError, match=rf"^players.model.acts: {told}"):
            Trainer(with_players(make_config, model=SELECTED | {"acts": acts}))


def test_other_observations_are_named(here: Path, make_config: Any) -> None:
    config = with_players(make_config, model=SELECTED)
    config["game"] |= {"id": "Acrobot-v1", "arguments": {"max_episode_steps": 500}}
    told = r"expected a model that has learned from observation float32 \(6,\), as 'agent' observes, got observation fl"
    with pytest.raises(ConfigError, match=rf"^players.model.from_model: {told}"):
        Trainer(config)
