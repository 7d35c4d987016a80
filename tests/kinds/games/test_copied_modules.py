"""Pretrained torch modules, and scripted players of a user's own, in seats and pairings of a run.

Covers palestra.players.torch_modules.
"""

import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from conftest import PLAIN
from resuming import Killed, assert_same_bits, at_call, fit, kill
from safetensors.torch import load_file, save_file
from torch import nn
from typer.testing import CliRunner

import palestra
from palestra.cli import app
from palestra.config import ConfigError
from palestra.games import make_game
from palestra.kinds.games.trainer import Trainer
from palestra.players.torch_modules import ModulePolicy, TorchModuleConfig
from palestra.testing.algorithms import PENDULUM

MakeConfig = Callable[..., dict[str, Any]]
MODULE = """
import torch
from palestra.config import PositiveInt
from palestra.players.scripted import ScriptedPlayerConfig, ScriptedPolicy


def build():
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(SIZE, 4))


def wide():
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(SIZE, 5))


def nan():
    class Nan(torch.nn.Module):
        def forward(self, points):
            return points.new_full((len(points), 4), torch.nan)
    return Nan()


def failing():
    raise KeyError("weights")


def number():
    return 3


class Rule(ScriptedPolicy):
    class Config(ScriptedPlayerConfig):
        period: PositiveInt

    observes = "state"
    roles = ("host",)

    def choose(self, view, legal, keys):
        return (view["points"].abs().sum(dim=(1, 2)).long() // self.config.period) % legal.shape[1]


class Last(ScriptedPolicy):
    def choose(self, view, legal, keys):
        return legal.shape[1] - 1 - legal.flip(1).int().argmax(dim=1)
"""


@pytest.fixture
def here(in_tmp_path: Path, make_config: MakeConfig) -> Iterator[Path]:
    """A folder with a module of players, and weights for `build`."""
    game = make_config()["game"]
    size = game["max_num_points"] * game["dimension"]
    (in_tmp_path / "opponents.py").write_text(MODULE.replace("SIZE", str(size)))
    torch.manual_seed(3)
    save_file({"1.weight": torch.randn(4, size), "1.bias": torch.randn(4)}, in_tmp_path / "net.safetensors")
    yield in_tmp_path
    sys.modules.pop("opponents", None)


def shell(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == code, f"{result.output}\n{result.exception!r}"
    return result.output


NET = {"torch_module": "opponents:build", "weights": "net.safetensors"}
RULE = {"scripted": "opponents:Rule", "period": 3}


def config_of(make_config: MakeConfig, host: dict[str, Any]) -> dict[str, Any]:
    """The agent learns against `host`; the others play in evaluations alone."""
    config = make_config({"best": None})
    config["players"] |= {"host": dict(host), "net": dict(NET), "rule": dict(RULE)}
    pairs = [("host", "agent"), ("net", "agent"), ("rule", "agent"), ("rule", "opponents:Last"), ("net", "random")]
    config["evaluations"][0]["pairings"] = [{"host": one, "agent": other} for one, other in pairs]
    return config


@pytest.mark.parametrize("host", [NET, RULE], ids=["torch module", "rule"])
def test_a_run_against_one_is_checked_trained_killed_resumed_and_verified(
    host: dict[str, Any], here: Path, make_config: MakeConfig
) -> None:
    (here / "own.yml").write_text(yaml.safe_dump(config_of(make_config, host)))
    assert "complete and consistent" in shell("check", "own.yml")
    with at_call(Trainer, "safe_point", 0, lambda *_: None) as safe_points:
        shell("train", "own.yml", "--run", "alone", "--quiet")

    config = yaml.safe_load((here / "own.yml").read_text())
    with at_call(Trainer, "safe_point", len(safe_points) // 2 + 1, kill), pytest.raises(Killed):
        fit(here / "run", config)
    (here / "net.safetensors").unlink()  # the run has its own copy
    shell("resume", "run", "--quiet")
    assert_same_bits(here / "run", here / "alone")
    assert "reproduced to the bit" in shell("verify", "run")
    assert "opponents:Last" in shell("evaluate", "run", "--games", "2")
    kind = "torch module" if host is NET else "scripted"
    assert f"host: host ({kind}) chooses" in shell("ask", "run", "--board", "[[0,3,1],[2,2,0],[5,0,1]]")
    shell("play", "run", "--pairing", "host=net", "--seed", "0")


def test_the_run_keeps_the_weights_and_their_hash(here: Path, make_config: MakeConfig) -> None:
    weights = (here / "net.safetensors").read_bytes()
    palestra.Trainer(config_of(make_config, NET), run=here / "run").fit()
    for name in ("host", "net"):
        assert (here / "run" / "players" / f"{name}.safetensors").read_bytes() == weights
        facts = json.loads((here / "run" / "players" / f"{name}.json").read_text())
        assert facts["weights"]["sha256"] == hashlib.sha256(weights).hexdigest()
    classes = json.loads((here / "run" / "run.json").read_text())["user_classes"]
    assert classes.keys() == {"opponents:build", "opponents:Rule", "opponents:Last"}
    (here / "run" / "players" / "net.safetensors").write_bytes(weights[:-1] + b"x")
    with pytest.raises(ConfigError, match=r"players\.net\.weights: net\.safetensors differs from what was written"):
        palestra.Trainer.load(here / "run")


def test_without_a_file_the_weights_of_the_function_are_kept(here: Path, make_config: MakeConfig) -> None:
    config = config_of(make_config, NET | {"weights": None})
    state = torch.get_rng_state()
    trainer = palestra.Trainer(config, run=here / "run")
    assert torch.equal(torch.get_rng_state(), state)
    trainer.fit()
    copied = (here / "run" / "players" / "host.safetensors").read_bytes()
    again: Any = palestra.Trainer.load(here / "run").players["host"].script
    assert again.weights == copied
    mine: Any = trainer.players["host"].script
    for one, other in zip(again.module.parameters(), mine.module.parameters(), strict=True):
        assert torch.equal(one, other)
        assert not one.requires_grad


def test_a_branch_takes_a_class_or_other_weights_in_the_place_of_a_player(here: Path, make_config: MakeConfig) -> None:
    config = make_config({"best": None})
    palestra.Trainer(config, run=here / "run").fit()
    end = config["stop"]["after"] + 4
    latest = "run/checkpoints/latest"
    shell("branch", latest, "--replace", "agent=opponents:Last", f"stop.after={end}", "--run", "branch", "--quiet")
    assert "opponents:Last" in (here / "branch" / "config.yml").read_text()
    message = shell("branch", latest, "--replace", "agent=opponents:Rule", "--run", "other", code=2)
    assert "players.agent" in message


def test_a_branch_puts_a_stored_player_and_a_module_in_the_place_of_each_other(
    here: Path, make_config: MakeConfig
) -> None:
    palestra.Trainer(make_config(), run=here / "source").fit()
    palestra.Trainer(config_of(make_config, NET), run=here / "run").fit()
    stored = {"from_run": "source", "player": "host", "checkpoint": "latest"}
    shell("branch", "run/checkpoints/00000001", f"players.host={stored}", "--run", "stored", "--quiet")
    expected = palestra.load_player("source", "host").nets["q"].state_dict()
    found = palestra.Trainer.load("stored").players["host"].nets["q"].state_dict()
    assert all(torch.equal(weight, found[key]) for key, weight in expected.items())
    shell("branch", "stored/checkpoints/00000001", f"players.host={NET}", "--run", "module", "--quiet")
    copied = (here / "module" / "players" / "host.safetensors").read_bytes()
    assert copied == (here / "net.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weights": "nowhere.safetensors"}, "weights: expected a safetensors file, got nowhere.safetensors (No such"),
        ({"weights": "/dev/null"}, "weights: expected a safetensors file, got /dev/null (it is no plain file)"),
        ({"weights": "opponents.py"}, "weights: expected a safetensors file, got opponents.py ("),
        ({"weights": "less.safetensors"}, "expected the key '1.bias' of the module in less.safetensors, got none"),
        (
            {"weights": "more.safetensors"},
            "expected the keys of the module alone in more.safetensors, got 'extra', too",
        ),
        ({"torch_module": "opponents:wide"}, "for the key '1.weight' in net.safetensors, got (4, "),
        ({"torch_module": "opponents:wide", "weights": None}, "expected outputs, float of shape (5, 4), from"),
        (
            {"torch_module": "opponents:nan", "weights": None},
            "expected numbers from 'opponents:nan' as 'host', got nan",
        ),
        ({"torch_module": "opponents:failing"}, "'opponents:failing' fails: KeyError: 'weights' (opponents.py, line"),
        ({"torch_module": "opponents:number"}, "expected a torch.nn.Module of 'opponents:number', got 3"),
        ({"torch_module": "opponents:nothing"}, "expected a function of module 'opponents' ("),
        ({"torch_module": "opponents:build", "waits": 1}, "unknown key"),
    ],
)
def test_what_is_wrong_with_a_module_is_told_in_one_line(
    change: dict[str, Any], message: str, here: Path, make_config: MakeConfig
) -> None:
    tensors = load_file(here / "net.safetensors") | {"extra": torch.zeros(1)}
    save_file(tensors, here / "more.safetensors")
    save_file({"1.weight": tensors["1.weight"]}, here / "less.safetensors")
    config = config_of(make_config, NET | change)
    (here / "own.yml").write_text(yaml.safe_dump(config))
    shown = shell("check", "own.yml", code=2)
    assert any(line.startswith("players.host.") and message in line for line in shown.splitlines()), shown


def test_outputs_rank_the_legal_actions_and_numbers_stay_within_bounds(here: Path) -> None:
    class Given(nn.Module):
        def forward(self, observation: torch.Tensor) -> torch.Tensor:
            assert observation.dim() == 2
            return torch.full((len(observation), 1), -7.0)

    config = TorchModuleConfig(torch_module="opponents:build", weights=None)
    game = make_game(PENDULUM)
    policy = ModulePolicy(config, Given(), None, game, "agent")
    view = {"observation": torch.zeros(3, 3)}
    action = policy.act(view, torch.ones(3, 0, dtype=torch.bool), torch.arange(3), {}).action
    assert action.tolist() == [[game.action_spaces["agent"].low[0]]] * 3  # type: ignore[union-attr]

    rows = torch.tensor([[1.0, 5.0, -torch.inf, 2.0, 0.0, 0.0]])
    nim = make_game({"name": "nim", "num_heaps": 2, "max_stones": 3, "observation": PLAIN})

    class Ranks(nn.Module):
        def forward(self, observation: torch.Tensor) -> torch.Tensor:
            return rows.expand(len(observation), -1)

    policy = ModulePolicy(config, Ranks(), None, nim, "first")
    heaps = {name: torch.zeros(1, *space.shape, dtype=space.dtype) for name, space in nim.spaces["first"].items()}
    for legal, best in (([1, 1, 1, 1, 0, 0], 1), ([1, 0, 1, 1, 0, 0], 3), ([0, 0, 1, 0, 0, 0], 2)):
        flags = torch.tensor([legal]).bool()
        assert policy.act(heaps, flags, torch.arange(1), {}).action.tolist() == [best]
