"""`set_model` and `set_logger`: objects that no config names, and runs that say that they had some."""

import importlib
import io
import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from resuming import Killed, assert_same_bits, at_call, kill, pointed_at
from rich.console import Console
from torch import Tensor, nn
from typer.testing import CliRunner

import palestra
from palestra.cli import app
from palestra.config import ConfigError, load_yaml
from palestra.kinds.games.export import export_player
from palestra.kinds.games.trainer import Trainer
from palestra.recording.recorders import Recorder, RunCard, RunEnd
from palestra.run.branching import extend
from palestra.storage.disk import RunFolderError
from palestra.storage.records_file import read_records
from palestra.training.stored_training import StoredRun

MakeConfig = Callable[..., dict[str, Any]]
CONFIGS = Path(__file__).parents[3] / "configs"


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
    assert f"trainer = palestra.Trainer.load('{run}', models={{'host': ...}}); trainer.fit()" in result.output
    attempts: list[Callable[[], object]] = [
        lambda: Trainer.load(run).fit(),
        lambda: palestra.load_player(run, "host"),
        lambda: StoredRun.open(run),
        lambda: Trainer.branch(run / "checkpoints" / "00000001", []),
    ]
    for attempt in attempts:
        with pytest.raises(RunFolderError, match="was trained with objects that no config names"):
            attempt()


def test_a_run_is_loaded_branched_and_evaluated_with_the_networks_that_are_handed_over_again(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    run, whole = tmp_path / "run", tmp_path / "whole"
    for folder, stop in ((whole, 16), (run, 8)):
        trainer = Trainer(make_config({"stop.after": stop, "output.keep_last": 9}), run=folder)
        trainer.set_model("host", Sum(4))
        trainer.fit()
    extend(run, ["stop.after=16"])
    loaded = Trainer.load(run, models={"host": Sum(4)})
    with at_call(Trainer, "safe_point", 5, kill), pytest.raises(Killed):
        loaded.fit()
    Trainer.load(run, models={"host": Sum(4)}).fit()
    assert pointed_at(run, "latest") == pointed_at(whole, "latest")

    trained = {name: value.clone() for name, value in trainer.host_net.state_dict().items()}
    given = Sum(4)
    player = palestra.load_player(run, "host", "1", models={"host": given})
    assert same_weights(player.nets["q"], trained)
    stored = StoredRun.open(run, models={"host": given})
    stored.load("latest")
    with pytest.raises(ValueError, match=r"^expected one of the evaluations main, got 'mian'$"):
        stored.evaluate("mian", None)
    _, record = stored.evaluate("main", None)
    final = [r for r in read_records(run / "records.jsonl") if r["kind"] == "evaluation"][-1]
    assert record["pairs"] == final["pairs"]
    assert set(export_player(player, tmp_path / "exported", onnx=False)) == {"policy.pt2"}

    gamma = "players.host.algorithm.gamma=0.5"
    branch = Trainer.branch(run / "checkpoints" / "00000001", [gamma], run=tmp_path / "branch", models={"host": given})
    branch.fit()
    assert not same_weights(branch.host_net, trained)
    assert same_weights(given, Sum(4).state_dict())
    assert json.loads((tmp_path / "branch" / "run.json").read_text())["set_in_python"] == ["set_model('host', ...)"]


def same_weights(net: nn.Module, state: Mapping[str, Tensor]) -> bool:
    return all(torch.equal(value, state[name]) for name, value in net.state_dict().items())


def test_networks_are_handed_over_to_roles_of_runs_that_had_some(make_config: MakeConfig, tmp_path: Path) -> None:
    run = tmp_path / "run"
    Trainer(make_config({"stop.after": 8}), run=run).fit()
    with pytest.raises(
        RunFolderError, match=r"expected no objects from Python, because its config names all, got some"
    ):
        StoredRun.open(run, models={"host": Sum(4)})
    with pytest.raises(
        RunFolderError, match=r"expected no objects from Python, because its config names all, got some"
    ):
        Trainer.load(run, models={"host": Sum(4)}).fit()
    trainer = Trainer(make_config({"stop.after": 8}), run=tmp_path / "own")
    trainer.set_model("host", Sum(4))
    trainer.fit()
    with pytest.raises(RunFolderError, match=r"only Python can continue it.*models=\{'host': \.\.\.\}\)"):
        StoredRun.open(tmp_path / "own", models={"agent": Sum(4)})


MODULE = """
import torch


class Sum(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 4)

    def forward(self, observation):
        return self.layer(observation["points"].clamp(min=0.0).sum(dim=1))


def make():
    return Sum()


def bad():
    return 7


def broken():
    raise OSError("no weights here")


nested = [lambda: Sum()]
"""


@pytest.mark.parametrize("builder", ["make", "Sum"])
def test_a_run_with_a_builder_of_its_networks_goes_on_from_the_shell(
    builder: str, make_config: MakeConfig, in_tmp_path: Path
) -> None:
    (in_tmp_path / "host_nets.py").write_text(MODULE)
    module = importlib.import_module("host_nets")
    config = make_config({"stop.after": 16})
    for run in ("run", "whole"):
        trainer = Trainer(config, run=run)
        trainer.set_model("host", getattr(module, builder))
        assert isinstance(trainer.host_net, module.Sum)
        with at_call(Trainer, "safe_point", 9 if run == "run" else 0, kill), suppress(Killed):
            trainer.fit()
    stored = palestra.load_config("run/config.yml").players["host"]
    assert stored.algorithm.net.model_dump() == {"name": f"host_nets:{builder}"}  # type: ignore[union-attr]
    for command in (["resume", "run"], ["verify", "run"], ["evaluate", "run"], ["export", "run", "--player", "host"]):
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 0, result.output
    assert_same_bits(Path("run"), Path("whole"))
    facts = json.loads(Path("run/run.json").read_text())
    assert (facts["set_in_python"], list(facts["user_classes"])) == ([], [f"host_nets:{builder}"])
    result = CliRunner().invoke(app, ["branch", "run/checkpoints/latest", "stop.after=24"])
    assert result.exit_code == 0, result.output


@pytest.mark.usefixtures("forked_evaluators")
def test_evaluators_build_the_network_of_a_builder(make_config: MakeConfig, in_tmp_path: Path) -> None:
    (in_tmp_path / "evaluated_nets.py").write_text(MODULE)
    results = {"after": 3, "unit": "opt_steps"}
    beside = {"num_processes": 1, "results": results, "timeout_s": 120.0, "max_restarts": 0}
    trainer = Trainer(make_config({"stop.after": 8, "evaluators": beside}), run="beside")
    trainer.set_model("host", importlib.import_module("evaluated_nets").make)
    trainer.fit()
    kinds = {record["kind"] for record in read_records(Path("beside/records.jsonl"))}
    assert kinds == {"training", "evaluation"}  # none has failed


def test_a_config_names_a_builder_as_set_model_does(make_config: MakeConfig, in_tmp_path: Path) -> None:
    (in_tmp_path / "host_nets.py").write_text(MODULE)
    named = Trainer(make_config({"players.host.algorithm.net": {"name": "host_nets:make"}}), run="named")
    handed = Trainer(make_config(), run="handed")
    handed.set_model("host", {"net": importlib.import_module("host_nets").make})
    for trainer in (named, handed):
        trainer.fit()
    assert_same_bits(Path("named"), Path("handed"))


def test_a_builder_that_cannot_be_used_is_told(make_config: MakeConfig, in_tmp_path: Path) -> None:
    (in_tmp_path / "host_nets.py").write_text(MODULE)
    module = importlib.import_module("host_nets")
    trainer = Trainer(make_config())
    expected = (
        "^set_model: expected a function or a class that can be imported from a module, got .*; call it, and hand"
    )
    for builder in (module.nested[0], lambda: Sum(4)):
        with pytest.raises(ValueError, match=expected):
            trainer.set_model("host", builder)
    for name, message in (
        ("bad", "expected a torch.nn.Module from 'host_nets:bad', got int"),
        ("broken", "'host_nets:broken' fails: OSError: no weights here (host_nets.py, line 23)"),
    ):
        with pytest.raises(ConfigError, match=re.escape(f"players.host.algorithm.net.name: {message}")):
            trainer.set_model("host", getattr(module, name))


def test_networks_that_do_not_fit_are_told(make_config: MakeConfig, tmp_path: Path) -> None:
    trainer = Trainer(make_config({"players.agent": {"scripted": "random"}}), run=tmp_path / "run")
    with pytest.raises(ConfigError) as error:
        trainer.set_model("host", Sum(7))
    message = "expected outputs of shape (2, 4) for 2 worlds from the Sum of set_model, got (2, 7)"
    assert str(error.value) == f"players.host.algorithm.net: {message}"
    with pytest.raises(
        ConfigError, match=r"host\.algorithm\.net: expected outputs of shape \(2, 4\) .* from the Linear"
    ):
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


# ---- what is given without its role, as a plain module, or is something else -----------------------------------


def test_where_one_player_learns_its_networks_need_no_role(make_config: MakeConfig) -> None:
    trainer = Trainer(make_config({"players.agent": {"scripted": "random"}}))
    net = Sum(4)
    trainer.set_model(net)
    assert trainer.host_net is net
    assert trainer.run.set_in_python == ["set_model('host', ...)"]
    trainer.set_model({"net": Sum(4)})
    assert trainer.host_net is not net
    for arguments, message in (
        (("host",), r"^set_model: expected networks beside the role 'host', got none$"),
        ((Sum(4), "host"), r"^set_model: expected the name of a role before the networks, got Sum$"),
    ):
        with pytest.raises(ValueError, match=message):
            trainer.set_model(*arguments)
    several = Trainer(make_config())
    with pytest.raises(ValueError, match=r"^set_model: expected one of the roles host, agent before the networks"):
        several.set_model(Sum(4))


def test_a_run_of_one_player_that_learns_is_opened_with_its_networks_without_a_role(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    trainer = Trainer(make_config({"stop.after": 8, "players.agent": {"scripted": "random"}}), run=run)
    trainer.set_model(Sum(4))
    trainer.fit()
    trained = trainer.host_net.state_dict()
    extend(run, ["stop.after=12"])
    for models in (Sum(4), {"net": Sum(4)}, {"host": Sum(4)}):
        assert same_weights(palestra.load_player(run, models=models).nets["q"], trained)
        stored = StoredRun.open(run, models=models)
        stored.load("latest")
        assert same_weights(stored.players["host"].nets["q"], trained)
        assert isinstance(Trainer.load(run, models=models).host_net, Sum)
    latest = run / "checkpoints" / "latest"
    assert isinstance(Trainer.branch(latest, [], run=tmp_path / "branch", models=Sum(4)).host_net, Sum)
    Trainer.load(run, models=Sum(4)).fit()
    with pytest.raises(ValueError, match=r"^expected one of the roles host, agent, got 'hots'; did you mean 'host'\?$"):
        Trainer.load(run, models={"hots": Sum(4)})


def test_networks_without_a_role_where_several_players_learn_are_told_the_roles(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    trainer = Trainer(make_config({"stop.after": 4}), run=tmp_path / "run")
    trainer.set_model("host", Sum(4))
    trainer.fit()
    with pytest.raises(ValueError, match=r"^models: expected \{'host': ..., 'agent': ...\} \(several .* got Sum$"):
        Trainer.load(tmp_path / "run", models=Sum(4))


def test_an_unknown_role_is_told_with_those_that_there_are(make_config: MakeConfig) -> None:
    trainer = Trainer(make_config())
    for call in (
        lambda: trainer.set_model("agnt", Sum(3)),
        lambda: trainer.player_of("agnt"),
        lambda: trainer.recent_returns("agnt"),
        lambda: trainer.roll_out("agnt", 1),
    ):
        with pytest.raises(
            ValueError, match=r"^expected one of the roles host, agent, got 'agnt'; did you mean 'agent'\?$"
        ):
            call()


def test_a_plain_module_gets_the_only_entry_of_an_observation_and_learns_as_one_that_reads_the_dict(
    tmp_path: Path,
) -> None:
    class Reads(nn.Sequential):
        def forward(self, observation: dict[str, torch.Tensor]) -> torch.Tensor:
            return super().forward(observation["observation"])

    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    reads = Reads(*deepcopy(plain))
    runs, config = {}, small("dqn-cartpole")
    config["output"]["save"] = {"every": 6, "unit": "opt_steps"}
    for name, net in (("plain", plain), ("reads", reads)):
        trainer = Trainer(config, run=tmp_path / name)
        trainer.set_model(net)
        trainer.fit()
        runs[name] = Trainer.load(tmp_path / name, models={"agent": net})
        runs[name].fit()
        palestra.load_player(tmp_path / name, models={"agent": net}).predict(torch.zeros(4).numpy())
    assert plain(torch.zeros(1, 4)).shape == (1, 2)  # its user's own calls still work
    for one, other in zip(runs["plain"].agent_net.parameters(), runs["reads"].agent_net.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_module_that_reads_neither_is_told_with_both_reasons() -> None:
    trainer = Trainer(small("dqn-cartpole"))
    whole, entry = "fails on this observation: .*not dict", "on its entry 'observation' alone: .*cannot be multiplied"
    with pytest.raises(ConfigError, match=f"the Linear of set_model {whole}.*; and {entry}"):
        trainer.set_model(nn.Linear(5, 2))


@pytest.mark.parametrize("given", [print, Listed, "listed"])
def test_what_is_no_recorder_or_callback_is_refused_at_once(given: Any, make_config: MakeConfig) -> None:
    trainer = Trainer(make_config())
    with pytest.raises(
        TypeError, match=r"^set_logger: expected a Logger, or an object of a class that derives from .*Recorder, got"
    ):
        trainer.set_logger(given)
    assert trainer.run.set_in_python == []
    with pytest.raises(
        TypeError, match=r"^callbacks: expected a list of objects of classes that derive from palestra.Callback, got"
    ):
        Trainer(make_config(), callbacks=given)
    with pytest.raises(TypeError, match=r"^callbacks: expected a list of "):
        Trainer(make_config(), callbacks=[given])
