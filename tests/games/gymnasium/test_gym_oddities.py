"""Environments of every allowed kind: episodes of one step, integers, every space, vectors in every mode, faults.

Covers palestra.games.gymnasium.memory.
"""

import re
from typing import Any

import numpy as np
import pytest
import torch

from palestra.config import ConfigError, check
from palestra.games.gymnasium import GymnasiumConfig, GymnasiumGame
from palestra.games.info import InfoFields
from palestra.games.spaces import Discrete, Space
from palestra.recording.aggregates import Aggregates
from tests.games.gym_worlds import CPU, MODES, assert_sound, gym_data, gym_game, played, rows, same_rows

AUTORESET = {"next_step": "NextStep", "same_step": "SameStep", "disabled": "Disabled"}

every_mode = pytest.mark.parametrize("mode", MODES)


def stepped(game: GymnasiumGame, num_steps: int, actions: torch.Tensor) -> list[Any]:
    """The outcomes of the same actions again and again."""
    world = game.make_world(len(actions), 3, training=True)
    return [world.step(actions, torch.zeros(len(actions))) for _ in range(num_steps)]


# ---- episodes and rewards --------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["sync", "async"])
@every_mode
def test_episodes_of_one_step_end_with_their_own_observation_and_integer_reward(way: str, mode: str) -> None:
    game = gym_game(way, mode, id="tests.gym_oddities:Blink-v0")
    outcomes = stepped(game, 24, torch.zeros(3, dtype=torch.int64))
    game.close()
    seen = torch.stack([outcome.observation["observation"] for outcome in outcomes])
    columns = ("reward", "terminated", "truncated", "valid")
    reward, terminated, truncated, valid = (torch.stack([getattr(o, name) for o in outcomes]) for name in columns)
    number = seen[..., 0]
    assert (seen.dtype, reward.dtype) == (torch.float32, torch.float32)
    assert torch.equal(valid, (terminated | truncated))
    assert int(valid.sum()) == (36 if mode == "next_step" else 72)
    for world in range(3):
        rows_of_one = valid[:, world]
        assert torch.equal(number[:, world][rows_of_one], torch.arange(float(rows_of_one.sum())))
    assert torch.equal(seen[..., 1][valid], torch.ones(int(valid.sum())))
    assert torch.equal(reward[valid], number[valid])
    assert torch.equal(terminated[valid], number[valid] % 2 == 0)
    assert not (terminated & truncated).any()


@every_mode
def test_an_environment_sees_its_own_actions_and_its_entries_say_what_they_show(mode: str) -> None:
    game = gym_game("sync", mode, id="tests.gym_oddities:Cockpit-v0")
    assert game.action_space == Discrete(3)
    assert game.spaces["agent"] == {
        "camera": Space((3, 36, 40), torch.uint8, False),
        "deep.er/1": Space((8,), torch.float32, False),
        "deep.er/wide": Space((1,), torch.float32, False),
        "gear": Space((4,), torch.float32, False),
        "lamps": Space((2, 2), torch.float32, False),
        "speed": Space((2,), torch.float32, False),
    }
    outcomes = stepped(game, 20, torch.tensor([0, 1, 2]))
    for outcome in outcomes:
        seen, ended = outcome.observation, outcome.terminated | outcome.truncated
        age = seen["gear"].argmax(dim=1)
        assert torch.equal(seen["camera"], age.to(torch.uint8).view(3, 1, 1, 1).expand(3, 3, 36, 40))
        assert torch.equal(seen["speed"], torch.stack([age.float(), -1e9 * age], dim=1))
        assert torch.equal(seen["lamps"], (age % 2).float().view(3, 1, 1).expand(3, 2, 2))
        assert torch.equal(seen["deep.er/1"].view(3, 2, 4).argmax(2), torch.stack([age, 3 - age], dim=1))
        assert torch.equal(seen["deep.er/wide"][:, 0], age.float())
        assert torch.equal(ended & ~outcome.truncated, torch.zeros(3, dtype=torch.bool))
        assert bool((age[ended] == 3).all())
        before = torch.where(ended, 3, age - 1)  # the fourth step shows 3 again
        assert torch.equal(outcome.reward, (outcome.valid & (before % 3 == torch.arange(3))).float())
    assert sum(int(outcome.truncated.sum()) for outcome in outcomes) == (12 if mode == "next_step" else 15)


# ---- memory ------------------------------------------------------------------------------------------------

REUSING = "tests.gym_oddities:Reusing-v0"


@pytest.mark.parametrize(("way", "shared"), [("sync", False), ("sync", True), ("async", False)])
@every_mode
def test_arrays_and_infos_that_an_environment_writes_into_again_change_nothing(
    way: str, mode: str, shared: bool
) -> None:
    kept, plain = Aggregates(["mean", "last", "count"]), Aggregates(["mean", "last", "count"])
    expected_game, game = gym_game("sync", mode), gym_game(way, mode, id=REUSING, arguments={"shared": shared})
    expected_world, world = expected_game.make_world(3, 7, training=True), game.make_world(3, 7, training=True)
    expected_world.read_info(InfoFields(["age"], 3, plain))
    world.read_info(InfoFields(["age"], 3, kept))
    expected, found = rows(played(expected_world, 40)), rows(played(world, 40))
    game.close()
    assert_sound(found, mode)
    assert same_rows(found, expected)
    assert kept.take() == plain.take()


def test_frames_that_a_wrapper_stacks_or_delays_are_those_that_it_was_given() -> None:
    for wrapper in (
        {"name": "gymnasium.wrappers:FrameStackObservation", "arguments": {"stack_size": 3, "padding_type": "reset"}},
        {"name": "gymnasium.wrappers:DelayObservation", "arguments": {"delay": 1}},
    ):
        found, expected = (
            torch.stack([seen.observation["observation"] for seen in stepped(game, 30, torch.zeros(2).long())])
            for game in (
                gym_game(id=REUSING, arguments={"shared": False}, wrappers=[wrapper]),
                gym_game(wrappers=[wrapper]),
            )
        )
        assert torch.equal(found, expected)


@pytest.mark.parametrize(
    "wrappers", [[], [{"name": "gymnasium.wrappers:RepeatAction", "arguments": {"num_repeats": 2}}]]
)
@pytest.mark.parametrize("way", ["sync", "async"])
def test_an_environment_that_writes_into_its_actions_changes_no_memory_of_them(
    way: str, wrappers: list[dict[str, Any]]
) -> None:
    game = gym_game(way, id="tests.gym_oddities:Scaling-v0", wrappers=wrappers)
    world, actions = game.make_world(2, 3, training=True), torch.tensor([[0.5, -0.25], [1.0, -1.0]])
    given = actions.clone()
    for _ in range(3):
        seen = world.step(given, torch.zeros(2)).observation["observation"]
        assert torch.equal(given, actions)
        assert torch.equal(seen, actions)
    for _ in range(2):  # what is remembered is played again twice
        state = world.state_dict()
        world.close()
        assert torch.equal(state["actions"], actions.expand(3, 2, 2))
        world.load_state_dict(state)
        assert torch.equal(world.observation["observation"], actions)
        assert world.exact
    game.close()


def test_a_vector_of_its_own_may_write_into_what_it_gave_and_got() -> None:
    games = gym_game("entry_point", id="tests.gym_oddities:ReusingVector-v0"), gym_game()
    found, expected = (rows(played(game.make_world(4, 7, training=True), 30)) for game in games)
    assert found["terminated"].any()
    assert_sound(found, "next_step")
    assert expected["terminated"].any()


# ---- vectors of their own ----------------------------------------------------------------------------------


@pytest.mark.parametrize("batched", [False, True])
@every_mode
def test_a_vector_of_its_own_steps_by_its_mode_and_nothing_crosses_a_reset(mode: str, batched: bool) -> None:
    arguments = {"mode": AUTORESET[mode], "batched": batched}
    game = gym_game("entry_point", id="tests.gym_oddities:ManyWalks-v0", arguments=arguments)
    assert_sound(rows(played(game.make_world(5, 7, training=True), 60)), mode)
    game.close()


def test_what_a_vector_of_its_own_says_of_worlds_that_only_begin_is_not_heard() -> None:
    arguments = {"mode": AUTORESET["next_step"], "batched": False}
    plain = gym_game("entry_point", id="tests.gym_oddities:ManyWalks-v0", arguments=arguments)
    babbling = gym_game("entry_point", id="tests.gym_oddities:BabblingWalks-v0")
    found, expected = (rows(played(game.make_world(5, 7, training=True), 60)) for game in (babbling, plain))
    assert not expected["valid"].all()
    assert same_rows(found, expected)


# ---- what cannot be ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("space", "why"),
    [
        ("sequence", "'observation', got Sequence"),
        ("graph", "'inner', got Graph"),
        ("text", "'1', got Text"),
        ("one_of", "'observation', got OneOf"),
        ("nothing", "expected an observation with at least one entry, got an empty space"),
        ("no_numbers", "expected numbers in observation 'observation', got shape (0,)"),
        ("same_name", "expected different names for the entries of the observation, got 'a/b' twice"),
    ],
)
def test_an_observation_that_nobody_can_see_is_refused(space: str, why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        gym_game(id="tests.gym_oddities:Unreadable-v0", arguments={"space": space})
    kinds = "Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple"
    cannot = "game.id: 'tests.gym_oddities:Unreadable-v0' cannot be played"
    told = f"expected {kinds} as observation {why}" if why.startswith("'") else why
    assert str(caught.value) == f"{cannot}: {told}"
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("Lying", "expected shape (2,) of the observation, as in its space, got (3,)"),
        ("Stillborn", "FileNotFoundError: map.txt"),
        ("Leaving", "SystemExit: there is no map (gym_oddities.py, line "),
    ],
)
def test_an_environment_without_a_first_observation_is_refused(name: str, why: str) -> None:
    with pytest.raises(ConfigError, match=f"^game.id: .* gives no first observation: {re.escape(why)}"):
        gym_game(id=f"tests.gym_oddities:{name}-v0")


def test_observations_frozen_in_evaluation_are_those_of_training(tmp_path: Any) -> None:
    """The statistics of one world are used by another that does not teach them, to the bit."""
    normalize = {"normalize": {"eps": 1e-8}, "clip": None}
    game = gym_game(observation=normalize)
    played(game.make_world(4, 3, training=True), 30)
    before = str(game.state_dict())
    moments = game.state_dict()["observation"]["observation"]
    plain = GymnasiumGame(check(gym_data(), GymnasiumConfig), CPU)
    raw = rows(played(plain.make_world(3, 9, training=False), 1))["observation"][0].numpy()
    seen = game.make_world(3, 9, training=False).observation["observation"].numpy()
    mean, variance = np.asarray(moments["mean"]), np.asarray(moments["squares"]) / moments["count"]
    assert np.allclose(seen, (raw - mean) / np.sqrt(variance + 1e-8), rtol=1e-5)
    assert str(game.state_dict()) == before
