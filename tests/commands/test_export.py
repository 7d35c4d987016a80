"""Exported players run without palestra and act as they did.

Covers palestra.algorithms.parts.exported, palestra.kinds.games.export, palestra.games.gymnasium.game.
"""

import copy
import json
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import palestra
from palestra.algorithms.dqn import DQN
from palestra.cli import app
from palestra.commands.starting import starting_config
from palestra.config import load_yaml
from palestra.kinds.games.export import ExportError, export_player
from palestra.run.kinds import ExportOptions, kind_named
from tests.conftest import TINY
from tests.forked import ForkedWithoutPalestra
from tests.forked import run as run_process

ROOT = Path(__file__).parents[2]
ALONE = """
import sys, torch
sys.modules["palestra"] = None
policy = torch.export.load(sys.argv[1]).module()
points = torch.full((3, 6, 3), -1.0)
points[:, :2] = torch.tensor([[0.0, 0.2, 1.0], [1.0, 0.1, 0.0]])
action, values = policy({"points": points}, torch.ones(3, 4, dtype=torch.bool))
print(action.tolist(), values.shape)
"""


@pytest.fixture(scope="module", autouse=True)
def operators_read_once() -> Iterator[None]:
    """For each file torch's exporter reads the sources of all operators of ONNX: a quarter of its time."""
    from torch.onnx._internal.exporter._registration import onnxscript_apis

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(onnxscript_apis, "get_torchlib_ops", cache(onnxscript_apis.get_torchlib_ops))
        yield


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    palestra.Trainer(TINY | {"output": TINY["output"] | {"display": "quiet"}}, run=folder).fit()
    return folder


@pytest.fixture(scope="module")
def exported(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a role's player, exported once."""

    @cache
    def export(role: str) -> Path:
        folder = tmp_path_factory.mktemp("exports") / role
        checked = export_player(palestra.load_player(run, role), folder, onnx=True)
        assert checked == {"policy.pt2": 512, "policy.onnx": 512}
        return folder

    return export


@pytest.mark.parametrize("role", ["host", "agent"])
def test_exported_files_act_as_the_player(role: str, exported: Callable[[str], Path]) -> None:
    description = json.loads((exported(role) / "policy.json").read_text())
    assert description["observation"]["points"] == {"shape": ["batch", 6, 3], "dtype": "float32", "path": []}
    session = onnxruntime.InferenceSession(str(exported(role) / "policy.onnx"))
    assert [output.name for output in session.get_outputs()] == description["outputs"]
    assert description["outputs"] == ["action", "q_values_or_logits"]


@pytest.mark.parametrize(
    "name",
    ["sac-pendulum", "td3-pendulum", "on_policy-cartpole", "on_policy-pendulum", "off_policy-cartpole"],
)
def test_players_of_every_algorithm_can_be_exported(name: str, tmp_path: Path) -> None:
    """Those of PPO are exported below from the shell, and those of DQN above."""
    [player] = palestra.Trainer(ROOT / "configs" / f"{name}.yml").players.values()
    assert export_player(player, tmp_path / "export", onnx=True) == {"policy.pt2": 512, "policy.onnx": 512}


VALUES = [
    {"name": "expected", "huber_delta": 1.0},
    {"name": "c51", "num_atoms": 11, "low": -1.0, "high": 1.0},
    {"name": "quantile", "num_quantiles": 4, "huber_delta": 1.0},
    {
        "name": "implicit_quantile",
        "num_quantiles": 4,
        "num_target_quantiles": 4,
        "num_acting_quantiles": 8,
        "num_cosines": 8,
        "embedding_dim": 8,
        "huber_delta": 1.0,
    },
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: value["name"])
def test_mean_values_of_choices_are_exported(value: dict[str, Any], tmp_path: Path) -> None:
    config = copy.deepcopy(TINY) | {"stop": {"after": 2, "unit": "opt_steps"}, "evaluations": [], "best": None}
    config["players"]["host"]["algorithm"] |= {"dueling": True, "value": value}
    player = palestra.Trainer(config).players["host"]
    is_onnx = value["name"] != "expected"  # as the players above
    checked = {"policy.pt2": 512} | ({"policy.onnx": 512} if is_onnx else {})
    assert export_player(player, tmp_path / "export", onnx=is_onnx) == checked
    policy = torch.export.load(tmp_path / "export/policy.pt2").module()
    points = torch.rand(5, 6, 3)
    _, values = policy({"points": points}, torch.ones(5, 4, dtype=torch.bool))
    assert isinstance(player.algorithm, DQN)
    with torch.no_grad():
        assert torch.allclose(values, player.algorithm.values({"points": points}), atol=1e-5)


def env_values(observation: Any, said: dict[str, Any]) -> dict[str, np.ndarray]:
    """The entries of an observation of an environment as policy.json says: at their paths, as a batch of one."""
    found = {}
    for name, entry in said["observation"].items():
        part = observation
        for key in entry["path"]:
            part = part[key]
        found[name] = np.asarray(part)[None].astype(entry["dtype"])
        assert found[name].shape[1:] == tuple(entry["shape"][1:])
    return found


@pytest.mark.parametrize(
    ("algorithm", "actions"),
    [("dqn", "discrete"), ("ppo", "multi_discrete"), ("ppo", "multi_binary"), ("ppo", "box")],
)
def test_files_take_what_an_environment_gives_and_give_what_it_takes(
    algorithm: str, actions: str, tmp_path: Path
) -> None:
    changes = [f"game.arguments={{actions: {actions}}}", "output.display=quiet", "num_worlds=2", "evaluations=[]"]
    changes += [
        "game.observation={normalize: {eps: 1.0e-8}, clip: 2.0, channels: last}",
        "best=null",
        "stop={after: 1, unit: epochs}",
    ]
    config = starting_config(algorithm, ["tests.gym_oddities:Foreign-v0", *changes])
    # A new network of relu prefers one action everywhere: its features are all positive. One of tanh, which is many
    # operations, takes long to export.
    activation, scale = ('"tanh"', 0.3) if algorithm == "dqn" else ('"elu"', 1.0)
    named = json.dumps(config.model_dump()).replace('"relu"', activation).replace('"tanh"', activation)
    trainer = palestra.Trainer(json.loads(named))
    player = trainer.players["agent"]
    assert player.game is not None
    for _ in range(2):  # something for the statistics
        trainer.roll_out("agent", 20)
    drawn = torch.Generator().manual_seed(0)
    for net in player.nets.values():
        for weight in net.parameters():  # else a new policy prefers one action everywhere
            if weight.dim() > 1:
                weight.data += scale * torch.randn(weight.shape, generator=drawn)
    before = str(player.game.state_dict())
    is_onnx = actions == "discrete"
    checked = export_player(player, tmp_path / "out", onnx=is_onnx)
    assert set(checked.values()) == {512}
    assert str(player.game.state_dict()) == before
    said = json.loads((tmp_path / "out/policy.json").read_text())
    program = torch.export.load(tmp_path / "out/policy.pt2").module()
    env = gymnasium.make("tests.gym_oddities:Foreign-v0", actions=actions)
    if is_onnx:
        session = onnxruntime.InferenceSession(str(tmp_path / "out/policy.onnx"))
    legal, seen = np.ones((1, said["legal"]["shape"][1]), bool), set()
    for seed in range(12):
        observation, _ = env.reset(seed=seed)
        values = env_values(observation, said)
        action, _ = program({name: torch.from_numpy(value) for name, value in values.items()}, torch.from_numpy(legal))
        expected, _ = player.predict(observation)
        assert env.action_space.contains(action[0].numpy()[()])
        assert np.allclose(action[0].numpy(), expected, atol=1e-4)
        assert str(action.dtype) == f"torch.{said['action']['dtype']}"
        seen.add(str(expected))
        if is_onnx and seed < 5:
            inputs = {said["onnx_names"][name]: value for name, value in values.items()} | {"legal": legal}
            given = {name: inputs[name] for name in said["onnx_inputs"]}
            assert session.run(["action"], given)[0].tolist() == action.tolist()
    assert len(seen) > 1
    if is_onnx:
        assert said["onnx_names"]["action"] == "observation_action"
        assert said["onnx_names"]["legal"] == "observation_legal"


def test_files_stay_in_the_run_whatever_name_the_player_has(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded, folders = palestra.load_player(run, "host"), list[Path]()
    loaded.name = "../ü"
    monkeypatch.setattr("palestra.kinds.games.stored.load_player", lambda *_: loaded)
    monkeypatch.setattr(
        "palestra.kinds.games.export.export_player", lambda player, folder, *_: folders.append(folder) or {}
    )
    person: Any = SimpleNamespace(say=print)
    kind_named("in_turn").export(run, ExportOptions(None, "latest", False, "host", None, False), person)
    assert folders == [run / "export" / f"%2E%2E%2F%C3%BC-host-{loaded.opt_steps}"]


def test_players_whose_opponents_have_other_actions_are_exported(tmp_path: Path) -> None:
    config = starting_config("ppo", ["dialogue", "output.display=quiet"])
    players = palestra.make_trainer(config).players
    nums = {name: player.action_space.num_flags for name, player in players.items()}
    assert len(set(nums.values())) == len(nums) > 1
    for name, player in players.items():
        assert export_player(player, tmp_path / name, onnx=False) == {"policy.pt2": 512}


def test_a_program_runs_where_palestra_is_not(run: Path, exported: Callable[[str], Path]) -> None:
    player = palestra.load_player(run, "host")
    command = [sys.executable, "-c", ALONE, str(exported("host") / "policy.pt2")]
    done = run_process(command, start=ForkedWithoutPalestra, cwd="/", capture_output=True, text=True, check=True)
    points = torch.full((3, 6, 3), -1.0)
    points[:, :2] = torch.tensor([[0.0, 0.2, 1.0], [1.0, 0.1, 0.0]])
    legal = torch.ones(3, 4, dtype=torch.bool)
    own = player.policy(explore=False).act({"points": points}, legal, torch.arange(3), {}).action
    assert done.stdout.split(" torch")[0] == str(own.tolist())


def test_illegal_actions_are_never_exported_ones(exported: Callable[[str], Path]) -> None:
    session = onnxruntime.InferenceSession(str(exported("agent") / "policy.onnx"))
    rng = np.random.default_rng(0)
    inputs: dict[str, Any] = {
        "points": rng.random((50, 6, 3), dtype=np.float32),
        "coords": np.ones((50, 3), np.float32),
    }
    for only in range(3):
        legal = np.zeros((50, 3), dtype=bool)
        legal[:, only] = True
        (action,) = session.run(["action"], inputs | {"legal": legal})
        assert (action == only).all()


def test_files_that_act_otherwise_are_refused_and_removed(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Wrong(nn.Module):
        def forward(
            self, observation: dict[str, torch.Tensor], legal: torch.Tensor
        ) -> tuple[torch.Tensor, torch.Tensor]:
            action = torch.zeros_like(legal[:, 0], dtype=torch.int64)
            return action, legal * torch.arange(4)

    module: Callable[[DQN], nn.Module] = lambda dqn: Wrong().eval()  # noqa: E731
    monkeypatch.setattr(DQN, "module", module)
    player = palestra.load_player(run, "host")
    with pytest.raises(
        ExportError, match=r"policy\.pt2: expected the player's actions, got others in \d+ of 512 decisions$"
    ):
        export_player(player, tmp_path / "export", onnx=False)
    assert not (tmp_path / "export").exists()


def test_a_folder_that_exists_is_left_alone(run: Path) -> None:
    folder = run / "export" / f"host-{palestra.load_player(run, 'host').opt_steps}"
    folder.mkdir(parents=True)
    result = CliRunner().invoke(app, ["export", str(run), "--player", "host"])
    assert result.exit_code == 2
    message = f"{folder} exists already; move it away or delete it, to export the player again"
    assert " ".join(result.stderr.split()) == message
    assert list(folder.iterdir()) == []


def test_what_a_centralized_critic_observes_is_no_input(tmp_path: Path) -> None:
    changes = ["stop.after=4", "output.display=quiet", "output.recorders=[]", "best=null", "evaluations=[]"]
    changes += [f"players.farmer_{role}.algorithm.centralized_critic=true" for role in range(2)]
    config = starting_config("ppo", ["harvest", *changes])
    player = palestra.make_trainer(config).players["farmer_1"]
    assert export_player(player, tmp_path / "export", onnx=False) == {"policy.pt2": 512}
    assert not (tmp_path / "export/policy.onnx").exists()
    description = json.loads((tmp_path / "export/policy.json").read_text())
    assert description["observation"].keys() == player.spaces.keys() == {"seen"}


def exported_from_the_shell(is_recurrent: bool, run: str) -> list[str]:
    """What `palestra export` prints of a new player."""
    config = load_yaml(ROOT / "configs" / "ppo-cartpole.yml")
    config |= {"num_worlds": 4, "stop": {"after": 0.5, "unit": "epochs"}, "evaluations": [], "best": None}
    config["output"] |= {"display": "quiet", "recorders": []}
    if is_recurrent:
        encoder = {"name": "mlp", "net_arch": [], "activation": "tanh"}
        net = {"name": "recurrent", "encoder": encoder, "encoder_width": 8, "cell": "lstm", "hidden_size": 6}
        body = {"name": "shared", "net": net | {"net_arch": [], "activation": "tanh"}}
        config["players"]["agent"]["algorithm"] |= {"body": body, "num_minibatches": 1}
    palestra.Trainer(config, run=run).fit()
    result = CliRunner().invoke(app, ["export", run, "--onnx"])
    assert result.exit_code == 0, result.output
    return result.output.splitlines()


def test_the_printed_lines_load_the_files_where_palestra_is_not(in_tmp_path: Path) -> None:
    code, expected = ["import sys; sys.modules['palestra'] = None"], []
    for is_recurrent, run in ((False, "run"), (True, "recurrent")):
        lines = exported_from_the_shell(is_recurrent, run)
        assert sum("torch's ONNX exporter; this takes" in line for line in lines) == 1
        for name, num_loading in (("policy.pt2", 3), ("policy.onnx", 3)):
            start = lines.index(f"to use {name}:") + 1
            shown = lines[start : start + num_loading]
            assert [line.split()[0] for line in shown[:2]] == ["import", "policy"]
            code += [*shown, "print(action.shape, q_values_or_logits.shape)"]
            expected.append("torch.Size([1]) torch.Size([1, 2])" if name == "policy.pt2" else "(1,) (1, 2)")
    command = [sys.executable, "-c", "\n".join(code)]
    done = run_process(command, start=ForkedWithoutPalestra, capture_output=True, text=True, cwd="/")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == expected
