"""docs/convert_hironaka.py turns networks and config of hironaka.trainer into what palestra trains and plays.

Here its package is a stand-in of the same structure: the same classes, attributes and layers.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file
from typer.testing import CliRunner

import palestra
from palestra.cli import app
from tests.forked import run as run_forked

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "docs" / "convert_hironaka.py"
STAND_IN = """
import torch
from torch import nn

class HostFeatureExtractor(nn.Flatten): ...

class AgentFeatureExtractor(nn.Module):
    def forward(self, seen):
        return torch.cat([seen["points"].flatten(1), seen["coords"].flatten(1)], dim=1)

class RandomAgentModule(nn.Module): ...

class Unknown(nn.Module): ...

class ResidualBlock(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.lin1, self.bn1 = nn.Linear(i, o), nn.BatchNorm1d(o)
        self.lin2, self.bn2 = nn.Linear(o, o), nn.BatchNorm1d(o)
        self.down_sample = None if i == o else nn.Sequential(nn.Linear(i, o), nn.BatchNorm1d(o))

    def forward(self, x):
        y = self.bn2(self.lin2(torch.relu(self.bn1(self.lin1(x)))))
        return y + (x if self.down_sample is None else self.down_sample(x))
"""
SAVE = """
import sys, torch, yaml
from safetensors.torch import save_file
from torch import nn
from hironaka.trainer import *
config = yaml.safe_load(open("config.yml"))
torch.manual_seed(0)
def net(head, width, num):
    layers = [nn.Linear(width, 16), nn.BatchNorm1d(16), nn.ReLU(), ResidualBlock(16, 16), nn.ReLU()]
    return nn.Sequential(head, nn.ReLU(), *layers, ResidualBlock(16, 8), nn.Linear(8, num))
host, agent = net(HostFeatureExtractor(), 60, 4), net(AgentFeatureExtractor(), 63, 3)
points = torch.rand(50, 20, 3)
points[:, 12:] = -1.0
coords = torch.tensor([1.0, 0.0, 1.0]).repeat(50, 1)
order = points[:, :, 0].argsort(dim=1, descending=True)
features = points.gather(1, order[:, :, None].expand(-1, -1, 3))
for module in (host, agent):  # running means that are not those of a new network
    module.train()(features if module is host else {"points": features, "coords": coords})
    module.eval()
with torch.no_grad():
    values = {"host": host(features), "agent": agent({"points": features, "coords": coords})}
save_file({"points": points, "coords": coords, **values}, "values.safetensors")
if "agent" not in config:
    agent = RandomAgentModule() if sys.argv[1] == "random" else Unknown()
torch.save({"host_net": nn.DataParallel(host), "agent_net": agent, "config": config}, "model.pt")
"""
ROLE = {
    "batch_size": 8,
    "initial_rollout_size": 2,
    "steps_before_rollout": 2,
    "steps_before_update_target": 3,
    "rollout_size": 8,
    "max_rollout_step": 5,
    "optim": {
        "name": "adam",
        "args": {"lr": 1e-8},
        "lr_schedule": {"mode": "exponential", "initial_lr": 0.001, "rate": 0.996},
    },
    "er": 0.2,
    "er_schedule": {"mode": "exponential", "initial_er": 0.5, "rate": 0.99},
    "net_arch": [16, "b", {"repeat": 2, "net_arch": [32, "b"]}, "r16"],
    "gamma": 0.97,
    "tau": 0.9,
}
CONFIG = {
    **{"use_tensorboard": True, "layerwise_logging": True, "log_time": True, "use_cuda": False},
    **{"scale_observation": True, "version_string": "v0", "dimension": 3, "max_num_points": 20, "max_value": 20},
    "max_grad_norm": 10,
    "host": ROLE,
    "agent": ROLE
    | {"rollout_size": 4, "optim": {"name": "sgd", "args": {"lr": 0.01, "momentum": 0.5}}, "er": 0.1, "gamma": 0.9},
    "replay_buffer": {"type": "base", "buffer_size": 1000, "use_cuda": False},
}
SHORT = {"evaluations.0.num_games": 5, "evaluations.0.final_num_games": 5, "output.recorders": []}


def python(place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environ = os.environ | {"PYTHONPATH": str(place)}
    command = [sys.executable, *arguments]
    return run_forked(command, cwd=place, env=environ, capture_output=True, text=True, timeout=100)


def converted(place: Path, config: dict[str, Any], agent: str = "random") -> subprocess.CompletedProcess[str]:
    (place / "hironaka" / "trainer").mkdir(parents=True)
    (place / "hironaka" / "__init__.py").write_text("")
    (place / "hironaka" / "trainer" / "__init__.py").write_text(STAND_IN)
    (place / "config.yml").write_text(yaml.safe_dump(config))
    saved = python(place, "-c", SAVE, agent)
    assert saved.returncode == 0, saved.stderr
    return python(place, str(SCRIPT), "model.pt", "out")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the script writes, and what it read beside it."""
    place = tmp_path_factory.mktemp("written")
    result = converted(place, CONFIG)
    assert result.returncode == 0, result.stderr
    assert "\n- stop.after: " in result.stdout
    return place


@pytest.fixture
def out(written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory: a copy of that folder."""
    shutil.copytree(written, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path / "out")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "out"), *sys.path])
    monkeypatch.delitem(sys.modules, "hironaka_nets", raising=False)
    return tmp_path / "out"


def test_converted_players_train_and_begin_with_the_same_q_values(out: Path) -> None:
    overrides = ["stop.after=8", *(f"{key}={value}" for key, value in SHORT.items())]
    result = CliRunner().invoke(app, ["train", "run.yml", *overrides, "--run", "run", "--quiet"])
    assert result.exit_code == 0, result.output
    values = load_file(out.parent / "values.safetensors")
    seen = {"points": values["points"]}
    for role, observation in (("host", seen), ("agent", seen | {"coords": values["coords"]})):
        player = palestra.load_player("run", role, checkpoint="0")
        with torch.no_grad():
            assert torch.allclose(player.nets["q"].eval()(observation), values[role], atol=1e-5)
        legal = values["coords"] > 0 if role == "agent" else torch.ones(50, 4, dtype=torch.bool)
        best = values[role].masked_fill(~legal, -torch.inf).argmax(dim=1)
        assert player.predict(observation)[0].tolist() == best.tolist()
    before, after = (palestra.load_player("run", "host", checkpoint=c).nets["q"] for c in ("0", "latest"))
    assert any((a != b).any() for a, b in zip(before.parameters(), after.parameters(), strict=True))
    result = CliRunner().invoke(app, ["evaluate", "run", "--checkpoint", "0"])
    assert result.exit_code == 0, result.output


def test_hyperparameters_are_those_of_the_config(out: Path) -> None:
    config = yaml.safe_load((out / "run.yml").read_text())
    host, agent = (config["players"][role]["algorithm"] for role in ("host", "agent"))
    assert (host["gamma"], agent["gamma"]) == (0.97, 0.9)
    assert config["num_worlds"] == {"host": 8, "agent": 4}
    assert host["target"] == {"name": "polyak", "tau": 0.9, "interval": 3}
    assert host["learning_rate"] == {"name": "exponential", "initial": 0.001, "final": 1e-8, "rate": 0.996}
    assert host["exploration"]["epsilon"] == {"name": "exponential", "initial": 0.5, "final": 0.2, "rate": 0.99}
    rest = {"dampening": 0, "weight_decay": 0, "nesterov": False, "maximize": False}
    assert agent["optimizer"] == {"name": "torch.optim:SGD", "arguments": {"momentum": 0.5, **rest}}
    assert agent["learning_rate"] == {"name": "constant", "value": 0.01}


def test_a_config_alone_gives_new_networks_of_the_same_layers(tmp_path: Path) -> None:
    (tmp_path / "config.yml").write_text(yaml.safe_dump({k: v for k, v in CONFIG.items() if k != "agent"}))
    assert python(tmp_path, str(SCRIPT), "config.yml", "out").returncode == 0
    config: Any = palestra.load_config(tmp_path / "out" / "run.yml")
    assert config.players["host"].algorithm.net.net_arch == ROLE["net_arch"]
    assert config.players["agent"].scripted == "random"


def test_what_cannot_be_converted_is_said_in_one_line(tmp_path: Path) -> None:
    alone = {key: value for key, value in CONFIG.items() if key != "agent"}
    result = converted(tmp_path, alone, "unknown")
    assert result.returncode == 1
    assert result.stderr.startswith("agent: expected a section in the config or one of RandomHostModule")
    assert "got a network Unknown" in result.stderr
    (tmp_path / "config.yml").write_text(yaml.safe_dump({k: v for k, v in CONFIG.items() if k != "dimension"}))
    result = python(tmp_path, str(SCRIPT), "config.yml", "out")
    expected = "config.yml: expected the key 'dimension' of a DQNTrainer's config, but it is missing\n"
    assert (result.returncode, result.stderr) == (1, expected)
    assert not (tmp_path / "out").exists()
