"""Covers palestra.buffers.packed."""

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from torch import Tensor

from palestra.buffers.replay import ReplayBuffer, UniformReplayConfig
from palestra.config import ConfigError
from palestra.run.replay_file import load_replay, save_replay

CPU = torch.device("cpu")
Batches = list[list[bool]]


def make_buffer(capacity: int, seed: int = 0, stream: str = "replay") -> ReplayBuffer:
    return ReplayBuffer(
        UniformReplayConfig(name="uniform", capacity=capacity, layout="whole", scratch_folder=None), CPU, seed, stream
    )


def rows_of(numbers: list[int]) -> dict[str, Tensor]:
    """Rows with a dict observation, each entry of another type and shape, all derived from one number."""
    number = torch.tensor(numbers, dtype=torch.int64)
    return {
        "number": number,
        "observation.points": number.float().view(-1, 1, 1).expand(-1, 2, 3) + 0.5,
        "observation.flags": (number % 2 == 0).unsqueeze(1).expand(-1, 4),
        "reward": -number.double(),
    }


def numbers_of(rows: dict[str, Tensor]) -> list[int]:
    """The inverse of rows_of; fails if the entries of a row do not belong together."""
    numbers: list[int] = rows["number"].tolist()
    for name, expected in rows_of(numbers).items():
        assert torch.equal(rows[name], expected), name
        assert rows[name].dtype == expected.dtype
    return numbers


class ListModel:
    """The stream of rows as a plain list."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.stream: list[int] = []
        self.next_number = 0

    def batch(self, valid: list[bool]) -> list[int]:
        numbers = list(range(self.next_number, self.next_number + len(valid)))
        self.next_number += len(valid)
        self.stream += [number for number, is_valid in zip(numbers, valid, strict=True) if is_valid]
        return numbers

    @property
    def held(self) -> list[int]:
        return self.stream[-self.capacity :]


def add(buffer: ReplayBuffer, numbers: list[int], valid: list[bool], on_gpu_path: bool) -> None:
    """on_gpu_path: the way that a GPU takes, its tensors being on the CPU nevertheless."""
    buffer._on_cpu = not on_gpu_path
    buffer.add(rows_of(numbers), torch.tensor(valid, dtype=torch.bool))


@settings(max_examples=150)
@given(data=st.data(), capacity=st.integers(1, 9), on_gpu_path=st.booleans())
def test_buffer_holds_what_a_plain_list_holds(data: st.DataObject, capacity: int, on_gpu_path: bool) -> None:
    buffer, model = make_buffer(capacity), ListModel(capacity)
    for _ in range(data.draw(st.integers(1, 8))):
        valid = data.draw(st.lists(st.booleans(), max_size=capacity))
        add(buffer, model.batch(valid), valid, on_gpu_path)
        total = len(model.stream)
        assert (buffer.num_added, len(buffer)) == (total, len(model.held))
        assert numbers_of(buffer.rows(total - len(model.held), total)) == model.held
        if model.held:
            assert set(numbers_of(buffer.sample(20))) <= set(model.held)
        else:
            with pytest.raises(ValueError, match="empty"):
                buffer.sample(1)


@settings(max_examples=60)
@given(batches=st.lists(st.lists(st.booleans(), max_size=5), min_size=1, max_size=8), cut=st.integers(0, 8))
def test_a_restored_buffer_goes_on_with_the_same_samples(batches: Batches, cut: int) -> None:
    buffer, model = make_buffer(5), ListModel(5)

    def go_on(buffer: ReplayBuffer, model: ListModel, batches: Batches) -> list[list[int]]:
        samples = []
        for valid in batches:
            add(buffer, model.batch(valid), valid, False)
            samples += [numbers_of(buffer.sample(7))] if model.stream else []
        return samples

    go_on(buffer, model, batches[:cut])
    total, held = len(model.stream), len(model.held)
    restored = make_buffer(5)
    for number in range(total - held, total):  # one row at a time: segments may be cut anywhere
        restored.load_rows(number, buffer.packed_rows(number, number + 1))
    restored.load_state_dict(copy.deepcopy(buffer.state_dict()))
    assert go_on(restored, copy.deepcopy(model), batches[cut:]) == go_on(buffer, model, batches[cut:])


def test_a_gpu_draws_the_rows_that_a_cpu_draws() -> None:
    samples = []
    for on_gpu_path in (False, True):
        buffer = make_buffer(30)
        add(buffer, list(range(25)), [True] * 20 + [False] * 5, on_gpu_path)
        samples.append([numbers_of(buffer.sample(9)) for _ in range(3)])
    assert samples[0] == samples[1]


def test_rows_are_drawn_uniformly() -> None:
    buffer = make_buffer(30)
    add(buffer, list(range(30)), [True] * 30, False)
    add(buffer, list(range(30, 47)), [True] * 17, False)
    drawn = torch.cat([buffer.sample(500)["number"].clone() for _ in range(20)])
    counts = torch.bincount(drawn, minlength=47)
    assert int(counts[:17].sum()) == 0
    assert chisquare(counts[17:]).pvalue > 1e-4


def test_a_buffer_that_is_not_full_yet_draws_from_its_rows_alone() -> None:
    buffer = make_buffer(1000)
    add(buffer, [5, 6, 7], [True, False, True], False)
    assert set(numbers_of(buffer.sample(200))) == {5, 7}


def test_samples_depend_on_seed_stream_and_number_of_the_draw_alone() -> None:
    def samples(seed: int, stream: str) -> list[list[int]]:
        buffer = make_buffer(100, seed, stream)
        add(buffer, list(range(100)), [True] * 100, False)
        return [numbers_of(buffer.sample(10)) for _ in range(3)]

    first = samples(0, "a")
    assert first == samples(0, "a")
    assert len({str(sample) for sample in first + samples(1, "a") + samples(0, "b")}) == 9


def test_a_batch_larger_than_the_capacity_is_refused() -> None:
    with pytest.raises(ValueError, match="expected a batch of at most 3 rows, the buffer's capacity, got 4"):
        add(make_buffer(3), [0, 1, 2, 3], [True] * 4, False)


@pytest.mark.parametrize(("start", "stop"), [(1, 3), (4, 8), (5, 4)])
def test_rows_that_are_not_held_are_refused(start: int, stop: int) -> None:
    buffer = make_buffer(5)
    add(buffer, [0, 1, 2, 3], [True] * 4, False)
    add(buffer, [4, 5, 6], [True] * 3, False)
    with pytest.raises(IndexError, match="expected rows among those held, 2 to 7, got"):
        buffer.rows(start, stop)


def test_the_buffer_keeps_copies() -> None:
    buffer = make_buffer(3)
    rows = rows_of([1, 2])
    buffer.add(rows, torch.tensor([True, True]))
    rows["number"].fill_(9)
    sample = buffer.sample(50)
    sample["reward"].fill_(9.0)
    assert set(numbers_of(buffer.sample(50))) == {1, 2}


def test_a_capacity_alone_makes_a_buffer_of_whole_rows_in_memory() -> None:
    config = UniformReplayConfig(name="uniform", capacity=8, layout="whole", scratch_folder=None)
    buffers = ReplayBuffer(8), ReplayBuffer(config, CPU, 0, "replay")
    for buffer in buffers:
        buffer.add({"x": torch.arange(8)}, torch.ones(8, dtype=torch.bool))
    one, other = (buffer.sample(64)["x"] for buffer in buffers)
    assert torch.equal(one, other)
    assert sorted(set(one.tolist())) == list(range(8))


def test_the_loop_of_the_document_draws_what_it_added() -> None:
    page = (Path(__file__).parents[2] / "docs" / "replay.md").read_text()
    [code] = [block for block in re.findall(r"```python\n(.*?)```", page, re.S) if "palestra.ReplayBuffer(" in block]
    found: dict[str, Any] = {}
    exec(code, found)
    rows, batch = found["rows"], found["batch"]
    assert {name: len(value) for name, value in batch.items()} == {"observation": 32, "action": 32, "reward": 32}
    for observation, reward in zip(batch["observation"], batch["reward"], strict=True):
        [place] = (rows["reward"] == reward).nonzero().flatten()[:1].tolist()
        assert torch.equal(rows["observation"][place], observation)


OBSERVATION, ACTION = torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64)


@pytest.mark.parametrize("is_loaded", [False, True])
@pytest.mark.parametrize(
    "other",
    [
        {"observation": torch.zeros(2, 1), "action": ACTION},
        {"observation": torch.zeros(2, 5), "action": ACTION},
        {"observation": OBSERVATION.double(), "action": ACTION},
        {"observation": OBSERVATION, "action": torch.full((2,), 0.7)},
        {"observation": OBSERVATION, "action": ACTION, "legal": torch.ones(2, 4, dtype=torch.bool)},
        {"observation": OBSERVATION},
    ],
)
def test_rows_of_another_kind_are_refused(other: dict[str, Tensor], is_loaded: bool, tmp_path: Path) -> None:
    """Also where the buffer's rows were saved by another one."""
    buffer = ReplayBuffer(8)
    buffer.add({"observation": OBSERVATION[:1], "action": ACTION[:1]}, torch.ones(1, dtype=torch.bool))
    if is_loaded:
        save_replay(buffer, tmp_path / "rows")
        buffer = ReplayBuffer(8)
        load_replay(buffer, tmp_path / "rows")
    with pytest.raises(ValueError, match=r"^expected rows as the replay buffer holds them, {'action': 'torch\.int64"):
        buffer.add(other, torch.ones(2, dtype=torch.bool))
    buffer.add({"observation": OBSERVATION, "action": ACTION}, torch.ones(2, dtype=torch.bool))
    assert len(buffer) == 3


def test_saved_rows_of_another_kind_are_refused_by_a_buffer_with_a_layout(tmp_path: Path) -> None:
    """The buffer was given rows, none of them valid: it knows what it will hold, and is empty."""
    saved, buffer = ReplayBuffer(8), ReplayBuffer(8)
    saved.add({"observation": OBSERVATION}, torch.ones(2, dtype=torch.bool))
    buffer.add({"observation": OBSERVATION, "action": ACTION}, torch.zeros(2, dtype=torch.bool))
    save_replay(saved, tmp_path / "rows")
    with pytest.raises(ValueError, match=r"^expected rows as the replay buffer holds them, {'action': 'torch\.int64"):
        load_replay(buffer, tmp_path / "rows")
    assert buffer.is_empty


def test_a_capacity_that_holds_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="capacity: expected an integer >= 1, got 0"):
        ReplayBuffer(0)
