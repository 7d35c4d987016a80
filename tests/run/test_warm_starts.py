"""What begins with weights that a model has learned elsewhere: another model, and players.

Covers palestra.kinds.games.warm_starts, palestra.models.sources.
"""

import io
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors.torch import save_file
from torch import Tensor, nn

import palestra
from palestra import make_trainer
from palestra.config import ConfigError
from palestra.kinds.data.trainer import FitTrainer
from palestra.kinds.games.trainer import Trainer
from palestra.storage.records_file import read_records
from tests.combinations import DQN, PPO, SAC
from tests.fitted import CLASSIFIER, MLP, fit_config, fitted, working_in
from tests.games.gym_worlds import cart_pole

WIDER = CLASSIFIER | {"num_classes": 3}
HEAD = {"net.layers.2.weight", "net.layers.2.bias"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of a classifier."""
    path = tmp_path_factory.mktemp("warm")
    with working_in(path):
        fitted("source")
    return path


@pytest.fixture
def here(folder: Path) -> Iterator[Path]:
    with working_in(folder):
        yield folder


def start(take: str = "body", **changes: Any) -> dict[str, Any]:
    return {"from_model": "source", "checkpoint": "latest", "take": take} | changes


def states(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items()}


def test_a_model_begins_with_the_body_of_another_to_the_bit(here: Path) -> None:
    source = states(palestra.load_model("source").model)
    cold = states(make_trainer(fit_config(WIDER)).model)
    trainer = make_trainer(fit_config(WIDER, warm_start=start()), run="warm")
    for name, value in states(trainer.model).items():
        assert torch.equal(value, (cold if name in HEAD else source)[name]), name
    for average, vector in zip(trainer.learner.averages, trainer.learner.vectors, strict=True):
        assert torch.equal(average, vector.weights)
    trainer.fit()
    (told,) = [each for each in read_records(Path("warm/records.jsonl")) if each["kind"] == "warm_start"]
    assert told["source"] == "body of source at opt step 8"
    assert told["taken"] == ["net.layers.0.weight", "net.layers.0.bias"]
    assert set(told["left"]) == HEAD
    assert (told["opt_steps"], told["items"]) == (0, 0)


def test_a_run_that_has_begun_needs_its_source_no_more_and_says_it_once(here: Path) -> None:
    shutil.copytree("source", "gone")
    config = fit_config(warm_start=start("all", from_model="gone", checkpoint="@3"))
    trainer = make_trainer(config, run="parts")
    at_3 = palestra.load_model("source", "@3").model
    assert all(torch.equal(value, at_3.state_dict()[name]) for name, value in states(trainer.model).items())
    trainer.fit(num_steps=4, unit="opt_steps")
    shutil.rmtree("gone")
    resumed = FitTrainer.load("parts")
    resumed.fit()
    make_trainer(fit_config(warm_start=start("all", checkpoint="@3")), run="whole").fit()
    whole = palestra.load_model("whole").model.state_dict()
    assert all(torch.equal(value, whole[name]) for name, value in states(resumed.model).items())
    branch = FitTrainer.branch(Path("parts/checkpoints/latest"), ["stop.after=3"], run="branch")
    branch.fit()
    for run, num in (("parts", 1), ("branch", 0)):
        found = [each for each in read_records(Path(run, "records.jsonl")) if each["kind"] == "warm_start"]
        assert len(found) == num, run
    with pytest.raises(ConfigError, match=r"^warm_start.take: expected 'all', on which the state in .* depends, got"):
        FitTrainer.branch(Path("parts/checkpoints/latest"), ["warm_start.take=body"], run="other")


def test_a_model_begins_with_a_file_of_weights(here: Path) -> None:
    model = palestra.load_model("source").model
    save_file(model.state_dict(), "net.safetensors")
    trainer = make_trainer(fit_config(warm_start={"file": "net.safetensors", "take": "all"}))
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in states(trainer.model).items())


@pytest.mark.parametrize(
    ("begin", "told"),
    [
        (start(from_model="nowhere"), r"warm_start: nowhere is not a run: nowhere/config.yml is missing"),
        (start(checkpoint="77"), r"warm_start: there is no checkpoint 00000077 in source/checkpoints; .*"),
        (
            start("all"),
            r"warm_start: expected weights that fit the model, got others: .*size mismatch for net.*",
        ),
        (start("head"), r"warm_start.take: expected one of 'all', 'body', got 'head'"),
        (start(file="a.safetensors"), r"warm_start: expected a mapping with either .*, got .* and 'file'"),
        (
            {"file": "no.safetensors", "take": "all"},
            r"warm_start: expected a safetensors file, got no.safetensors \(.*",
        ),
        (
            {"file": "/dev/null", "take": "all"},
            r"warm_start: expected a safetensors file, got /dev/null \(it is no plain file\)",
        ),
        ({"file": "fitted_parts.py", "take": "all"}, r"warm_start: fitted_parts.py does not hold tensors \(.*\)"),
        ({"take": "all"}, r"warm_start: expected either warm_start.from_model and .* or warm_start.file, but all .*"),
        (start(from_model="palestra:polyhedra"), r"warm_start: expected a run in which a model learns from data, .*"),
    ],
)
def test_what_a_model_cannot_begin_with_is_told_in_one_line(here: Path, begin: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{told}$"):
        make_trainer(fit_config(WIDER, warm_start=begin), run="refused")
    assert not Path("refused").exists()


def test_another_body_is_named(here: Path) -> None:
    narrow = WIDER | {"net": MLP | {"net_arch": [6]}}
    told = r"^warm_start: .* got others: expected a body with net.layers.0.weight of shape \(6, 4\), got it of shape"
    with pytest.raises(ConfigError, match=told):
        make_trainer(fit_config(narrow, warm_start=start()))


# ---- players -----------------------------------------------------------------------------------------


def balancing(make_config: Any, algorithm: dict[str, Any], begin: Any, **changes: Any) -> dict[str, Any]:
    """A lone agent in cart-pole, whose observations have the shape of the items."""
    game = cart_pole(observation={"normalize": None, "clip": None} | changes)
    data = {"game": game, "roles": {"agent": "agent"}, "evaluations": [], "best": None, "stop.after": 2}
    player = {"algorithm": algorithm, "warm_start": begin, "updates": {"name": "constant"}, "meets": None}
    return make_config(data) | {"players": {"agent": player}}


SEPARATE = {"name": "separate", "policy": MLP, "value": MLP | {"net_arch": [6]}}
NETWORKS: dict[str, tuple[dict[str, Any], list[str], list[str]]] = {
    "dqn": (DQN | {"net": MLP}, ["q", "target"], []),
    "ppo, shared": (PPO | {"body": {"name": "shared", "net": MLP}}, ["actor_critic.policy"], []),
    "ppo, separate": (PPO | {"body": SEPARATE}, ["actor_critic.policy"], ["actor_critic.value"]),
    "sac": (
        SAC | {"log_std": None, "policy_net": MLP, "critic_net": MLP},
        ["policy", "critics.0", "critics.1", "targets.0", "targets.1"],
        [],
    ),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_player_takes_the_body_into_every_network_that_fits(name: str, here: Path, make_config: Any) -> None:
    algorithm, fitting, left = NETWORKS[name]
    source = palestra.load_model("source").model.net.state_dict()
    body = {key: value for key, value in source.items() if key.startswith("layers.0.")}
    assert len(body) == 2
    cold = Trainer(balancing(make_config, algorithm, None)).players["agent"]
    trainer = Trainer(balancing(make_config, algorithm, start()))
    expected = {f"{net}.{key}": value for net in fitting for key, value in body.items()}
    for net, module in trainer.players["agent"].nets.items():
        for key, value in states(module).items():
            path = f"{net}.{key}"
            assert torch.equal(value, expected.pop(path, cold.nets[net].state_dict()[key])), path
    assert expected == {}
    (told,) = trainer.run.beginnings
    assert (told.taken, told.left) == (fitting, left)


CLONES = {
    "ppo, shared": PPO | {"body": {"name": "shared", "net": MLP}},
    "ppo, separate": PPO | {"body": SEPARATE},
    "sac": SAC | {"log_std": None, "policy_net": MLP, "critic_net": MLP},
}


@pytest.mark.parametrize("name", CLONES)
def test_a_policy_that_a_model_has_learned_plays_as_the_model_at_first(name: str, here: Path, make_config: Any) -> None:
    model = palestra.load_model("source").model
    trainer = Trainer(balancing(make_config, CLONES[name], start("policy")))
    observations = 3 * torch.randn(50, 4, generator=torch.Generator().manual_seed(1))
    actions, _ = trainer.players["agent"].predict(observations.numpy())
    best = model.net({"observation": observations}).argmax(dim=1)
    assert len(set(best.tolist())) == 2
    assert actions.tolist() == best.tolist()
    cold = Trainer(balancing(make_config, CLONES[name], start())).players["agent"].predict(observations.numpy())[0]
    assert cold.tolist() != best.tolist()
    assert trainer.run.beginnings[0].taken[-1].startswith("the outputs of ")


def test_a_player_says_once_what_it_begins_with(here: Path, make_config: Any) -> None:
    config = balancing(make_config, PPO | {"body": SEPARATE}, start())
    config["output"]["display"] = "plain"
    shown = io.StringIO()
    Trainer(config, run="player", console=Console(file=shown, width=400)).fit()
    line = "players.agent begins with the body of source at opt step 8; taken: actor_critic.policy; not taken: actor"
    assert line in shown.getvalue()
    (told,) = [each for each in read_records(Path("player/records.jsonl")) if each["kind"] == "warm_start"]
    assert (told["who"], told["left"]) == ("players.agent", ["actor_critic.value"])


@pytest.mark.parametrize(
    ("net", "observation", "begin", "told"),
    [
        (
            MLP | {"net_arch": [5]},
            {},
            {},
            r"got others: expected a body with layers.0.weight of shape \(5, 4\)",
        ),
        (MLP, {"normalize": {"eps": 1e-8}}, {}, r"expected null for game.observation.normalize, because the model has"),
        (MLP, {}, {"from_model": "nowhere"}, r"nowhere is not a run"),
        (MLP, {}, {"take": "all"}, r"expected one of 'body', 'policy', got 'all'"),
    ],
)
def test_what_a_player_cannot_begin_with_is_told(
    here: Path, make_config: Any, net: Any, observation: Any, begin: Any, told: str
) -> None:
    with pytest.raises(ConfigError, match=rf"^players.agent.warm_start(.take)?: .*{told}"):
        Trainer(balancing(make_config, DQN | {"net": net}, start(**begin), **observation))
