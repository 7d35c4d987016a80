"""Running statistics: exact against numpy over all data at once, taught by training worlds alone.

Covers palestra.games.gymnasium.normalization.
"""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from palestra.games.gymnasium.normalization import Moments
from tests.games.gym_worlds import MODES, gym_game, played, rows

KEY, GAMMA, EPS = 11, 0.9, 1e-4
NORMALIZE = {
    "observation": {"normalize": {"eps": EPS}, "clip": None, "channels": None},
    "reward": {"normalize": {"gamma": GAMMA, "eps": EPS}, "clip": None},
}

every_mode = pytest.mark.parametrize("mode", MODES)
numbers = st.floats(-1e3, 1e3, width=32)


@given(st.lists(arrays(np.float32, st.tuples(st.integers(0, 4), st.just(2)), elements=numbers), max_size=6))
def test_batches_joined_are_as_one(batches: list[np.ndarray]) -> None:
    moments = Moments((2,))
    for batch in batches:
        moments.update(batch)
    whole = np.concatenate([np.empty((0, 2)), *batches])
    assert moments.count == len(whole)
    if len(whole):
        assert np.allclose(moments.mean, whole.mean(axis=0), rtol=1e-12, atol=1e-9)
        assert np.allclose(moments.variance, whole.var(axis=0), rtol=1e-9, atol=1e-8)


def test_restored_moments_go_on_as_if_nothing_had_been() -> None:
    rows = np.random.default_rng(0).normal(size=(9, 2))
    moments, restored = Moments((2,)), Moments((2,))
    moments.update(rows[:5])
    restored.load_state_dict(moments.state_dict())
    for each in (moments, restored):
        each.update(rows[5:])
    assert (restored.count, restored.mean.tolist()) == (9, moments.mean.tolist())
    assert restored.variance.tolist() == moments.variance.tolist()


def test_before_the_first_row_nothing_changes() -> None:
    assert np.array_equal(Moments((1,)).standardized(np.array([[3.0]]), 1e-12), [[3.0]])


CLOCK = 1_700_000_000_000_000_000


@pytest.mark.parametrize(
    ("dtype", "start", "pace"),
    [
        ("float64", 5_300_000.0, 0.01),
        ("int32", 2_000_000_000, 1),
        ("int64", CLOCK, 1),
        ("uint64", 2**64 - 100, 3),
    ],
)
def test_numbers_that_float32_cannot_tell_apart_are_normalised_as_they_are(
    dtype: str, start: float, pace: float
) -> None:
    game = gym_game(id="tests.gym_oddities:Clock-v0", arguments={"dtype": dtype, "start": start, "pace": pace})
    assert not game.make_world(1, KEY, training=False).observation["observation"].isnan().any()
    game = gym_game(
        id="tests.gym_oddities:Clock-v0", arguments={"dtype": dtype, "start": start, "pace": pace}, **NORMALIZE
    )
    world = game.make_world(1, KEY, training=True)
    seen = [world.observation["observation"]]
    for _ in range(8):
        seen.append(world.step(torch.zeros(1).long(), torch.zeros(1)).observation["observation"])
    times = np.arange(9) * pace
    for step, value in enumerate(seen):
        expected = (times[step] - times[: step + 1].mean()) / np.sqrt(times[: step + 1].var() + EPS)
        assert np.allclose(value, expected, atol=1e-5)
        assert value.dtype == torch.float32
    state = world.state_dict(), game.state_dict()
    world.close()
    game.load_state_dict(state[1])
    world.load_state_dict(state[0])
    assert torch.equal(world.observation["observation"], seen[-1])
    assert world.exact
    own, _ = game.read_observation("agent", np.array([start], dtype=dtype))
    assert np.allclose(game.transformed("agent", own)["observation"], -np.mean(times) / np.sqrt(times.var() + EPS))
    game.close()


def test_rewards_that_float32_cannot_tell_apart_are_normalised_as_they_are() -> None:
    reward = {"normalize": {"gamma": 0.0, "eps": 1e-12}, "clip": None}
    arguments = {"dtype": "float64", "start": 5_300_000.0, "pace": 0.01}
    game = gym_game(id="tests.gym_oddities:Clock-v0", arguments=arguments, reward=reward)
    world = game.make_world(1, KEY, training=True)
    for _ in range(4):
        world.step(torch.zeros(1).long(), torch.zeros(1))
    assert np.isclose(game.reward_moments.variance, (np.arange(4) * 0.01).var(), rtol=1e-6)


@every_mode
def test_statistics_are_those_of_all_that_was_seen(mode: str) -> None:
    """Every observation once: the beginnings of episodes, and what followed each action."""
    plain, game = gym_game("sync", mode), gym_game("sync", mode, **NORMALIZE)
    raw_world, world = plain.make_world(4, KEY, True), game.make_world(4, KEY, True)
    seen, returns = [raw_world.observation["observation"]], []
    so_far, pending = np.zeros(4), torch.zeros(4, dtype=torch.bool)
    assert world.observation
    for step in range(40):
        action = torch.full((4,), step % 3)
        raw, outcome = raw_world.step(action, action), world.step(action, action)
        ended = raw.terminated | raw.truncated
        seen.append(raw.observation["observation"])
        so_far = so_far * GAMMA + raw.reward.numpy()
        returns.append(so_far[raw.valid.numpy()])
        variance = np.concatenate(returns).var()
        assert np.allclose(outcome.reward, raw.reward / np.sqrt(variance + EPS), rtol=1e-5)
        all_seen = torch.cat(seen).double().numpy()
        normal = (raw.observation["observation"].numpy() - all_seen.mean(0)) / np.sqrt(all_seen.var(0) + EPS)
        assert np.allclose(outcome.observation["observation"], normal, rtol=1e-4, atol=1e-5)
        if mode != "next_step" and ended.any():
            seen.append(raw_world.observation["observation"][ended])
            all_seen = torch.cat(seen).double().numpy()
            normal = (seen[-1].numpy() - all_seen.mean(0)) / np.sqrt(all_seen.var(0) + EPS)
            assert np.allclose(world.observation["observation"][ended], normal, rtol=1e-4, atol=1e-5)
        going_on = ~ended
        assert torch.equal(world.observation["observation"][going_on], outcome.observation["observation"][going_on])
        so_far[ended.numpy()] = 0.0
        assert torch.equal(outcome.raw_reward, raw.reward)
        pending = ended
    assert pending is not None
    moments = game.observation_moments["observation"]
    assert moments.count == len(all_seen)
    assert np.allclose(moments.mean, all_seen.mean(0), rtol=1e-12)
    assert np.allclose(moments.variance, all_seen.var(0), rtol=1e-9)
    assert np.isclose(game.reward_moments.variance, np.concatenate(returns).var(), rtol=1e-9)


@every_mode
def test_other_worlds_use_the_statistics_and_teach_nothing(mode: str) -> None:
    game = gym_game("sync", mode, **NORMALIZE)
    played(game.make_world(4, KEY, training=True), 20)
    before = str(game.state_dict())
    raw = rows(played(gym_game().make_world(2, 5, True), 10))
    world = game.make_world(2, 5, training=False)
    view = game.transformed("agent", game.read_observation("agent", raw["observation"][0].numpy())[0])
    assert torch.equal(world.observation["observation"], view["observation"])
    played(world, 10)
    assert str(game.state_dict()) == before


def test_cuts_come_after_the_normalisation() -> None:
    changes = {"observation": NORMALIZE["observation"] | {"clip": 0.5}, "reward": {"normalize": None, "clip": 2.0}}
    free, cut = gym_game(**NORMALIZE), gym_game(**changes)
    some, others = (game.make_world(4, KEY, True) for game in (free, cut))
    for _ in range(20):
        action = torch.zeros(4, dtype=torch.int64)
        mine, theirs = some.step(action, action), others.step(action, action)
        assert torch.equal(mine.observation["observation"].clip(-0.5, 0.5), theirs.observation["observation"])
        assert torch.equal(theirs.reward, theirs.raw_reward.clip(-2.0, 2.0))


def test_rewards_are_cut_below_zero_too() -> None:
    pendulum = {"id": "Pendulum-v1", "arguments": {"max_episode_steps": 200, "g": 10.0}}
    world = gym_game(**pendulum, reward={"normalize": None, "clip": 0.5}).make_world(4, KEY, True)
    outcomes = [world.step(torch.zeros(4, 1), torch.zeros(4, dtype=torch.int64)) for _ in range(20)]
    earned = torch.cat([outcome.raw_reward for outcome in outcomes])
    assert earned.min() < -0.5
    assert torch.equal(torch.cat([outcome.reward for outcome in outcomes]), earned.clip(-0.5, 0.5))


def test_only_measured_numbers_are_normalised() -> None:
    observation = {"normalize": {"eps": EPS}, "clip": 0.1, "channels": "last"}
    game = gym_game(id="tests.gym_probes:Mixed-v0", observation=observation)
    observation = game.make_world(8, KEY, True).observation
    assert set(game.observation_moments) == {"inner/number", "matrix"}
    assert observation["pixels"].dtype == torch.uint8
    assert set(observation["inner/choice"].flatten().tolist()) == {0.0, 1.0}
    assert observation["matrix"].abs().max() <= 0.1
