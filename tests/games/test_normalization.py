"""Observations of tensor games that are normalised: statistics as numpy finds them, sets, images, and what is refused.

What roll-outs and runs make of it: tests/rollouts/test_normalized_play.py, tests/kinds/games/test_normalized_games.py.
"""

from typing import Any

import numpy as np
import pytest
import torch
from conftest import PLAIN
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from palestra.config import ConfigError
from palestra.games import ObservationConfig, TensorGame, make_game
from palestra.games.gymnasium.normalization import Moments
from palestra.games.normalization import ObservationTransform, RunningMoments, make_transform
from palestra.games.spaces import Space
from tests.games.gym_worlds import gym_data

CPU = torch.device("cpu")
EPS = 1e-8
SPACES = {
    "one": {
        "numbers": Space((2,), torch.float32, padded=False),
        "grid": Space((2, 3), torch.float32, padded=False),
        "set": Space((4, 2), torch.float32, padded=True),
        "frames": Space((1, 3, 3), torch.uint8, padded=False),
        "flags": Space((2,), torch.bool, padded=False),
    },
    "two": {"numbers": Space((2,), torch.float32, padded=False)},
}


def config_of(eps: float | None, clip: float | None) -> ObservationConfig:
    return ObservationConfig.model_validate({"normalize": None if eps is None else {"eps": eps}, "clip": clip})


def transform_of(eps: float | None = EPS, clip: float | None = None) -> ObservationTransform:
    made = make_transform(config_of(eps, clip), SPACES, CPU)
    assert made is not None
    return made


def observation_of(num: int, seed: int) -> dict[str, Tensor]:
    """Badly scaled numbers; of a set some members are absent."""
    rng = torch.Generator().manual_seed(seed)
    members = torch.rand(num, 4, 2, generator=rng) * torch.tensor([1.0, 1000.0])
    members[torch.rand(num, 4, generator=rng) < 0.4] = -1.0
    return {
        "numbers": torch.randn(num, 2, generator=rng) * torch.tensor([1e-3, 1e4]) + torch.tensor([5.0, -1e5]),
        "grid": torch.randn(num, 2, 3, generator=rng),
        "set": members,
        "frames": torch.randint(0, 256, (num, 1, 3, 3), generator=rng, dtype=torch.uint8),
        "flags": torch.rand(num, 2, generator=rng) < 0.5,
    }


# ---- the statistics --------------------------------------------------------------------------------------


@given(
    sizes=st.lists(st.integers(0, 6), min_size=1, max_size=8),
    scale=st.sampled_from([1e-3, 1.0, 1e5]),
    seed=st.integers(0, 2**32 - 1),
)
def test_moments_of_batches_are_those_of_all_rows_at_once(sizes: list[int], scale: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    moments, as_gymnasium = RunningMoments.of(Space((3,), torch.float32, padded=False), CPU), Moments((3,))
    every = [np.empty((0, 3), np.float32)]
    for size in sizes:
        rows, counted = (scale * (rng.normal(size=(size, 3)) + 10.0)).astype(np.float32), rng.random(size) < 0.6
        moments.update(torch.from_numpy(rows), torch.from_numpy(counted))
        as_gymnasium.update(rows[counted])
        every.append(rows[counted])
    joined = np.concatenate(every).astype(np.float64)
    mean, variance = (joined.mean(0), joined.var(0)) if len(joined) else (np.zeros(3), np.ones(3))
    for count, its_mean, its_variance in (
        (int(moments.count), moments.mean.numpy(), moments.variance.numpy()),
        (as_gymnasium.count, as_gymnasium.mean, as_gymnasium.variance),
    ):
        assert count == len(joined)
        assert np.allclose(its_mean, mean, rtol=1e-12)
        assert np.allclose(its_variance, variance, rtol=1e-8, atol=1e-12 * scale**2)


def test_rows_that_do_not_count_leave_no_trace() -> None:
    moments, same = (RunningMoments.of(Space((2,), torch.float32, padded=False), CPU) for _ in range(2))
    rows = torch.tensor([[1.0, 2.0], [torch.nan, torch.inf], [3.0, 5.0]])
    moments.update(rows, torch.tensor([True, False, True]))
    same.update(rows[[0, 2]], torch.ones(2, dtype=torch.bool))
    before = str(moments.state_dict())
    assert before == str(same.state_dict())
    moments.update(rows, torch.zeros(3, dtype=torch.bool))
    assert str(moments.state_dict()) == before


def test_numbers_lose_their_mean_and_are_divided_by_their_deviation() -> None:
    transform, every = transform_of(), torch.ones(50, dtype=torch.bool)
    first, second = observation_of(50, 1), observation_of(50, 2)
    transform("one", first, every)
    new = transform("one", second, every)
    for name in ("numbers", "grid"):
        rows = torch.cat([first[name], second[name]]).double().numpy()
        expected = (second[name].numpy() - rows.mean(0)) / np.sqrt(rows.var(0) + EPS)
        assert np.allclose(new[name], expected, rtol=1e-4, atol=1e-5)
        assert new[name].dtype == torch.float32
    assert [torch.equal(new[name], second[name]) for name in ("frames", "flags")] == [True, True]


def test_a_set_is_divided_alone_so_that_its_members_stay_present() -> None:
    """By the root mean square of the members that are present."""
    transform = transform_of()
    observation = observation_of(200, 3)
    new = transform("one", observation, torch.arange(200) < 150)
    present = (observation["set"] >= 0).all(dim=2)
    counted = observation["set"][:150][present[:150]].double().numpy()
    scale = np.sqrt(np.square(counted).mean(0) + EPS)
    assert 0 < present.sum() < present.numel()
    assert torch.equal((new["set"] >= 0).all(dim=2), present)
    assert np.allclose(new["set"][present], observation["set"][present].numpy() / scale, rtol=1e-6)


def test_every_role_has_statistics_of_its_own() -> None:
    transform, observation = transform_of(), observation_of(20, 4)
    before = str(transform.moments["one"]["numbers"].state_dict())
    numbers = {"numbers": observation["numbers"]}
    transform("two", numbers, torch.ones(20, dtype=torch.bool))
    assert int(transform.moments["two"]["numbers"].count) == 20
    assert str(transform.moments["one"]["numbers"].state_dict()) == before


def test_without_worlds_that_count_nothing_is_learned() -> None:
    transform = transform_of()
    before = str(transform.state_dict())
    new = transform("one", observation_of(5, 6), None)
    assert str(transform.state_dict()) == before
    assert torch.allclose(new["grid"], observation_of(5, 6)["grid"])  # before the first row: mean 0, variance 1


@pytest.mark.parametrize("eps", [None, EPS])
def test_a_clip_comes_last(eps: float | None) -> None:
    free, cut = transform_of(eps, 1e9), transform_of(eps, 0.5)
    every = torch.ones(30, dtype=torch.bool)
    one, other = (transform("one", observation_of(30, 7), every) for transform in (free, cut))
    for name in ("numbers", "grid", "set"):
        assert torch.equal(one[name].clamp(-0.5, 0.5), other[name])
    assert (other["grid"].abs() == 0.5).any()
    assert torch.equal(one["frames"], other["frames"])


def test_loaded_statistics_go_on_to_the_same_bits() -> None:
    transform, loaded, every = transform_of(), transform_of(), torch.ones(9, dtype=torch.bool)
    transform("one", observation_of(9, 8), every)
    loaded.load_state_dict(transform.state_dict())
    one, other = (each("one", observation_of(9, 9), every) for each in (transform, loaded))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert str(transform.state_dict()) == str(loaded.state_dict())


def test_no_number_is_read_from_the_device() -> None:
    """On the device meta there are no numbers: whoever asked for one, as a wait for a GPU does, would fail."""
    transform = make_transform(config_of(EPS, 2.0), SPACES, torch.device("meta"))
    assert transform is not None
    observation = {name: value.to("meta") for name, value in observation_of(4, 11).items()}
    new = transform("one", observation, torch.ones(4, dtype=torch.bool, device="meta"))
    assert new["set"].shape == observation["set"].shape
    assert transform.moments["one"]["set"].mean.is_meta


# ---- what cannot be done -------------------------------------------------------------------------------


def test_observations_without_numbers_are_refused() -> None:
    images = {"agent": {"frames": Space((1, 3, 3), torch.uint8, padded=False)}}
    with pytest.raises(ConfigError, match=r"game\.observation: expected null for normalize and clip, because the obs"):
        make_transform(config_of(EPS, None), images, CPU)
    assert make_transform(config_of(None, None), images, CPU) is None


def test_statistics_of_another_game_are_refused() -> None:
    nim, larger = (game_of(max_stones=stones) for stones in (3, 4))
    with pytest.raises(
        ConfigError, match=r"observation\.normalize: expected statistics of first.heaps \(2, 5\), second"
    ):
        larger.load_state_dict(nim.state_dict())


def game_of(max_stones: int = 3, observation: Any = None) -> TensorGame:
    nim = {"name": "nim", "num_heaps": 2, "max_stones": max_stones}
    game = make_game(nim | {"observation": observation or {"normalize": {"eps": EPS}, "clip": None}})
    assert isinstance(game, TensorGame)
    return game


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        ({"normalize": {"eps": 1e-6}, "clip": None}, "observation"),
        ({"normalize": {"eps": EPS}, "clip": 5.0}, "observation"),
        (PLAIN, "observation"),
        ({"normalize": {"eps": EPS}, "clip": None}, None),
    ],
)
def test_players_meet_no_observations_that_are_transformed_otherwise(other: Any, expected: str | None) -> None:
    own, theirs = (game_of(observation=each).config for each in (None, other))  # type: ignore[attr-defined]
    fault = own.misfit(theirs)
    assert (None if fault is None else fault.path) == expected


def test_a_tensor_game_and_an_environment_have_no_statistics_in_common() -> None:
    own = game_of().config  # type: ignore[attr-defined]
    environment = make_game(gym_data(observation={"normalize": {"eps": EPS}, "clip": None})).config  # type: ignore[attr-defined]
    fault = own.misfit(environment)
    assert fault is not None
    assert (fault.path, "no running statistics in common" in fault.message) == ("observation.normalize", True)
