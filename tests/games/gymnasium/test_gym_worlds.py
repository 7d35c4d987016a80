"""GymnasiumWorld: the same experience in every autoreset mode and vectorization, true ends, seeds, replay.

Covers palestra.games.gymnasium.world.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from palestra.config import check
from palestra.games.gymnasium import GymnasiumConfig, GymnasiumGame
from palestra.games.gymnasium.seeding import episode_seed
from palestra.games.world import EnvironmentFailed
from palestra.players import make_script
from palestra.randomness import base_key, fold, fold_number
from palestra.rollouts.solo import SoloGame
from tests.forked import run as run_forked
from tests.games.gym_worlds import CPU, MODES, assert_sound, cart_pole, gym_game, played, rows, same_rows

KEY = base_key(0, "play")
NORMALIZED = {
    "observation": {"normalize": {"eps": 1e-8}, "clip": 2.0, "channels": None},
    "reward": {"normalize": {"gamma": 0.9, "eps": 1e-8}, "clip": 3.0},
}

every_mode = pytest.mark.parametrize("mode", MODES)
every_way = pytest.mark.parametrize(("way", "mode"), [(way, mode) for way in ("sync", "async") for mode in MODES])


# ---- experience --------------------------------------------------------------------------------------


@every_way
def test_no_transition_crosses_a_reset_and_ends_are_true_and_told_apart(way: str, mode: str) -> None:
    game = gym_game(way, mode)
    world = game.make_world(5, KEY, training=True)
    found = rows(played(world, 60))
    game.close()
    assert_sound(found, mode)


def experience(way: str, mode: str, num: int) -> list[torch.Tensor]:
    """The first transitions of every world that were decided on, (num, 9) each."""
    game = gym_game(way, mode)
    found = rows(played(game.make_world(4, KEY, training=True), 2 * num))
    game.close()
    columns = [found[name].float() for name in ("action", "reward", "terminated", "truncated")]
    table = torch.cat([found["observation"], found["next"], torch.stack(columns, dim=2)], dim=2)
    return [table[:, world][found["valid"][:, world]][:num] for world in range(4)]


def test_every_mode_and_vectorization_gives_the_same_experience() -> None:
    first, *others = (experience(way, mode, 30) for way in ("sync", "async") for mode in MODES)
    for other in others:
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(first, other, strict=True))


def test_a_world_plays_the_same_in_a_batch_of_any_size() -> None:
    many, few = (rows(played(gym_game().make_world(num, KEY, True), 20)) for num in (5, 2))
    assert torch.equal(many["next"][:, :2], few["next"])
    later = gym_game().make_world(2, KEY, True, first=3)
    assert torch.equal(many["next"][:, 3:], rows(played(later, 20))["next"])


@every_mode
def test_memory_begins_anew_with_every_episode(mode: str) -> None:
    class Counting:
        observes = "observation"

        def act(self, view, legal, keys, memory):  # type: ignore[no-untyped-def]
            from palestra.games.policy import Decision

            count = memory.get("count", torch.zeros_like(keys))
            return Decision(torch.zeros_like(keys), {"count": count}, {"count": count + 1})

    game = gym_game("sync", mode)
    solo = SoloGame(game, {"agent": Counting()}, lambda num, key, first, keys: game.make_world(num, key, True))  # type: ignore[dict-item]
    collected = solo.collect(solo.new_worlds(4, 0, "play"), ("agent",), 40)["agent"]
    age = collected.observation["observation"][:, 1].long()
    assert torch.equal(collected.extras["count"][collected.valid], age[collected.valid])


@every_mode
def test_episodes_are_counted_with_their_raw_rewards(mode: str) -> None:
    game = gym_game("sync", mode, **NORMALIZED)
    first = make_script("choose_first", game)
    solo = SoloGame(game, {"agent": first}, lambda num, key, first, keys: game.make_world(num, key, True))
    worlds = solo.new_worlds(4, 0, "play")
    lengths: list[float] = []
    for _ in range(50):
        rows = solo.collect(worlds, ("agent",), 1)["agent"]
        ended = rows.terminated | rows.truncated
        lengths += worlds.world._raw_observation["observation"][ended, 1].tolist() if mode == "next_step" else []  # type: ignore[attr-defined]
    totals = solo.take_totals(worlds)
    assert totals["episodes"] > 20
    if mode == "next_step":
        assert totals["length"] == sum(lengths)
        assert totals["return/agent"] == sum(length * (length + 1) / 2 for length in lengths)


def test_an_entry_point_environment_steps_by_the_mode_that_it_declares() -> None:
    game = GymnasiumGame(check(cart_pole(vectorization={"name": "entry_point"}), GymnasiumConfig), CPU)
    world = game.make_world(3, KEY, training=True)
    previous = torch.zeros(3, dtype=torch.bool)
    for _ in range(60):
        outcome = world.step(torch.zeros(3, dtype=torch.int64), torch.zeros(3))
        assert torch.equal(outcome.valid, ~previous)
        assert torch.equal(outcome.reward, outcome.valid.float())
        previous = outcome.terminated | outcome.truncated


# ---- seeds -------------------------------------------------------------------------------------------


def test_the_fold_of_one_key_is_that_of_tensors() -> None:
    for key, data in ((KEY, 0), (-1, 5), (2**62, 10**6)):
        assert fold_number(key, data) == int(fold(torch.tensor([key]), data))
    folded = int(fold(fold(torch.tensor([KEY]), 3), 7))
    assert episode_seed(KEY, 3, 7) == (folded % 2**64) >> 33


@every_way
def test_every_episode_begins_from_its_own_seed(way: str, mode: str) -> None:
    game = gym_game(way, mode)
    found = rows(played(game.make_world(3, KEY, training=True), 30))
    game.close()
    for world in range(3):
        tags = [
            int(tag)
            for tag, valid in zip(found["observation"][:, world, 0], found["valid"][:, world], strict=True)
            if valid
        ]
        begun = list(dict.fromkeys(tags))
        seeds = [episode_seed(KEY, world, episode) for episode in range(len(begun))]
        assert begun == [int(np.random.default_rng(seed).integers(1 << 20)) for seed in seeds]


DIGEST = """
import hashlib, sys
sys.path[:0] = ["tests/games", "."]
from gym_worlds import gym_game, played, rows
game = gym_game("async", "same_step", id="tests.gym_probes:Samples-v0")
found = rows(played(game.make_world(3, 5, True), 40))
game.close()
print(hashlib.sha256(b"".join(value.numpy().tobytes() for value in found.values())).hexdigest())
"""


def test_two_processes_with_one_seed_play_the_same_bits() -> None:
    """Which have hash seeds of their own: an interpreter's, and that of the process in which forks begin."""
    command = [sys.executable, "-c", DIGEST]
    options: Any = {"cwd": Path(__file__).parents[3], "capture_output": True, "text": True, "check": True}
    one = subprocess.run(command, env=os.environ | {"PYTHONHASHSEED": "1"}, **options).stdout
    assert one == run_forked(command, **options).stdout
    assert len(one) == 65


# ---- store and go on ---------------------------------------------------------------------------------


@every_way
@pytest.mark.parametrize("num_steps", [0, 1, 13])
def test_a_stored_world_goes_on_to_the_same_bits(way: str, mode: str, num_steps: int) -> None:
    game, other = (gym_game(way, mode, **NORMALIZED) for _ in range(2))
    world = game.make_world(4, KEY, training=True)
    played(world, num_steps)
    state, statistics = world.state_dict(), game.state_dict()
    going_on = other.make_world(4, KEY, training=True)
    other.load_state_dict(statistics)
    going_on.load_state_dict(state)
    assert same_rows(rows(played(world, 25)), rows(played(going_on, 25)))
    assert going_on.exact
    assert str(game.state_dict()) == str(other.state_dict())
    for one in (game, other):
        one.close()


@pytest.mark.parametrize(
    "wrappers",
    [
        [
            {"name": "gymnasium.wrappers:TimeLimit", "arguments": {"max_episode_steps": 3}},
            {
                "name": "gymnasium.wrappers:FrameStackObservation",
                "arguments": {"stack_size": 3, "padding_type": "reset"},
            },
        ],
        [
            {
                "name": "gymnasium.wrappers:StickyAction",
                "arguments": {"repeat_action_probability": 0.5, "repeat_action_duration": 2},
            }
        ],
        [
            {"name": "gymnasium.wrappers:DelayObservation", "arguments": {"delay": 2}},
            {"name": "gymnasium.wrappers:FlattenObservation", "arguments": {}},
        ],
    ],
)
def test_wrappers_are_replayed_with_their_environment(wrappers: list[dict[str, object]]) -> None:
    game = gym_game(wrappers=wrappers)
    world = game.make_world(4, KEY, training=True)
    actions = torch.arange(400).view(100, 4) % 3

    def play(world, start, stop):  # type: ignore[no-untyped-def]
        outcomes = [world.step(actions[i], torch.zeros(4)) for i in range(start, stop)]
        return torch.stack([outcome.observation["observation"] for outcome in outcomes])

    play(world, 0, 37)
    going_on = game.make_world(4, KEY, training=True)
    going_on.load_state_dict(world.state_dict())
    assert torch.equal(play(world, 37, 80), play(going_on, 37, 80))
    assert going_on.exact


def test_an_environments_own_draws_from_its_action_space_are_replayed() -> None:
    game = gym_game(id="tests.gym_probes:Samples-v0")
    world = game.make_world(4, KEY, training=True)
    played(world, 11)
    going_on = game.make_world(4, KEY, training=True)
    going_on.load_state_dict(world.state_dict())
    assert same_rows(rows(played(world, 20)), rows(played(going_on, 20)))


@every_mode
def test_an_environment_that_does_not_replay_is_reported_and_begins_anew(mode: str) -> None:
    game = gym_game("sync", mode, id="tests.gym_probes:Forgetful-v0")
    world = game.make_world(4, KEY, training=True)
    played(world, 7)
    while (
        mode == "next_step" and world._awaiting_reset is None
    ):  # an episode has ended, and the next step only begins anew
        played(world, 1)
    going_on = game.make_world(4, KEY, training=True)
    going_on.load_state_dict(world.state_dict())
    with pytest.warns(
        UserWarning, match=r"Forgetful-v0 did not give the same observations .* 4 of 4 worlds begin a new episode"
    ):
        observation = going_on.observation["observation"]
    assert not going_on.exact
    assert not observation[:, 1].any()
    assert rows(played(going_on, 1))["valid"].all(), "all of them have begun"
    assert not going_on.state_dict()["exact"]


def test_an_entry_point_environment_cannot_be_replayed_and_says_so() -> None:
    game = GymnasiumGame(check(cart_pole(vectorization={"name": "entry_point"}), GymnasiumConfig), CPU)
    world = game.make_world(3, KEY, training=True)
    begun = world.observation["observation"]
    world.step(torch.zeros(3, dtype=torch.int64), torch.zeros(3))
    going_on = game.make_world(3, KEY, training=True)
    going_on.load_state_dict(world.state_dict())
    with pytest.warns(UserWarning, match="cannot be replayed"):
        observation = going_on.observation["observation"]
    assert not going_on.exact
    assert not torch.equal(observation, begun)  # nor does it repeat what it began with


def test_long_episodes_need_no_more_room_than_their_actions() -> None:
    game = GymnasiumGame(
        check(cart_pole(arguments={"sutton_barto_reward": False, "max_episode_steps": 20}), GymnasiumConfig), CPU
    )
    world = game.make_world(2, KEY, training=True)
    for step in range(2000):
        world.step(torch.tensor([step % 2, step % 2]), torch.zeros(2))
    assert len(world._episodes.actions) <= 512
    assert len(world.state_dict()["actions"]) <= 21


# ---- open and closed ---------------------------------------------------------------------------------


@every_way
def test_a_closed_world_has_no_processes_and_goes_on_where_it_was(way: str, mode: str) -> None:
    game, twin = gym_game(way, mode), gym_game("sync", mode)
    world, other = game.make_world(3, KEY, True), twin.make_world(3, KEY, True)
    found = [rows(played(world, 9))]
    processes = list(getattr(world.vector, "processes", []))
    game.close()
    assert not any(process.is_alive() for process in processes)
    found.append(rows(played(world, 9)))
    game.close()
    whole = rows(played(other, 18))
    assert all(torch.equal(torch.cat([part[name] for part in found]), value) for name, value in whole.items())


def test_a_worker_that_fails_leaves_no_process_behind() -> None:
    game = gym_game("async", id="tests.gym_probes:Faulty-v0", arguments={"limit": 9})
    world = game.make_world(3, KEY, True)
    assert world.observation
    processes = world.vector.processes
    with pytest.raises(EnvironmentFailed, match="ArithmeticError: the sum is too large"):
        played(world, 20)
    game.close()
    assert not any(process.is_alive() for process in processes)


def test_a_worker_that_was_killed_leaves_no_process_behind() -> None:
    game = gym_game("async")
    world = game.make_world(3, KEY, True)
    assert world.observation
    processes = world.vector.processes
    processes[1].kill()
    with pytest.raises(EnvironmentFailed, match="world 1, step 1 of episode 0: its process ended with SIGKILL"):
        played(world, 20)
    game.close()
    assert not any(process.is_alive() for process in processes)
