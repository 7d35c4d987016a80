"""Players that begin with the networks of another run.

Covers palestra.kinds.games.imported_players.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import palestra
from palestra.config import ConfigError
from palestra.kinds.games.trainer import Trainer
from palestra.players.player import Player
from tests.combinations import CLIPPED, DQN, MLP, PPO, SAC
from tests.games.gym_worlds import cart_pole

MakeConfig = Callable[..., dict[str, Any]]

SEPARATE = {"name": "separate", "policy": MLP, "value": MLP}


def weights(player: Player) -> list[Tensor]:
    return [value.clone() for net in player.nets.values() for value in net.state_dict().values()]


def same(one: list[Tensor], two: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def warm(player: str = "host", source: str = "source", checkpoint: str = "latest", take: str = "all") -> dict[str, Any]:
    start = {"from_run": source, "player": player, "checkpoint": checkpoint, "take": take}
    return {"players.host.warm_start": start}


@pytest.fixture
def source(make_config: MakeConfig, in_tmp_path: Path) -> Trainer:
    trainer = Trainer(make_config(), run=in_tmp_path / "source")
    trainer.fit()
    return trainer


def test_networks_are_those_of_the_run_and_all_else_is_new(source: Trainer, make_config: MakeConfig) -> None:
    cold, trainer = Trainer(make_config({"seed": 5})), Trainer(make_config({"seed": 5} | warm()))
    host = trainer.players["host"]
    assert same(weights(host), weights(source.players["host"]))
    assert same(weights(trainer.players["agent"]), weights(cold.players["agent"]))
    assert (host.opt_steps, host.env_steps) == (0, 0)
    assert host.replay_buffer is not None
    assert host.replay_buffer.is_empty
    expected = cold.players["host"].optimizers["q"].state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in host.optimizers["q"].state_dict().items())


def test_a_warm_player_learns_on(source: Trainer, make_config: MakeConfig) -> None:
    before = weights(source.players["host"])
    trainer = Trainer(make_config(warm()), run="warm")
    trainer.fit()
    assert trainer.players["host"].opt_steps == source.players["host"].opt_steps
    assert not same(weights(trainer.players["host"]), before)
    assert same(weights(source.players["host"]), before)


def test_a_resumed_run_needs_its_source_no_more(source: Trainer, make_config: MakeConfig) -> None:
    Trainer(make_config(warm()), run="whole").fit()
    Trainer(make_config(warm() | {"stop.after": 8}), run="parts").fit()
    shutil.rmtree("source")
    palestra.run.branching.extend(Path("parts"), ["stop.after=24"])
    resumed, whole = Trainer.load("parts"), Trainer.load("whole")
    resumed.fit()
    whole.fit()
    for name in ("host", "agent"):
        assert same(weights(resumed.players[name]), weights(whole.players[name]))


def test_a_branch_of_a_warm_run_needs_the_source_no_more(source: Trainer, make_config: MakeConfig) -> None:
    Trainer(make_config(warm() | {"stop.after": 8}), run="parts").fit()
    shutil.rmtree("source")
    branch = Trainer.branch(Path("parts/checkpoints/00000000"), ["seed=7"], run="branch")
    branch.fit()
    assert branch.opt_steps == 8
    shutil.rmtree("branch/checkpoints")  # as if killed before the first one
    Path("branch/checkpoints").mkdir()
    Trainer.load("branch").fit()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (warm(source="nowhere"), "nowhere is not a run"),
        (warm(player="hots"), "expected a player that learned in source, got 'hots'"),
        (warm(checkpoint="77"), "there is no checkpoint 00000077"),
        (warm(player="agent"), "expected a player that fits the role 'host', got 'agent' of source: "),
        (
            warm() | {"players.host.algorithm.net.net_arch": [9]},
            "expected a player that fits the role 'host', got 'host' of source: ",
        ),
    ],
)
def test_what_cannot_be_begun_with_is_told(
    changes: dict[str, Any], message: str, source: Trainer, make_config: MakeConfig
) -> None:
    with pytest.raises(palestra.ConfigError) as caught:
        Trainer(make_config(changes))
    (error,) = caught.value.errors
    assert error.path == "players.host.warm_start"
    assert message in error.message


# ---- the body alone --------------------------------------------------------------------------------------

ARM = {
    "name": "gymnasium",
    "id": "tests.gym_probes:Acts-v0",
    "wrappers": [{"name": "gymnasium.wrappers:TimeLimit", "arguments": {"max_episode_steps": 4}}],
    "observation": {"normalize": None, "clip": None, "channels": None},
    "reward": {"normalize": None, "clip": None},
    "action_mask": None,
    "vectorization": {"name": "sync", "autoreset": "same_step"},
}


def lone(make_config: MakeConfig, algorithm: dict[str, Any], actions: str, start: Any = None) -> dict[str, Any]:
    """A lone agent in an environment that is the same but for its actions."""
    config = make_config(
        {
            "game": ARM | {"arguments": {"actions": actions}},
            "roles": {"agent": "agent"},
            "evaluations": [],
            "best": None,
            "stop.after": 4,
        }
    )
    player = {"algorithm": algorithm, "warm_start": start, "updates": {"name": "constant"}, "meets": None}
    return config | {"players": {"agent": player}}


def from_source(take: str) -> dict[str, Any]:
    return {"from_run": "source", "player": "agent", "checkpoint": "latest", "take": take}


PLAIN_DQN = DQN | {"net": MLP}
BODIES: dict[str, tuple[dict[str, Any], str, dict[str, Any], str, set[str]]] = {
    # what learned there with which actions, what begins here with which, and the weights that are its own
    "dqn": (
        PLAIN_DQN,
        "two",
        {},
        "five",
        {"q/layers.2.weight", "q/layers.2.bias", "target/layers.2.weight", "target/layers.2.bias"},
    ),
    "ppo, shared": (
        PPO,
        "two",
        {},
        "five",
        {"actor_critic/policy.layers.2.weight", "actor_critic/policy.layers.2.bias"},
    ),
    "ppo, to numbers": (
        PPO | {"body": SEPARATE},
        "two",
        CLIPPED,
        "numbers",
        {f"actor_critic/{net}.layers.2.{kind}" for net in ("policy", "value") for kind in ("weight", "bias")}
        | {"actor_critic/head.log_std"},
    ),
    "ppo, from numbers": (
        PPO | CLIPPED | {"body": SEPARATE},
        "numbers",
        {"box_actions": None},
        "five",
        {f"actor_critic/{net}.layers.2.{kind}" for net in ("policy", "value") for kind in ("weight", "bias")},
    ),
    "sac": (
        SAC | {"log_std": None},
        "two",
        {},
        "five",
        {"policy/layers.3.weight", "policy/layers.3.bias"}
        | {
            f"{net}/{k}.layers.3.{kind}"
            for net in ("critics", "targets")
            for k in (0, 1)
            for kind in ("weight", "bias")
        },
    ),
}


def states(player: Player) -> dict[str, Tensor]:
    return {
        f"{name}/{key}": value.clone() for name, net in player.nets.items() for key, value in net.state_dict().items()
    }


@pytest.mark.parametrize("name", BODIES)
def test_a_body_is_that_of_the_run_and_the_outputs_are_drawn_anew(
    name: str, make_config: MakeConfig, in_tmp_path: Path
) -> None:
    algorithm, actions, changes, others, outputs = BODIES[name]
    source = Trainer(lone(make_config, algorithm, actions), run="source")
    source.fit()
    here = algorithm | changes
    cold = Trainer(lone(make_config, here, others))
    trainer = Trainer(lone(make_config, here, others, from_source("body")), run="warm")
    found, fresh, there = (states(each.players["agent"]) for each in (trainer, cold, source))
    assert found.keys() == fresh.keys()
    assert outputs <= found.keys()
    for key, value in found.items():
        assert torch.equal(value, fresh[key] if key in outputs else there[key]), key
    trainer.fit()


@pytest.mark.parametrize(
    ("widths", "message"),
    [
        ([9], "expected a body with layers.0.weight of shape (9, 1), got it of shape (8, 1)"),
        ([8, 8], "expected a body with layers.2.weight of shape (8, 8), got it of shape (2, 8)"),
        ([], "expected a body without layers.2.bias, got it of shape (2,)"),
    ],
)
def test_another_body_is_refused(widths: list[int], message: str, make_config: MakeConfig, in_tmp_path: Path) -> None:
    Trainer(lone(make_config, PLAIN_DQN, "two"), run="source").fit()
    other = PLAIN_DQN | {"net": MLP | {"net_arch": widths}}
    with pytest.raises(ConfigError) as caught:
        Trainer(lone(make_config, other, "five", from_source("body")))
    fits = "expected a player that fits the role 'agent', got 'agent' of source: "
    assert str(caught.value) == f"players.agent.warm_start: {fits}{message}"


def test_a_critic_without_the_body_of_the_other_one_is_refused(make_config: MakeConfig, in_tmp_path: Path) -> None:
    Trainer(lone(make_config, PPO, "two"), run="source").fit()
    with pytest.raises(ConfigError, match=r"expected a body with value.layers.0.weight .*, got one without it$"):
        Trainer(lone(make_config, PPO | {"body": SEPARATE}, "five", from_source("body")))


def test_other_actions_are_refused_where_all_is_taken(make_config: MakeConfig, in_tmp_path: Path) -> None:
    Trainer(lone(make_config, PLAIN_DQN, "two"), run="source").fit()
    with pytest.raises(ConfigError, match=r"^players.agent.warm_start: expected a player that fits .*size mismatch"):
        Trainer(lone(make_config, PLAIN_DQN, "five", from_source("all")))


@pytest.mark.parametrize(
    ("take", "message"),
    [
        ({"take": "head"}, "expected one of 'all', 'body', got 'head'"),
        ({}, "expected .*, but the key is missing"),
    ],
)
def test_what_is_taken_must_be_said(take: dict[str, str], message: str, make_config: MakeConfig) -> None:
    start = {key: value for key, value in from_source("all").items() if key != "take"} | take
    with pytest.raises(ConfigError, match=rf"^players.host.warm_start.take: {message}"):
        Trainer(make_config({"players.host.warm_start": start}))


# ---- players held fixed ----------------------------------------------------------------------------------


def in_an_environment(make_config: MakeConfig, observation: dict[str, Any] | None, **changes: Any) -> dict[str, Any]:
    game = cart_pole(observation=observation or {"normalize": None, "clip": None}, **changes)
    data = {"game": game, "roles": {"agent": "agent"}, "evaluations": [], "best": None, "stop.after": 1}
    config = make_config(data)
    config["players"] = {"agent": config["players"]["agent"]}
    return config


@pytest.mark.parametrize(
    ("there", "here", "message"),
    [
        (
            {"normalize": {"eps": 1e-8}, "clip": None},
            None,
            "expected a player of a run with the game.observation of this file, got another one",
        ),
        (
            {"normalize": None, "clip": 5.0},
            {"normalize": None, "clip": None},
            "expected a player of a run with the game.observation of this file, got another one",
        ),
        (
            {"normalize": {"eps": 1e-8}, "clip": None},
            {"normalize": {"eps": 1e-8}, "clip": None},
            "expected null for game.observation.normalize here and in its run, because each run normalises by running "
            "statistics of its own, got a mapping",
        ),
    ],
)
def test_a_stored_player_that_would_see_other_observations_is_refused_before_training(
    there: dict[str, Any] | None, here: dict[str, Any] | None, message: str, make_config: MakeConfig, in_tmp_path: Path
) -> None:
    Trainer(in_an_environment(make_config, there), run="source").fit()
    config = in_an_environment(make_config, here)
    config["players"]["old"] = {"from_run": "source", "player": "agent", "checkpoint": "latest"}
    config["evaluations"] = make_config({"evaluations.0.pairings": [{"agent": "old"}]})["evaluations"]
    with pytest.raises(ConfigError) as raised:
        Trainer(config, run="new")
    assert str(raised.value) == f"players.old.from_run: {message}"
    assert not Path("new").exists()


def test_a_stored_player_sits_in_a_run_that_reads_alike(make_config: MakeConfig, in_tmp_path: Path) -> None:
    clipped = {"normalize": None, "clip": 5.0}
    Trainer(in_an_environment(make_config, clipped), run="source").fit()
    config = in_an_environment(make_config, clipped)
    config["players"]["old"] = {"from_run": "source", "player": "agent", "checkpoint": "latest"}
    config["evaluations"] = make_config({"evaluations.0.pairings": [{"agent": "old"}]})["evaluations"]
    trainer = Trainer(config, run="new")
    assert same(weights(trainer.players["old"]), weights(palestra.load_player("source", "agent")))
    trainer.fit()


def test_a_stored_player_of_rescaled_boards_plays_on_such_alone(make_config: MakeConfig, in_tmp_path: Path) -> None:
    Trainer(make_config(), run="source").fit()
    config = make_config({"players.agent": {"from_run": "source", "player": "agent", "checkpoint": "latest"}})
    Trainer(config | {"best": None})
    config["game"]["rescale"] = False
    message = r"^players\.agent\.from_run: expected a player of a run with the game\.rescale of this file, got another"
    with pytest.raises(ConfigError, match=message):
        Trainer(config | {"best": None})
