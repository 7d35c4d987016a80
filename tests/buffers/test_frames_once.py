"""A buffer that stores frames once gives what a buffer of whole rows gives, to the bit, whatever is added.

Covers palestra.buffers.frames, palestra.buffers.memory.
"""

import copy
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from palestra.buffers.frames import FrameStore
from palestra.buffers.memory import NoRoom
from palestra.buffers.prioritized import PrioritizedReplay, PrioritizedReplayConfig
from palestra.buffers.replay import ReplayBuffer, UniformReplayConfig
from palestra.config import ConfigError
from palestra.games.gymnasium import GymnasiumGame
from palestra.games.policy import Decision
from palestra.rollouts.n_step import NStepConfig, OneStepConfig
from palestra.rollouts.solo import SoloGame
from palestra.rollouts.transitions import Transitions
from tests.games.gym_worlds import MODES, gym_game

CPU = torch.device("cpu")
Rows = dict[str, Tensor]
SIZES = {"even": (4, 8), "odd": (3, 5), "half": (2, 3)}  # of 8, 1 and 2 bytes' multiple


def num_held(store: FrameStore) -> int:
    """How many frames it holds."""
    return int(np.count_nonzero(store._num_places))


def make_buffer(name: str, capacity: int, layout: str, folder: Path | None = None) -> ReplayBuffer:
    where = {"capacity": capacity, "layout": layout, "scratch_folder": None if folder is None else str(folder)}
    if name == "uniform":
        return ReplayBuffer(UniformReplayConfig.model_validate({"name": name} | where), CPU, 0, "replay")
    rest = {"alpha": 0.6, "beta": {"name": "constant", "value": 0.4}, "eps": 1e-3}
    return PrioritizedReplay(PrioritizedReplayConfig.model_validate({"name": name} | where | rest), CPU, 0, "replay")


def assert_same_rows(rows: Rows, others: Rows) -> None:
    assert rows.keys() == others.keys()
    for name, value in rows.items():
        assert value.dtype == others[name].dtype
        assert torch.equal(value, others[name]), name


def assert_same_draws(one: ReplayBuffer, other: ReplayBuffer, num: int) -> None:
    for step in range(num):
        batch_size = (5, 3)[step % 2]
        assert_same_rows(one.sample(batch_size), other.sample(batch_size))
        if isinstance(one, PrioritizedReplay) and isinstance(other, PrioritizedReplay):
            assert torch.equal(one.importance(0), other.importance(0))
            td_error = torch.randn(batch_size, generator=torch.Generator().manual_seed(step))
            one.update_priorities(td_error)
            other.update_priorities(td_error)


def held(buffer: ReplayBuffer) -> tuple[int, int]:
    return max(0, buffer.num_added - buffer.capacity), buffer.num_added


def num_different_frames(rows: Rows, size: tuple[int, int]) -> int:
    images = [value.flatten(0, 1) for value in rows.values() if value.dim() == 4 and value.shape[2:] == size]
    return len({plane.numpy().tobytes() for plane in torch.cat(images)})


def restored(buffer: ReplayBuffer, into: ReplayBuffer, cut: int) -> ReplayBuffer:
    """Its rows, by way of storage and in two parts, and its state."""
    first, last = held(buffer)
    middle = min(first + cut, last)
    for start, stop in ((first, middle), (middle, last)):
        if start < stop:
            into.load_rows(start, dict(reversed(buffer.packed_rows(start, stop).items())))  # a file has its own order
    into.load_state_dict(copy.deepcopy(buffer.state_dict()))
    return into


# ---- any rows ----------------------------------------------------------------------------------------


@st.composite
def streams(draw: st.DrawFn) -> tuple[int, list[tuple[Rows, Tensor]]]:
    """A capacity, and batches whose images are made of few or of many different frames."""
    capacity = draw(st.integers(1, 9))
    num_frames = draw(st.sampled_from([1, 3, 200]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1000)))
    films = {
        name: torch.randint(0, 256, (num_frames, *size), dtype=torch.uint8, generator=generator)
        for name, size in SIZES.items()
    }
    batches = []
    for _ in range(draw(st.integers(1, 7))):
        valid = torch.tensor(draw(st.lists(st.booleans(), max_size=capacity)), dtype=torch.bool)

        def stack(name: str, channels: int, num: int) -> Tensor:
            return films[name][torch.randint(0, num_frames, (num, channels), generator=generator)]

        num = len(valid)
        rows = {
            "observation.camera": stack("even", 4, num),
            "observation.map": stack("odd", 1, num),
            "observation.mirror": stack("even", 2, num),
            "next_observation.camera": stack("even", 4, num),
            "observation.speed": torch.randn(num, 3, generator=generator),
            "terminated": torch.rand(num, generator=generator) < 0.5,
            "extras.bytes": stack("half", 1, num).flatten(1),
        }
        batches.append((rows, valid))
    return capacity, batches


@pytest.mark.parametrize("name", ["uniform", "prioritized"])
@settings(max_examples=60)
@given(stream=streams(), cut=st.integers(0, 9), on_disk=st.booleans())
def test_every_batch_is_that_of_a_buffer_of_whole_rows(
    name: str,
    stream: tuple[int, list[tuple[Rows, Tensor]]],
    cut: int,
    on_disk: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    capacity, batches = stream
    folder = tmp_path_factory.getbasetemp() if on_disk else None
    plain, once = make_buffer(name, capacity, "whole"), make_buffer(name, capacity, "frames_once", folder)
    for rows, valid in batches:
        plain.add(rows, valid)
        once.add(rows, valid)
        if plain.is_empty:
            continue
        assert_same_draws(plain, once, 2)
        assert_same_rows(plain.rows(*held(plain)), once.rows(*held(once)))
        assert_same_rows(plain.packed_rows(*held(plain)), once.packed_rows(*held(once)))
        for size, store in once._planes.stores.items():  # type: ignore[union-attr]
            assert num_held(store) == num_different_frames(plain.rows(*held(plain)), size)
    if not plain.is_empty:
        into = make_buffer(name, capacity, "frames_once"), make_buffer(name, capacity, "whole", folder)
        assert_same_draws(restored(once, into[0], cut), restored(once, into[1], cut), 1)
        for buffer in into:  # as files hold them
            assert_same_rows(plain.packed_rows(*held(plain)), buffer.packed_rows(*held(buffer)))
        rows, valid = batches[0]
        for buffer in (plain, once, *into):
            buffer.num_samples = 50
            buffer.add(rows, valid)
        assert_same_rows(plain.rows(*held(plain)), into[0].rows(*held(once)))
        assert_same_draws(into[0], into[1], 2)


def test_rows_that_are_loaded_over_others_let_their_frames_go() -> None:
    def rows_of(shade: int) -> Rows:
        return {
            "observation.camera": torch.arange(shade, shade + 4, dtype=torch.uint8).view(4, 1, 1, 1).expand(4, 1, 2, 3)
        }

    buffer = make_buffer("uniform", 4, "frames_once")
    buffer.add(rows_of(0), torch.ones(4, dtype=torch.bool))
    other = make_buffer("uniform", 4, "whole")
    other.add(rows_of(100), torch.ones(4, dtype=torch.bool))
    buffer.load_rows(0, other.packed_rows(0, 4))
    assert_same_rows(buffer.rows(0, 4), rows_of(100))
    (store,) = buffer._planes.stores.values()  # type: ignore[union-attr]
    assert num_held(store) == 4


@settings(max_examples=200)
@given(data=st.data())
def test_a_store_holds_a_frame_as_long_as_a_place_shows_it(data: st.DataObject) -> None:
    store, model = FrameStore(12, 3, None), dict[int, bytes]()
    places: list[int] = []
    for _ in range(data.draw(st.integers(1, 25))):
        if places and data.draw(st.booleans()):
            slot = places.pop(data.draw(st.integers(0, len(places) - 1)))
            store.release(torch.tensor([0, slot], dtype=torch.int32))
            if slot not in places:
                del model[slot]
        elif len(places) < 12:
            content = bytes(data.draw(st.lists(st.sampled_from([0, 1, 255]), min_size=3, max_size=3)))
            frames = torch.tensor([list(content)], dtype=torch.uint8)
            slot = int(store.hold(frames, torch.ones(1, dtype=torch.bool).numpy()))
            assert model.setdefault(slot, content) == content
            places.append(slot)
        assert len(set(model.values())) == len(model) == num_held(store)
        assert all(store.frames[slot].numpy().tobytes() == content for slot, content in model.items())


# ---- stacks of frames --------------------------------------------------------------------------------


class Wanderer:
    """Acts by chance."""

    observes = "observation"

    def act(self, view: Any, legal: Tensor, keys: Tensor, memory: Any) -> Decision:
        return Decision((keys >> 20) % 3, {}, memory)


def film(mode: str, padding: str, num_worlds: int) -> Callable[[int], Transitions]:
    """Roll-outs of stacks of four frames, of episodes that terminate and others that are cut off."""
    stacked = {
        "name": "gymnasium.wrappers:FrameStackObservation",
        "arguments": {"stack_size": 4, "padding_type": padding},
    }
    limit = {"name": "gymnasium.wrappers:TimeLimit", "arguments": {"max_episode_steps": 7}}
    game: GymnasiumGame = gym_game(autoreset=mode, id="tests.gym_probes:Noise-v0", wrappers=[limit, stacked])
    solo = SoloGame(game, {"agent": Wanderer()}, lambda num, key, first, keys: game.make_world(num, key, True))  # type: ignore[dict-item]
    worlds = solo.new_worlds(num_worlds, 0, "film")
    return lambda num_rounds: solo.collect(worlds, ("agent",), num_rounds)["agent"]


@pytest.mark.parametrize("padding", ["reset", "zero"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("num_steps", [1, 3])
def test_stacks_of_an_environment_come_back_to_the_bit(mode: str, padding: str, num_steps: int) -> None:
    play = film(mode, padding, 3)
    config = (
        OneStepConfig(name="one_step") if num_steps == 1 else NStepConfig.model_validate({"name": "n_step", "steps": 3})
    )
    produce = config.build(0.9, 5, ("agent",), CPU)
    plain, once = make_buffer("uniform", 100, "whole"), make_buffer("uniform", 100, "frames_once")
    ends = torch.zeros(2, dtype=torch.int64)
    for _ in range(20):
        experience = produce(play(5))
        for buffer in (plain, once):
            buffer.add(experience.rows(), experience.valid)
        valid = experience.valid
        ends += torch.stack([experience.terminated[valid].sum(), experience.truncated[valid].sum()])
        assert_same_draws(plain, once, 2)
        assert_same_rows(plain.rows(*held(plain)), once.rows(*held(once)))
    assert (ends > 0).all()
    assert held(plain)[0] > 0
    store = once._planes.stores[6, 8]  # type: ignore[union-attr]
    num_episodes = int(ends.sum()) + 3
    assert num_held(store) <= 100 + 8 * num_episodes + 3 * 4  # a row's own, those around ends, those of the first rows


def test_rows_that_do_not_fit_are_refused() -> None:
    """They come from files, and files may be forged."""
    buffer = make_buffer("uniform", 4, "frames_once")
    rows = {"observation.camera": torch.zeros(3, 2, 6, 8, dtype=torch.uint8), "reward": torch.zeros(3)}
    buffer.add(rows, torch.ones(3, dtype=torch.bool))
    packed = buffer.packed_rows(0, 3)
    with pytest.raises(ValueError, match="expected at most 4 rows, the buffer's capacity, got 5"):
        buffer.load_rows(0, {name: value[[0]].expand(5, *value.shape[1:]) for name, value in packed.items()})
    with pytest.raises(ValueError, match=r"expected frames uint8 \(K, 48\), got torch.uint8 \(1, 63\)"):
        buffer.load_rows(0, packed | {"#6x8": torch.zeros(1, 7, 9, dtype=torch.uint8)})
    with pytest.raises(IndexError):
        buffer.load_rows(0, packed | {"#6x8.observation.camera": packed["#6x8.observation.camera"] + 1})


# ---- files -------------------------------------------------------------------------------------------


def test_scratch_files_have_no_name(tmp_path: Path) -> None:
    for layout in ("whole", "frames_once"):
        buffer = make_buffer("uniform", 10, layout, tmp_path)
        rows = {"observation.camera": torch.randint(0, 256, (10, 4, 6, 8), dtype=torch.uint8)}
        buffer.add(rows, torch.ones(10, dtype=torch.bool))
        assert_same_rows(buffer.rows(0, 10), rows)
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("layout", ["whole", "frames_once"])
def test_a_full_disk_is_an_error_that_names_the_folder(
    layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    buffer = make_buffer("uniform", 10, layout, tmp_path)
    rows = {"observation.camera": torch.zeros(2, 4, 6, 8, dtype=torch.uint8)}
    with pytest.raises(NoRoom, match=r"no room in replay_buffer.scratch_folder /.* GiB of the replay buffer"):
        buffer.add(rows, torch.ones(2, dtype=torch.bool))


def test_samples_go_to_the_device_though_rows_stay() -> None:
    config = UniformReplayConfig(name="uniform", capacity=4, layout="frames_once", scratch_folder=None)
    buffer = ReplayBuffer(config, torch.device("meta"), 0, "replay")
    rows = {"observation.camera": torch.ones(2, 4, 6, 8, dtype=torch.uint8), "reward": torch.ones(2)}
    buffer.add(rows, torch.ones(2, dtype=torch.bool))
    sample = buffer.sample(3)
    assert {(value.device.type, len(value)) for value in sample.values()} == {("meta", 3)}
    assert_same_rows(buffer.rows(0, 2), rows)


@pytest.mark.parametrize("capacity", [10**12, 2**63 - 1])
@pytest.mark.parametrize("layout", ["whole", "frames_once"])
def test_more_rows_than_any_memory_holds_are_an_error_that_says_how_much(layout: str, capacity: int) -> None:
    buffer = make_buffer("uniform", capacity, layout, None)
    rows = {"observation.camera": torch.zeros(2, 4, 64, 64, dtype=torch.uint8)}
    with pytest.raises(NoRoom, match=r"no room in memory for .* GiB of the replay buffer: a smaller replay_buffer.cap"):
        buffer.add(rows, torch.ones(2, dtype=torch.bool))


@pytest.mark.parametrize("capacity", [10**14, 2**63 - 1])
def test_more_priorities_than_any_memory_holds_are_an_error_that_names_the_key(capacity: int) -> None:
    with pytest.raises(
        ConfigError,
        match=r"capacity: there is no room in memory for .* GiB of the replay buffer: a smaller replay_buffer.cap",
    ):
        make_buffer("prioritized", capacity, "whole", None)
