"""`set_model` and `set_logger`: objects that no config names, and runs that say that they had some.

Covers palestra.runs.stored.
"""

import io
import json
from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor, nn
from typer.testing import CliRunner

import palestra
from palestra.cli import app
from palestra.config import ConfigError, load_yaml
from palestra.recording.recorders import Recorder, RunCard, RunEnd
from palestra.runs.branching import extend
from palestra.runs.stored import StoredRun
from palestra.storage import RunFolderError
from palestra.storage.records_file import read_records
from palestra.training.trainer import Trainer

MakeConfig = Callable[..., dict[str, Any]]
CONFIGS = Path(__file__).parents[2] / "configs"

pytestmark = pytest.mark.usefixtures("no_plots")


def small(file: str) -> dict[str, Any]:
    config = load_yaml(CONFIGS / f"{file}.yml")
    config |= {"num_worlds": 4, "evaluations": [], "best": None, "stop": {"after": 12, "unit": "opt_steps"}}
    config["output"] |= {"display": "quiet", "recorders": [], "save": None}
    sizes = {"batch_size": 8, "warmup_env_steps": 8, "updates_per_turn": 4, "rollout_length": 8}
    algorithm = config["players"]["agent"]["algorithm"]
    algorithm |= {key: value for key, value in sizes.items() if key in algorithm}
    return config


def nets_of(trainer: Trainer, file: str) -> Any:
    nets = trainer.players["agent"].nets
    if file.startswith("dqn"):
        return nets["q"]
    if file.startswith("ppo"):
        return {"body.policy": nets["actor_critic"].policy, "body.value": nets["actor_critic"].value}
    return {"policy_net": nets["policy"], "critic_net": list(nets["critics"].children())}


@pytest.mark.parametrize("file", ["dqn-cartpole", "ppo-cartpole", "sac-pendulum", "td3-pendulum"])
def test_networks_that_are_given_learn_as_those_of_the_config(file: str, tmp_path: Path) -> None:
    named = Trainer(small(file), run=tmp_path / "named")
    given = Trainer(small(file) | {"seed": 0}, run=tmp_path / "given")
    given.set_model("agent", deepcopy(nets_of(named, file)))
    for trainer in (named, given):
        trainer.fit()
    for one, two in zip(*(trainer.players["agent"].nets.values() for trainer in (named, given)), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))


class Sum(nn.Module):
    """A network of a class that palestra does not know."""

    def __init__(self, num_outputs: int) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layer = nn.Linear(3, num_outputs)

    def forward(self, observation: Mapping[str, Tensor]) -> Tensor:
        outputs: Tensor = self.layer(observation["points"].clamp(min=0.0).sum(dim=1))
        return outputs


def test_a_run_with_a_network_of_ones_own_goes_on_from_python_alone(make_config: MakeConfig, tmp_path: Path) -> None:
    config, console = make_config(), Console(file=io.StringIO(), width=200)
    outputs = 4  # a host in three dimensions chooses among the sets of two coordinates or more
    ends = []
    for name, stops in (("whole", [24]), ("parts", [9, 24])):
        run = tmp_path / name
        for stop in stops:
            given = Sum(outputs)
            if stop == stops[0]:
                config["stop"]["after"] = stop
                config["output"]["display"] = "plain"
                trainer = Trainer(config, run=run, console=console)
            else:
                extend(run, [f"stop.after={stop}"])
                trainer = Trainer.load(run)
            trainer.set_model("host", given)
            trainer.fit()
            assert trainer.host_net is given
        ends.append([p.detach() for p in trainer.host_net.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))
    assert not torch.equal(ends[0][0], Sum(outputs).layer.weight)
    assert json.loads((run / "run.json").read_text())["set_in_python"] == ["set_model('host', ...)"]
    told = "this run cannot be rebuilt from its config: it uses objects from set_model('host', ...)"
    assert told in console.file.getvalue()  # type: ignore[attr-defined]

    result = CliRunner().invoke(app, ["resume", str(run)])
    assert result.exit_code == 2
    assert f"trainer = palestra.Trainer.load('{run}'); trainer.set_model('host', ...); trainer.fit()" in result.output
    attempts: list[Callable[[], object]] = [
        lambda: Trainer.load(run).fit(),
        lambda: palestra.load_player(run, "host"),
        lambda: StoredRun.open(run),
        lambda: Trainer.branch(run / "checkpoints" / "00000001", []),
    ]
    for attempt in attempts:
        with pytest.raises(RunFolderError, match="was trained with objects that no config names"):
            attempt()


def test_networks_that_do_not_fit_are_told(make_config: MakeConfig, tmp_path: Path) -> None:
    trainer = Trainer(make_config({"players.agent": {"scripted": "random"}}), run=tmp_path / "run")
    with pytest.raises(ConfigError) as error:
        trainer.set_model("host", Sum(7))
    message = "expected outputs of shape (2, 4) for 2 worlds from the Sum of set_model, got (2, 7)"
    assert str(error.value) == f"players.host.algorithm.net: {message}"
    with pytest.raises(ConfigError, match=r"host\.algorithm\.net: the Linear of set_model fails on this observation"):
        trainer.set_model("host", nn.Linear(3, 4))
    with pytest.raises(ValueError, match=r"^set_model: expected some of the networks net of 'host', got 'body'$"):
        trainer.set_model("host", {"body": Sum(4)})
    with pytest.raises(ValueError, match=r"^set_model: expected a role whose player learns, got one of 'agent'$"):
        trainer.set_model("agent", Sum(4))
    sac = Trainer(small("sac-pendulum"))
    with pytest.raises(ConfigError, match=r"critic_net: expected a list of at least 2 networks from set_model, got 1"):
        sac.set_model("agent", {"critic_net": next(iter(sac.players["agent"].nets["critics"].children()))})
    trainer.fit()
    with pytest.raises(
        RuntimeError, match=r"^set_model: expected a call before fit\(\), got one after the run has begun$"
    ):
        trainer.set_model("host", Sum(4))


class Listed(Recorder):
    """Files records in a list, and how the run ended."""

    def __init__(self) -> None:
        self.filed: list[Mapping[str, Any]] = []
        self.end: RunEnd | None = None

    def open(self, run: RunCard) -> int:
        return len(self.filed)

    def write(self, number: int, record: Mapping[str, Any]) -> None:
        self.filed.append(record)

    def flush(self) -> None:
        pass

    def close(self, end: RunEnd) -> None:
        self.end = end


def test_a_recorder_of_ones_own_files_every_record_once(make_config: MakeConfig, tmp_path: Path) -> None:
    logger = Listed()
    trainer = Trainer(make_config({"stop.after": 8}), run=tmp_path / "run")
    trainer.set_logger(logger)
    trainer.fit()
    assert logger.filed == read_records(tmp_path / "run" / "records.jsonl")
    assert logger.end is not None
    assert logger.end.status == "complete"
    extend(tmp_path / "run", ["stop.after=16"])
    with pytest.raises(RunFolderError, match=r"trainer.set_logger\(Listed\(...\)\); trainer.fit\(\)"):
        Trainer.load(tmp_path / "run").fit()
    resumed = Trainer.load(tmp_path / "run")
    resumed.set_logger(logger)
    resumed.fit()
    assert logger.filed == read_records(tmp_path / "run" / "records.jsonl")
    assert palestra.load_player(tmp_path / "run", "host").opt_steps > 0  # its networks stand in its config
