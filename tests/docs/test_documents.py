"""What the documents show is run.

Covers palestra.
"""

import inspect
import pkgutil
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import ANY

import nbformat
import numpy as np
import pytest
import torch
import yaml
from nbclient import NotebookClient
from typer.testing import CliRunner

import palestra
from palestra.algorithms.dqn import DQN, DQNConfig
from palestra.algorithms.ppo import PPO
from palestra.algorithms.sac import SAC
from palestra.algorithms.td3 import TD3
from palestra.cli import app
from palestra.config import Config, check, load_yaml
from palestra.config.variants import members_of, names_of
from palestra.games import TensorGame, make_game
from palestra.games.spaces import Space
from palestra.nets import AnyNetConfig, make_net
from palestra.rollouts.transitions import Transitions
from palestra.runtime.timing import PHASES
from palestra.storage.records_file import read_records
from palestra.testing import check_game

ROOT = Path(__file__).parents[2]
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/*.md")), ROOT / "benchmarks" / "README.md"]


class Holder(Config):
    net: AnyNetConfig


def test_the_quickstart_notebook_runs_from_top_to_bottom_outside_a_checkout(tmp_path: Path) -> None:
    """With fewer opt steps and games than a reader sees."""
    notebook = nbformat.read(ROOT / "docs" / "quickstart.ipynb", as_version=4)
    [shown] = [cell for cell in notebook.cells if "stop={" in cell.source]
    shown.source, num_changes = re.subn(r"(after: |num_games=)\d+", r"\g<1>20", shown.source)
    assert num_changes == 3
    client = NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": tmp_path}})
    client.execute()
    [fit] = [cell for cell in notebook.cells if "trainer.fit()" in cell.source]
    outputs = [each for each in fit.outputs if "compiling kernels" not in each.get("text", "")]  # if none are cached
    frame, names = outputs  # in place, and nothing below it but what the cell gives
    assert (frame.output_type, names.output_type) == ("display_data", "execute_result")
    assert "finished" in frame.data["text/html"]
    printed = "".join(o.get("text", "") for cell in notebook.cells for o in cell.get("outputs", []))
    assert "host vs agent" in printed
    assert "expected a discount between 0 and 1, got" in printed


def test_all_that_palestra_offers_is_listed() -> None:
    assert {*palestra.__all__, "__version__"} <= set(dir(palestra))
    assert len(dir(palestra)) == len(set(dir(palestra)))


def test_the_five_lines_of_the_readme_train_load_and_play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "README.md").read_text()
    (five,) = re.findall(r"```python\n(.*?)```", text, re.S)
    (more,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "commands.md").read_text(), re.S)
    assert len([line for line in five.splitlines() if line and not line.startswith("import")]) == 5
    config = load_yaml(ROOT / "configs" / "ppo-cartpole.yml") | {"stop": {"after": 2048, "unit": "env_steps"}}
    config["evaluations"][0] |= {"num_games": 2, "final_num_games": 2}
    config["output"] |= {"display": "quiet", "recorders": []}
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "ppo-cartpole.yml").write_text(yaml.safe_dump(config))
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(five, names)
    assert names["rewards"].tolist() == [1.0] * 4
    chosen, _ = names["player"].predict(names["observations"])
    assert names["environments"].action_space.contains(chosen)
    view = {"observation": torch.from_numpy(names["observations"])}
    legal, keys = torch.ones(4, 2, dtype=torch.bool), torch.arange(4)
    assert chosen.tolist() == names["player"].policy(explore=False).act(view, legal, keys, {}).action.tolist()
    exec(more.partition("from palestra.games.polyhedra import")[0], names)
    (*_, loop) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "gymnasium.md").read_text(), re.S)
    exec(loop, names)
    assert names["rewards"].tolist() == [1.0] * 4


def test_the_algorithm_of_the_document_trains_a_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "docs" / "own-algorithm.md").read_text()
    code, entry = re.search(r"```python\n(.*?)```", text, re.S), re.search(r"```yaml\n(.*?)```", text, re.S)
    assert code
    assert entry
    (tmp_path / "reinforce.py").write_text(code[1])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    config = load_yaml(ROOT / "configs" / "dqn-polyhedra.yml")
    config["players"] = load_yaml(entry[1])["players"] | {"agent": {"scripted": "random"}}
    pairings = [{"host": "host", "agent": "random"}]
    config["evaluations"][0] |= {"interval": None, "num_games": 50, "final_num_games": 50, "pairings": pairings}
    config["best"] = None
    config |= {"num_worlds": 16, "stop": {"after": 20, "unit": "opt_steps"}}
    config["output"] |= {"display": "quiet", "recorders": []}
    trainer = palestra.Trainer(config, run=tmp_path / "run")
    before = [p.clone() for p in trainer.host_net.parameters()]
    trainer.fit()
    assert trainer.opt_steps == 20
    assert any((a != b).any() for a, b in zip(before, trainer.host_net.parameters(), strict=True))


def test_the_values_of_the_document_are_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = re.search(r"```python\n(.*?)```", (ROOT / "docs" / "recorders.md").read_text(), re.S)
    assert code
    (tmp_path / "notes.py").write_text(code[1])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    config = load_yaml(ROOT / "configs" / "dqn-polyhedra.yml")
    config |= {"num_worlds": 16, "stop": {"after": 4, "unit": "opt_steps"}, "callbacks": [{"name": "notes:Notes"}]}
    config["evaluations"][0] |= {"num_games": 20, "final_num_games": 20}
    config["output"] |= {"display": "quiet", "recorders": [], "save": None}
    palestra.Trainer(config, run=tmp_path / "run").fit()
    notes = [record["notes"] for record in read_records(tmp_path / "run" / "records.jsonl") if "notes" in record]
    forms = {name: next(iter(value)) for name, value in notes[-1].items() if isinstance(value, dict)}
    assert forms == {"weights": "histogram", "remark": "text", "board": "image", "film": "video"}
    assert (tmp_path / "run" / notes[-1]["film"]["video"]).is_file()


def test_the_evaluators_of_the_document_play_and_its_command_watches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (ROOT / "docs" / "evaluation.md").read_text()
    blocks = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", text, re.S)]
    [evaluators] = [block for block in blocks if "evaluators" in block]
    command = re.search(r"```sh\npalestra (evaluate .*?)\n```", text, re.S)
    assert command
    config = load_yaml(ROOT / "configs" / "dqn-nim.yml") | evaluators | {"stop": {"after": 8, "unit": "opt_steps"}}
    config["evaluations"][0] |= {"num_games": 5, "final_num_games": 5}
    config["output"] |= {"display": "quiet", "recorders": []}
    monkeypatch.chdir(tmp_path)
    palestra.Trainer(config, run="runs/mine").fit()
    records = read_records(Path("runs/mine/records.jsonl"))
    assert [(r["kind"], r["opt_steps"]) for r in records] == [("evaluation", 0), ("evaluation", 8), ("training", 8)]
    shown = CliRunner().invoke(app, command[1].split()).output.splitlines()
    assert [line.split(":")[0] for line in shown] == ["checkpoint 00000000", "checkpoint 00000001", ANY]
    assert len(list(Path("runs/mine/evaluations").glob("main-opt-step-*.json"))) == 2


@pytest.mark.parametrize(
    ("config", "name", "added", "changes"),
    [
        ("ppo-cartpole", "losses:RollbackPPO", {"rollback": 0.3}, {"rollout_length": 32}),
        ("ppo-cartpole", "losses:NearTheStartPPO", {"start_coefficient": 0.5}, {"rollout_length": 32}),
        ("sac-pendulum", "losses:HuberSAC", {"huber_delta": 1.0}, {"warmup_env_steps": 8}),
    ],
)
def test_the_losses_of_the_document_are_learned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: str, name: str, added: Any, changes: Any
) -> None:
    text = (ROOT / "docs" / "own-algorithm.md").read_text()
    (code,) = [block for block in re.findall(r"```python\n(.*?)```", text, re.S) if "class HuberSAC" in block]
    (tmp_path / "losses.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    data = load_yaml(ROOT / "configs" / f"{config}.yml")
    data |= {"stop": {"after": 8, "unit": "opt_steps"}, "evaluations": [], "best": None, "num_worlds": 2}
    data["output"] |= {"display": "quiet", "recorders": []}
    algorithm = data["players"]["agent"]["algorithm"]
    algorithm |= changes
    trained = []
    for own in ({}, {"name": name, **added}):
        data["players"]["agent"]["algorithm"] = algorithm | own
        trainer = palestra.Trainer(data, run=tmp_path / str(len(own)))
        trainer.fit()
        trained.append(torch.cat([p.detach().flatten() for p in trainer.agent_net.parameters()]))
    assert type(trainer.players["agent"].algorithm).__name__ == name.partition(":")[2]
    kernels = trainer.players["agent"].algorithm.kernels_in_use()
    assert kernels.get("gradient_kernel", "torch") == "torch"  # which has the derivatives of the stock loss
    assert trained[1].isfinite().all()
    assert not torch.equal(*trained)
    palestra.Trainer.load(tmp_path / str(len(own))).fit()  # it is finished, and says so


def test_the_callbacks_of_the_document_act(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "docs" / "callbacks.md").read_text()
    listed = re.search(r"```yaml\n(.*?)```", text, re.S)
    own, _, given = re.findall(r"```python\n(.*?)```", text, re.S)
    assert listed
    (tmp_path / "my_callbacks.py").write_text(own)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    config = load_yaml(ROOT / "configs" / "ppo-cartpole.yml") | yaml.safe_load(listed[1])
    config["stop"] = {"after": 40000, "unit": "env_steps"}
    config["evaluations"][0] |= {"num_games": 2, "final_num_games": 2, "max_rounds": 20}
    config["evaluations"][0]["interval"] = {"every": 4096, "unit": "env_steps"}
    config["output"] |= {"display": "quiet", "recorders": [], "save": None}
    config["callbacks"][2]["at"]["after"] = 4096
    config["callbacks"][-1]["returns"] = 60.0
    trainer = palestra.Trainer(config, run=tmp_path / "run")
    before = {name: weight.detach().clone() for name, weight in trainer.agent_net.named_parameters()}
    trainer.fit()
    player = trainer.players["agent"]
    assert player.schedules()["objective.epsilon"](0) == 0.1
    assert trainer.env_steps < 40000
    assert "mean return" in trainer.end_reason or "early stopping: return/agent" in trainer.end_reason
    kept = [name for name, weight in trainer.agent_net.named_parameters() if torch.equal(weight, before[name])]
    assert kept == (["policy.layers.0.weight", "policy.layers.0.bias"] if player.opt_steps < 1000 else [])

    (tmp_path / "run.yml").write_text(
        yaml.safe_dump(config | {"callbacks": [], "stop": {"after": 8, "unit": "epochs"}})
    )
    names: dict[str, Any] = {}
    exec(given, names)
    weights = names["trainer"].agent_net.named_parameters()
    assert [name for name, weight in weights if torch.equal(weight, before[name])] == [
        n for n in before if "value" in n
    ]


def test_the_networks_of_the_document_can_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "docs" / "nets.md").read_text()
    code, listed = re.search(r"```python\n(.*?)```", text, re.S), re.search(r"```yaml\n(.*?)```", text, re.S)
    assert code
    assert listed
    (tmp_path / "wide.py").write_text(code[1])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    configs = [*yaml.safe_load(listed[1]), {"name": "wide:Wide", "width": 8}]
    assert {config["name"] for config in configs} >= names_of(members_of(AnyNetConfig)).keys() - {"newton_sets"}
    vector, image = Space((3,), torch.float32, False), Space((4, 84, 84), torch.uint8, False)
    spaces = {
        "deep_sets": {"points": Space((5, 3), torch.float32, True)},
        "nature_cnn": {"screen": image},
        "impala_cnn": {"screen": image},
        "multi_input": {"camera": image, "speed": vector},
    }
    for config in configs:
        checked = check({"net": config}, Holder).net
        assert list(make_net(checked, spaces.get(config["name"], {"seen": vector}), 2, key=1).parameters())


def test_the_network_made_in_python_in_the_document_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, code, later = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "nets.md").read_text(), re.S)
    config = load_yaml(ROOT / "configs" / "dqn-cartpole.yml")
    config |= {"stop": {"after": 8, "unit": "opt_steps"}, "evaluations": [], "best": None, "num_worlds": 2}
    config["players"]["agent"]["algorithm"]["warmup_env_steps"] = 8
    config["output"] |= {"display": "quiet", "recorders": []}
    (tmp_path / "run.yml").write_text(yaml.safe_dump(config))
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(code, names)
    assert type(names["trainer"].agent_net).__name__ == "Sequential"
    assert names["trainer"].opt_steps == 8
    exec(later, names)
    assert names["player"].opt_steps == 8


def test_the_values_of_normalisation_are_where_the_document_finds_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (ROOT / "docs" / "gymnasium.md").read_text()
    shown = next(block for block in re.findall(r"```yaml\n(.*?)```", text, re.S) if "CartPole-v1" in block)
    rules = yaml.safe_load(shown)["game"]
    game: Any = make_game(rules | {"observation": rules["observation"] | {"normalize": {"eps": 1e-8}}})
    game.update_observation_statistics({"observation": np.array([[1.0, 2, 3, 4], [3.0, 2, 1, 4]])})
    monkeypatch.setattr(palestra, "load_player", lambda run: SimpleNamespace(game=game))
    [code] = [block for block in re.findall(r"```python\n(.*?)```", text, re.S) if "moments" in block]
    exec(code, {})
    assert re.findall(r"\[(.*?)\]", capsys.readouterr().out) == ["2., 2., 2., 4.", "1., 0., 1., 0."]


def test_the_variants_of_dqn_in_the_document_are_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "docs" / "dqn.md").read_text()
    code, listed = re.search(r"```python\n(.*?)```", text, re.S), re.search(r"```yaml\n(.*?)```", text, re.S)
    assert code
    assert listed
    (tmp_path / "builders_of_mine.py").write_text(code[1])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    algorithm = load_yaml(ROOT / "configs" / "dqn-cartpole.yml")["players"]["agent"]["algorithm"]
    for change in yaml.safe_load(listed[1]):
        checked = check(algorithm | change, DQNConfig)
    builder = checked.transitions.build(0.9, 1, ("agent",), torch.device("cpu"))
    seen = {"observation": torch.zeros(3, 1)}
    flag = torch.zeros(3, dtype=torch.bool)
    rewards = torch.tensor([-7.0, 0.5, 7.0])
    legal = flag.unsqueeze(1)
    rows = builder(Transitions(seen, flag.long(), rewards, seen, legal, flag, flag, ~flag, {}, legal))
    assert rows.reward.tolist() == [-1.0, 0.5, 1.0]


def test_the_games_of_the_document_are_complete_and_its_code_runs() -> None:
    text = (ROOT / "docs" / "games.md").read_text()
    [configs] = [block for block in re.findall(r"```yaml\n(.*?)```", text, re.S) if "cartpole" in block]
    [code] = [block for block in re.findall(r"```python\n(.*?)```", text, re.S) if "as_gymnasium" in block]
    games = re.findall(r"^game: .*(?:\n .*)*", configs, re.M)
    assert len(games) == 4
    for game in games:
        make_game(yaml.safe_load(game)["game"])
    names: dict[str, Any] = {}
    exec(code, names)
    assert names["reward"] in (0.0, -1.0)  # the opponent plays perfectly, but one may still run into the end


def test_a_game_of_the_document_has_the_roles_that_its_config_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (ROOT / "docs" / "games.md").read_text()
    (code,) = [block for block in re.findall(r"```python\n(.*?)```", text, re.S) if "class Minority" in block]
    (listed,) = [block for block in re.findall(r"```yaml\n(.*?)```", text, re.S) if "minority:Minority" in block]
    (tmp_path / "minority.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    config = load_yaml(ROOT / "configs" / "dqn-nim.yml") | yaml.safe_load(listed)
    player = config["players"]["player"]
    player["algorithm"] |= {"warmup_env_steps": 8, "batch_size": 8}
    config["players"] = {"one": player, "other": {"scripted": "random"}}
    config |= {"num_worlds": 4, "stop": {"after": 8, "unit": "opt_steps"}, "best": None}
    config["evaluations"][0] |= {"num_games": 4, "final_num_games": 4}
    config["evaluations"][0]["pairings"] = [{"player_0": "one", "player_1": "random", "player_2": "random"}]
    config["output"] |= {"display": "quiet", "recorders": []}
    trainer = palestra.Trainer(config, run=tmp_path / "run")
    trainer.fit()
    assert trainer.game.roles == ("player_0", "player_1", "player_2")
    assert trainer.players["one"].roles == ("player_0", "player_1")
    assert palestra.load_player(tmp_path / "run").opt_steps == 8
    for num_players in (3, 5):
        game = make_game({"name": "minority:Minority", "num_players": num_players, "num_rounds": 4})
        assert isinstance(game, TensorGame)
        assert len(game.roles) == num_players
        check_game(game)
    config["game"]["num_players"] = 4
    with pytest.raises(
        palestra.ConfigError,
        match=r"^roles\.player_3: expected a player of this file \(one, other\), but the key is missing\n",
    ):
        palestra.Trainer(config)


def test_the_game_of_the_document_keeps_its_promises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "docs" / "games.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.S)
    (code,) = [block for block in blocks if "class Pennies" in block]
    (trial,) = [block for block in blocks if "check_game(make_game" in block]
    (tmp_path / "pennies.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    exec(trial, {})
    (listed,) = [block for block in re.findall(r"```yaml\n(.*?)```", text, re.S) if "pennies:Pennies" in block]
    assert make_game(yaml.safe_load(listed)["game"]).roles == ("even", "odd")


@pytest.mark.parametrize(
    "document",
    [path for path in DOCUMENTS if path.name != "CHANGELOG.md"],  # which also names what is gone
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_names_of_palestra_in_documents_are_there(document: Path) -> None:
    ranges = {f"palestra.{phase}" for phase in PHASES}  # of a profile
    for name in set(re.findall(r"(?<![\w./-])palestra(?:\.\w+)+", document.read_text())) - ranges:
        pkgutil.resolve_name(name)


@pytest.mark.parametrize("document", DOCUMENTS, ids=[str(path.relative_to(ROOT)) for path in DOCUMENTS])
def test_lines_of_documents_wrap(document: Path) -> None:
    """But for code, tables, and links that no line could hold."""
    plain = re.sub(r"^```.*?^```", "", document.read_text(), flags=re.S | re.M)
    long = [line for line in plain.splitlines() if len(line) > 120 and not line.startswith("|")]
    assert [line for line in long if len(line.split()) > 1 and not re.search(r"`[^`]{100,}`", line)] == []


def anchors(document: Path) -> set[str]:
    """The anchors that GitHub makes of a document's headings."""
    plain = re.sub(r"^```.*?^```", "", document.read_text(), flags=re.S | re.M)
    headings = re.findall(r"^#+ (.*)$", plain, re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=[str(path.relative_to(ROOT)) for path in DOCUMENTS])
def test_links_of_documents_lead_to_files_and_headings(document: Path) -> None:
    for link in re.findall(r"\]\((?!https?:)([^)]+)\)", document.read_text()):
        path, _, anchor = link.partition("#")
        target = document.parent / path if path else document
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("algorithm", [DQN, PPO, SAC, TD3])
def test_targets_and_losses_of_the_document_have_the_arguments_of_the_code(algorithm: type) -> None:
    text = (ROOT / "docs" / "own-algorithm.md").read_text()
    row = re.search(rf"^\| `{algorithm.__name__}` \|(.*)$", text, re.M)
    assert row
    listed = re.findall(r"`(\w+)\((.*?)\)`", row[1])
    assert listed
    for name, arguments in listed:
        assert arguments.split(", ") == [*inspect.signature(getattr(algorithm, name)).parameters][1:]
    losses = {name for name in dir(algorithm) if re.fullmatch(r"(\w+_)?loss|target", name)}
    assert losses <= {name for name, _ in listed}
