"""Between Gymnasium's spaces and ours: every kind, nested, images; actions of every kind; real environments.

Covers palestra.games.gymnasium.spaces.
"""

import re
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector.utils import batch_space
from hypothesis import given
from hypothesis import strategies as st

from palestra.config import ConfigError, check
from palestra.evaluation.video import film_episodes
from palestra.games.gymnasium import GymnasiumConfig, GymnasiumGame
from palestra.games.gymnasium.arguments import known_arguments
from palestra.games.gymnasium.spaces import ObservationReader, UnknownChannels
from palestra.games.spaces import Box, Discrete, MultiDiscrete, Space
from palestra.players import make_script
from tests.games.gym_worlds import CPU, gym_data, gym_game

LAST = {"normalize": None, "clip": None, "channels": "last"}


DICT = spaces.Dict({"x": spaces.Box(-1, 1, (2,)), "n": spaces.Discrete(3)})


def test_a_dict_observation_is_flattened_into_named_entries() -> None:
    game = gym_game(id="tests.gym_probes:Mixed-v0", observation=LAST)
    assert game.spaces["agent"] == {
        "inner/choice": Space((3,), torch.float32, False),
        "inner/number": Space((1,), torch.float32, False),
        "matrix": Space((2, 2), torch.float32, False),
        "pair/0": Space((2,), torch.float32, False),
        "pair/1": Space((5,), torch.float32, False),
        "pixels": Space((3, 4, 5), torch.uint8, False),
    }
    assert game.action_spaces["agent"] == MultiDiscrete((2, 3))


def test_every_entry_is_read_as_it_was_drawn() -> None:
    space = gymnasium.make("tests.gym_probes:Mixed-v0").observation_space
    batch = batch_space(space, 5)
    batch.seed(0)
    drawn = batch.sample()
    read = ObservationReader(space, "last").read(drawn)
    assert np.array_equal(read["inner/choice"].argmax(1) - 1, drawn["inner"]["choice"])
    assert np.array_equal(read["inner/number"][:, 0], drawn["inner"]["number"])
    assert np.array_equal(read["matrix"], drawn["matrix"].astype(np.float32))
    assert np.array_equal(read["pair/0"], drawn["pair"][0])
    choices = np.stack([read["pair/1"][:, :2].argmax(1), read["pair/1"][:, 2:].argmax(1)], axis=1)
    assert np.array_equal(choices, drawn["pair"][1])
    assert np.array_equal(read["pair/1"].sum(1), np.full(5, 2.0))
    assert np.array_equal(read["pixels"], drawn["pixels"].transpose(0, 3, 1, 2))
    assert not any(np.shares_memory(value, drawn["matrix"]) for value in read.values())


@given(st.integers(0, 2**31 - 1))
def test_single_observations_are_read_like_a_batch(seed: int) -> None:
    space = gymnasium.make("tests.gym_probes:Mixed-v0").observation_space
    space.seed(seed)
    reader, drawn = ObservationReader(space, "last"), [space.sample() for _ in range(3)]
    together = reader.read_list(drawn)
    for row, one in enumerate(drawn):
        alone = reader.read_list([one])
        assert all(np.array_equal(together[name][row], value[0]) for name, value in alone.items())


@pytest.mark.parametrize(
    ("space", "observation", "told"),
    [
        (spaces.Box(-1, 1, (4,)), (np.zeros(4), {}), r"got a tuple; env\.reset\(\) gives \(observation, info\)$"),
        (DICT, ({"x": np.zeros(2), "n": 1}, {}), r"got a tuple without 'n'; env\.reset\(\) gives"),
        (DICT, {"y": np.zeros(2), "n": 1}, r"got a dict without 'x'$"),
        (DICT, {"x": np.zeros(2), "n": np.zeros((5, 2))}, r"got 'n' of shape \(5, 2\)$"),
        (DICT, {"x": np.zeros((5, 2)), "n": 1}, r"got a batch in which 'n' has no batch axis$"),
        (spaces.Box(-1, 1, (4,)), np.zeros(5), r"got one of shape \(5,\)$"),
    ],
)
def test_what_is_no_observation_of_the_environment_is_told(space: gymnasium.Space, observation: Any, told: str) -> None:
    with pytest.raises(ValueError, match=f"^expected an observation .*or a batch of them, {told}"):
        ObservationReader(space, None).is_single(observation)


@pytest.mark.parametrize(
    ("shape", "ours"),
    [
        ((84, 84), (1, 84, 84)),
        ((84, 84, 3), (3, 84, 84)),
        ((4, 84, 84), (4, 84, 84)),
        ((84, 84, 1), (1, 84, 84)),
        ((4, 84, 84, 3), (12, 84, 84)),
        ((4, 84, 84, 1), (4, 84, 84)),
        *(((84, 84, num), (num, 84, 84)) for num in (2, 6, 9, 12)),
        *(((num, 64, 96), (num, 64, 96)) for num in (2, 6, 9, 12)),
        ((2, 64, 64, 12), (24, 64, 64)),
        ((7, 7, 3), (3, 7, 7)),
        ((6, 7, 2), (2, 6, 7)),
        ((128,), (128,)),
    ],
)
def test_channels_of_images_come_first(shape: tuple[int, ...], ours: tuple[int, ...]) -> None:
    (entry,) = ObservationReader(spaces.Box(0, 255, shape, np.uint8), None).entries
    assert entry.space.shape == ours
    assert entry.read(np.zeros((2, *shape), np.uint8)).shape == (2, *ours)
    assert entry.space.dtype == (torch.float32 if len(shape) == 1 else torch.uint8)


@pytest.mark.parametrize(
    "shape", [(8, 8, 12), (4, 4, 12), (3, 3, 2), (4, 5, 3), (6, 7, 8), (5, 8, 7), (16, 16, 16), (2, 8, 8, 111)]
)
def test_a_layout_that_no_shape_tells_is_asked_for(shape: tuple[int, ...]) -> None:
    space = spaces.Box(0, 255, shape, np.uint8)
    with pytest.raises(UnknownChannels, match=rf"the shape {re.escape(str(shape))} of the image 'observation'"):
        ObservationReader(space, None)
    *stack, a, b, c = shape
    for channels, ours in {"first": (a, b, c), "last": (c, a, b)}.items():
        (entry,) = ObservationReader(space, channels).entries
        assert entry.space.shape == (ours[0] * (stack[0] if stack else 1), *ours[1:])


def test_the_key_for_the_layout_is_named_and_where_there_is_none_refused() -> None:
    with pytest.raises(ConfigError, match=r"^game\.observation\.channels: expected first or last, because the shape"):
        gym_game(id="tests.gym_probes:Mixed-v0")
    for channels in ("first", "last"):
        with pytest.raises(ConfigError, match=r"^game\.observation\.channels: expected null, because no image"):
            gym_game(observation={"normalize": None, "clip": None, "channels": channels})
    game = gym_game(id="tests.gym_probes:Pixels-v0", observation={"normalize": None, "clip": None, "channels": "first"})
    assert game.spaces["agent"]["observation"].shape == (12, 16, 3)


def test_the_frames_of_a_stack_become_channels_in_their_order() -> None:
    (entry,) = ObservationReader(spaces.Box(0, 255, (2, 6, 7, 3), np.uint8), None).entries
    frames = np.random.default_rng(0).integers(0, 255, (1, 2, 6, 7, 3), dtype=np.uint8)
    assert np.array_equal(entry.read(frames)[0, 3:], frames[0, 1].transpose(2, 0, 1))


def test_image_wrappers_stack_small_grey_frames() -> None:
    pytest.importorskip("cv2")
    wrappers = [
        {"name": "gymnasium.wrappers:GrayscaleObservation", "arguments": {"keep_dim": False}},
        {"name": "gymnasium.wrappers:ResizeObservation", "arguments": {"shape": [6, 8]}},
        {"name": "gymnasium.wrappers:FrameStackObservation", "arguments": {"stack_size": 3, "padding_type": "zero"}},
    ]
    game = gym_game(id="tests.gym_probes:Pixels-v0", wrappers=wrappers)
    assert game.spaces["agent"] == {"observation": Space((3, 6, 8), torch.uint8, False)}
    world = game.make_world(2, 0, True)
    for _ in range(8):
        outcome = world.step(torch.zeros(2, dtype=torch.int64), torch.zeros(2))
        frames = outcome.observation["observation"][:, :, 0, 0].long()
        age = frames[:, 2:]
        assert torch.equal(frames, (age - torch.tensor([2, 1, 0])).clamp(min=0))


# ---- actions -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("actions", "ours"),
    [
        ("matrix", Box((-2.0,) * 4, (3.0,) * 4)),
        ("bits", MultiDiscrete((2, 2, 2))),
        ("grid", MultiDiscrete((2, 3, 4, 5))),
    ],
)
def test_random_actions_of_any_space_are_legal_and_reach_the_environment(actions: str, ours: object) -> None:
    game = gym_game(id="tests.gym_probes:Acts-v0", arguments={"actions": actions})
    assert game.action_spaces["agent"] == ours
    world, policy = game.make_world(3, 0, True), make_script("random", game)
    assert world.legal.shape == (3, game.action_space.num_flags)
    for step in range(6):
        action = policy.act({}, world.legal, torch.arange(3) + 10 * step, {}).action
        outcome = world.step(action, torch.zeros(3))
        expected = action.sum(dim=1).float() * outcome.valid
        assert torch.allclose(outcome.reward, expected)


def test_random_numbers_are_uniform_within_the_bounds() -> None:
    game = gym_game(id="tests.gym_probes:Acts-v0", arguments={"actions": "matrix"})
    policy = make_script("random", game)
    drawn = policy.act({}, torch.ones(4000, 0, dtype=torch.bool), torch.arange(4000), {}).action
    assert drawn.dtype == torch.float32
    assert ((drawn >= -2) & (drawn <= 3)).all()
    counts = torch.histc(drawn, bins=10, min=-2, max=3) / drawn.numel()
    assert torch.allclose(counts, torch.full((10,), 0.1), atol=0.01)
    assert abs(float(torch.corrcoef(drawn.T)[0, 1])) < 0.05


def test_random_choices_are_legal_ones_alone() -> None:
    game = gym_game(id="tests.gym_probes:Acts-v0", arguments={"actions": "grid"})
    legal = torch.tensor([True, False, True, False, True, True, True, False, False] + [True] * 5).expand(500, -1)
    drawn = make_script("random", game).act({}, legal, torch.arange(500), {}).action
    assert [sorted(set(column.tolist())) for column in drawn.unbind(1)] == [[0], [0, 2], [0, 1], [0, 1, 2, 3, 4]]


def test_a_scripted_player_says_which_actions_it_cannot_choose() -> None:
    unbounded = gym_game(id="tests.gym_probes:Acts-v0", arguments={"actions": "unbounded"})
    with pytest.raises(ConfigError, match="expected actions with finite bounds for 'random'"):
        make_script("random", unbounded)
    with pytest.raises(ConfigError, match="expected Discrete actions for 'choose_first', got Box"):
        make_script("choose_first", unbounded)


def test_a_space_that_nobody_can_play_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"game.id: .*expected Discrete.* as actions, got Text"):
        gym_game(id="tests.gym_probes:Acts-v0", arguments={"actions": "text"})


# ---- the environments of the extras ------------------------------------------------------------------------


def usual(env_id: str) -> dict[str, object]:
    """The usual arguments as a config writes them."""
    known = known_arguments(env_id, vector=False)
    assert known is not None

    def written(value: object) -> object:
        if isinstance(value, tuple):
            return [None if abs(bound) == float("inf") else bound for bound in value]
        return value

    return {name: written(argument.usual) for name, argument in known.items()}


ATARI = [
    {
        "name": "gymnasium.wrappers:AtariPreprocessing",
        "arguments": {
            "noop_max": 30,
            "frame_skip": 4,
            "screen_size": 84,
            "terminal_on_life_loss": False,
            "grayscale_obs": True,
            "grayscale_newaxis": False,
            "scale_obs": False,
        },
    },
    {"name": "gymnasium.wrappers:FrameStackObservation", "arguments": {"stack_size": 4, "padding_type": "reset"}},
]


@pytest.mark.parametrize(
    ("module", "env_id", "changes", "shape", "actions"),
    [
        ("Box2D", "LunarLander-v3", {}, (8,), Discrete(4)),
        ("mujoco", "HalfCheetah-v5", {}, (17,), Box((-1.0,) * 6, (1.0,) * 6)),
        ("mujoco", "Hopper-v5", {}, (11,), Box((-1.0,) * 3, (1.0,) * 3)),
        ("ale_py", "ALE/Pong-v5", {"frameskip": 1, "repeat_action_probability": 0.0}, (4, 84, 84), Discrete(6)),
        ("ale_py", "PongNoFrameskip-v4", {}, (4, 84, 84), Discrete(6)),
    ],
)
def test_environments_of_the_extras_are_stepped_and_replayed(
    module: str, env_id: str, changes: dict[str, object], shape: tuple[int, ...], actions: object
) -> None:
    pytest.importorskip(module)
    wrappers = ATARI if module == "ale_py" else []
    data = gym_data(id=env_id, arguments=usual(env_id) | changes, wrappers=wrappers)
    game = GymnasiumGame(check(data, GymnasiumConfig), CPU)
    assert game.spaces["agent"]["observation"].shape == shape
    assert game.action_spaces["agent"] == actions
    world, policy = game.make_world(2, 3, True), make_script("random", game)

    def play(world, start):  # type: ignore[no-untyped-def]
        keys = [torch.arange(2) + 100 * step for step in range(start, start + 15)]
        return [world.step(policy.act({}, world.legal, key, {}).action, key) for key in keys]

    play(world, 0)
    going_on = game.make_world(2, 3, True)
    going_on.load_state_dict(world.state_dict())
    for mine, theirs in zip(play(world, 15), play(going_on, 15), strict=True):
        assert torch.equal(mine.observation["observation"], theirs.observation["observation"])
        assert torch.equal(mine.reward, theirs.reward)
    assert going_on.exact
    game.close()


def test_mujoco_prints_nothing_of_its_own_files_and_writes_none(in_tmp_path: Path, capfd: Any) -> None:
    pytest.importorskip("mujoco")
    gym_game(id="HalfCheetah-v5", arguments=usual("HalfCheetah-v5"))
    assert capfd.readouterr() == ("", "")
    assert list(in_tmp_path.iterdir()) == []


def test_a_film_of_mujoco_needs_no_screen(in_tmp_path: Path) -> None:
    """Where the machine has EGL or a screen; elsewhere it is told."""
    pytest.importorskip("mujoco")
    pytest.importorskip("imageio_ffmpeg")
    game = gym_game(id="HalfCheetah-v5", arguments=usual("HalfCheetah-v5"))
    film = in_tmp_path / "cheetah.mp4"
    try:
        returns = film_episodes(game, make_script("random", game), 2, 3, 0, film)
    except ConfigError as error:
        assert "cannot be rendered here" in str(error)  # noqa: PT017
    else:
        assert len(returns) == 2
        assert film.stat().st_size > 1000


def test_a_choice_of_many_needs_memory_for_its_rows_alone() -> None:
    reader = ObservationReader(spaces.Discrete(200_000, start=-5), None)
    hot = reader.read(np.array([-5, 0, 199_994]))["observation"]
    assert (hot.shape, hot.dtype) == ((3, 200_000), np.float32)
    assert hot.argmax(axis=1).tolist() == [0, 5, 199_999]
    assert hot.sum(axis=1).tolist() == [1.0, 1.0, 1.0]
