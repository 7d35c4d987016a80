"""What a player predicts: for one observation or a batch, in every kind of game, with and without a memory."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import PLAIN

import palestra
from palestra.config import check
from palestra.games.nim import NimConfig, NimGame
from palestra.games.normalization import UNCHANGED
from palestra.games.polyhedra.game import PolyhedraConfig
from palestra.games.spaces import Discrete
from palestra.players.player import Player
from palestra.randomness import world_keys
from palestra.schedules import read_schedule
from tests.combinations import RECURRENT

CONFIGS = Path(__file__).parents[2] / "configs"
CPU = torch.device("cpu")


def player_of(config: str, name: str, *overrides: str) -> Player:
    """A player that has not learned yet."""
    return palestra.Trainer(CONFIGS / f"{config}.yml", overrides=overrides).players[name]


def boards(num: int) -> dict[str, np.ndarray]:
    """Observations of a host: sets of three points, the other places empty."""
    points = np.full((num, 20, 3), -1.0)
    random = np.random.default_rng(0)
    points[:, :3] = random.integers(0, 9, size=(num, 3, 3)) * random.integers(0, 30, size=(num, 1, 3))
    return {"points": points}


def cart(num: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(num, 4)).astype(np.float32)


# ---- games on tensors ----------------------------------------------------------------------------------


def test_one_board_is_answered_as_in_a_batch_given_as_a_mapping_or_an_array() -> None:
    host = player_of("dqn-polyhedra", "host")
    seen = boards(50)
    choices, memory = host.predict(seen)
    assert memory is None
    assert choices.shape == (50,)
    assert len(set(choices.tolist())) > 1
    for points, choice in zip(seen["points"], choices, strict=True):
        for observation in (points, torch.from_numpy(points), {"points": points.tolist()}):
            alone, _ = host.predict(observation)
            assert np.ndim(alone) == 0
            assert alone == choice


def test_an_agent_finds_the_legal_actions_in_its_observation_or_is_told_them() -> None:
    agent = player_of("dqn-polyhedra", "agent")
    seen = boards(60) | {"coords": np.tile([[1, 1, 0], [0, 1, 1], [1, 0, 1]], (20, 1))}
    actions, _ = agent.predict(seen)
    assert seen["coords"][np.arange(60), actions].all()
    last, _ = agent.predict(seen, legal=np.array([False, False, True]).repeat(60).reshape(3, 60).T)
    assert set(last.tolist()) == {2}
    one = {name: value[0] for name, value in seen.items()}
    assert agent.predict(one, legal=[False, False, True])[0] == 2


@pytest.mark.parametrize(
    ("observation", "legal", "message"),
    [
        (
            {"points": np.zeros((20, 2))},
            None,
            r"expected 'points' of 'host' of shape \(20, 3\), or a batch of them, got",
        ),
        ({"board": np.zeros((20, 3))}, None, "expected an observation of 'host' with the entries points, got board"),
        (boards(2), np.ones((2, 5)), r"expected the legal actions of 'host', bool of shape \(2, 4\), got \(2, 5\)"),
    ],
)
def test_what_does_not_fit_is_told(observation: Any, legal: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        player_of("dqn-polyhedra", "host").predict(observation, legal=legal)


def test_legal_actions_by_observation_are_those_of_the_rules() -> None:
    polyhedra = {
        **{"name": "polyhedra", "variant": "basic", "dimension": 3, "max_num_points": 5, "max_value": 6},
        **{"initial_points": None, "reduction": "vertices", "rescale": True, "rescale_state": False},
        **{"max_rounds": 6, "reward": {"name": "win"}, "observation": PLAIN},
    }
    nim = NimGame(NimConfig(name="nim", num_heaps=3, max_stones=4, observation=UNCHANGED), CPU)
    for game in (nim, check(polyhedra, PolyhedraConfig).build(CPU, "torch")):
        keys = world_keys(1, 30, CPU)
        state = game.reset(keys)
        for move in range(2):
            for index, role in enumerate(game.roles):
                decides = game.deciding(state)[:, index]
                found = game.legal_by(role, game.observe(state, role))
                assert torch.equal(found[decides], game.legal(state, role)[decides])
            (role,) = game.moves[move % len(game.moves)] if game is not nim else (game.roles[move],)
            actions = {role: game.legal(state, role).int().argmax(dim=1)}
            state, *_ = game.transition(state, actions, keys + move)


# ---- memory, chance --------------------------------------------------------------------------------------


def test_the_memory_goes_from_call_to_call_and_begins_anew_where_an_episode_does() -> None:
    net = str(RECURRENT).replace("'", "")
    player = player_of("ppo-cartpole", "agent", f"players.agent.algorithm.body={{name: shared, net: {net}}}")
    steps = [cart(3) + step for step in range(6)]
    policy, legal, keys = player.policy(explore=False), torch.ones(3, 2, dtype=torch.bool), torch.arange(3)
    memory: Any = {}
    state = None
    for number, observations in enumerate(steps):
        starts = np.array([number == 0, number == 3, False])
        memory = {name: value * ~torch.from_numpy(starts).unsqueeze(1) for name, value in memory.items()}
        with torch.no_grad():
            expected = policy.act({"observation": torch.from_numpy(observations)}, legal, keys, memory)
        actions, state = player.predict(observations, state=state, episode_start=starts)
        memory = expected.memory
        assert actions.tolist() == expected.action.tolist()
        assert state is not None
        for name, value in memory.items():
            assert torch.equal(state[name], value)
    assert any((value[0] != value[1]).any() for value in memory.values())


@pytest.mark.parametrize(
    ("config", "sampled"),
    [
        ("ppo-cartpole", "players.agent.algorithm.evaluation=sampled"),
        ("sac-pendulum", "players.agent.algorithm.evaluation=sampled"),
        ("dqn-cartpole", "players.agent.algorithm.warmup_env_steps=1"),
        ("td3-pendulum", "players.agent.algorithm.warmup_env_steps=0"),
    ],
)
def test_chance_plays_no_part_unless_it_is_asked_for(config: str, sampled: str) -> None:
    player = player_of(config, "agent", sampled)
    observations = cart(200) if "cartpole" in config else cart(200)[:, :3]
    always, _ = player.predict(observations)
    assert np.array_equal(player.predict(observations)[0], always)
    drawn = [player.predict(observations, deterministic=False)[0] for _ in range(2)]
    assert not np.array_equal(*drawn)
    assert not np.array_equal(drawn[0], always)


# ---- words -----------------------------------------------------------------------------------------------


def test_a_schedule_that_was_changed_comes_with_what_acting_needs() -> None:
    """So an actor explores as the player does now."""
    one, other = (player_of("dqn-nim", "player") for _ in range(2))
    before = other.rates()["exploration"]
    one.change_schedule("exploration.epsilon", read_schedule({"name": "constant", "value": before / 4}))
    other.load_acting_state(one.acting_state())
    assert other.rates() == one.rates() == {**other.rates(), "exploration": before / 4}


def test_a_new_schedule_may_be_given_as_in_a_file_and_is_checked() -> None:
    player = player_of("dqn-nim", "player")
    player.change_schedule("learning_rate", {"name": "constant", "value": 0.25})
    assert player.rates()["learning_rate"] == 0.25
    for key, wrong, told in (
        ("learning_rat", {}, "learning_rat: expected a schedule that can change (learning_rate, exploration.epsilon)"),
        (
            "learning_rate",
            {"name": "constant", "value": float("nan")},
            "schedule.value: expected a number >= 0, got nan",
        ),
        ("learning_rate", 0.5, "schedule: expected a mapping with `name`, one of 'constant'"),
        ("learning_rate", {"name": "linea"}, "schedule.name: expected one of"),
    ):
        with pytest.raises(palestra.ConfigError) as caught:
            player.change_schedule(key, wrong)
        assert str(caught.value).startswith(told)
    assert player.rates()["learning_rate"] == 0.25


def test_a_schedule_of_the_replay_buffer_is_not_among_those_that_can_be_changed() -> None:
    """The buffer reads its own, which a change would not reach."""
    memory = "capacity: 10000, layout: whole, scratch_folder: null"
    beta = "alpha: 0.6, beta: {name: constant, value: 0.4}, eps: 1.0e-6"
    player = player_of("dqn-nim", "player", f"replay_buffer={{name: prioritized, {memory}, {beta}}}")
    assert set(player.schedules()) == {"learning_rate", "exploration.epsilon"}


def test_a_player_is_shown_in_one_line() -> None:
    trainer = palestra.Trainer(CONFIGS / "dqn-polyhedra.yml")
    assert repr(trainer.players["host"]) == "<player 'host': dqn, in host, 0 opt steps, 42,888 weights, on cpu>"
    trainer.players["host"].learning = False
    assert repr(trainer.players["host"]).endswith(", on cpu, held fixed>")


def test_who_cannot_predict_says_why() -> None:
    player = Player("host", ("host",), {}, Discrete(2), CPU, seed=1, compile=False, by_hand=True)
    with pytest.raises(
        TypeError, match="expected a player of a trainer or a loaded one, got 'host', which knows no game"
    ):
        player.predict(np.zeros(3))
