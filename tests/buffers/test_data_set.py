from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

from palestra.buffers.data_set import DataSetReplay, DataSetReplayConfig
from palestra.buffers.replay import ReplayBuffer, UniformReplayConfig
from palestra.config import ConfigError, check

CPU = torch.device("cpu")
COLUMNS = {
    "observation": {"points": ["points"]},
    "action": ["action"],
    "reward": "reward",
    "terminated": None,
    "truncated": None,
    "episode": None,
    "next_observation": None,
    "legal": None,
    "next_legal": None,
    "extras": {},
}
OWN = 10_000  # numbers of own rows begin here


def rows_of(first: int, num: int) -> dict[str, Tensor]:
    """Rows with an image, vectors and numbers, all derived from the row's number."""
    number = torch.arange(first, first + num)
    images = (number.view(-1, 1, 1, 1) + torch.arange(3).view(1, 3, 1, 1)).expand(-1, -1, 2, 2) % 256
    return {
        "observation.frames": images.to(torch.uint8).contiguous(),
        "observation.points": number.float().view(-1, 1).expand(-1, 2) + 0.5,
        "action": number % 3,
        "reward": number.float(),
        "next_legal": torch.ones(num, 3, dtype=torch.bool),
    }


def uniform(rows: dict[str, Tensor], capacity: int, layout: str = "whole", folder: Path | None = None) -> ReplayBuffer:
    scratch = None if folder is None else str(folder)
    keys = {"name": "uniform", "capacity": capacity, "layout": layout, "scratch_folder": scratch}
    buffer = ReplayBuffer(check(keys, UniformReplayConfig), CPU, 3, "replay")
    buffer.add(rows, torch.ones(len(rows["reward"]), dtype=torch.bool))
    return buffer


def data_set(share: float, layout: str = "whole", folder: Path | None = None, capacity: int = 40) -> DataSetReplay:
    """A buffer with 700 rows of a file, in more than one piece."""
    keys: dict[str, Any] = {
        "name": "data_set",
        "capacity": capacity,
        "layout": layout,
        "scratch_folder": None if folder is None else str(folder),
        "file": "play.npz",
        "columns": COLUMNS,
        "held_out": None,
        "share_of_data": share,
    }
    buffer = DataSetReplay(check(keys, DataSetReplayConfig), CPU, 3, "replay")
    buffer.take(rows_of(0, 700), None)
    return buffer


def require_equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert {*one} == {*other}
    assert all(torch.equal(value, other[name]) for name, value in one.items())


@pytest.mark.parametrize("layout", ["whole", "frames_once"])
@pytest.mark.parametrize("is_in_folder", [False, True])
def test_the_file_alone_is_drawn_as_by_a_uniform_buffer_with_its_rows(
    layout: str, is_in_folder: bool, tmp_path: Path
) -> None:
    folder = tmp_path if is_in_folder else None
    plain = uniform(rows_of(0, 700), 700, layout, folder)
    alone, played = data_set(0.5, layout, folder), data_set(1.0, layout, folder)
    played.add(rows_of(OWN, 8), torch.ones(8, dtype=torch.bool))
    for size in (5, 64, 5):
        drawn = plain.sample(size)
        require_equal(alone.sample(size), drawn)  # as long as there are no own rows
        require_equal(played.sample(size), drawn)
    assert alone.passes == played.passes == 74 / 700
    with pytest.raises(ValueError, match="rows of the file before sampling, got none"):
        DataSetReplay(alone.config, CPU, 3, "replay").sample(5)


def test_own_rows_alone_are_drawn_as_by_a_uniform_buffer() -> None:
    buffer, plain = data_set(0.0), uniform(rows_of(OWN, 30), 40)
    buffer.add(rows_of(OWN, 30), torch.ones(30, dtype=torch.bool))
    for first in (OWN + 30, OWN + 60):  # the ring goes round
        require_equal(buffer.sample(16), plain.sample(16))
        for each in (buffer, plain):
            each.add(rows_of(first, 30), torch.arange(30) % 3 > 0)
    assert (len(buffer), buffer.num_added, buffer.passes) == (40, 70, 0.0)


@pytest.mark.parametrize("layout", ["whole", "frames_once"])
def test_a_batch_has_its_share_of_the_data_and_every_row_of_a_memory_is_equally_likely(layout: str) -> None:
    buffer = data_set(0.3, layout)
    extras = {"extras.log_prob": torch.zeros(55), "legal": torch.ones(55, 3, dtype=torch.bool)}
    buffer.add(
        {**rows_of(OWN, 40), **{name: value[:40] for name, value in extras.items()}}, torch.ones(40, dtype=torch.bool)
    )
    counts = torch.zeros(740)
    for _ in range(1000):
        drawn = buffer.sample(48)
        numbers = drawn["reward"].long()
        is_own = numbers >= OWN
        assert is_own.tolist() == [False] * 14 + [True] * 34
        for name, value in rows_of(0, 1).items():
            expected = torch.cat([rows_of(int(number), 1)[name] for number in numbers[12:16]])
            assert torch.equal(drawn[name][12:16], expected), name
            assert drawn[name].dtype == value.dtype
        counts += torch.bincount(torch.where(is_own, numbers - OWN + 700, numbers), minlength=740)
    assert buffer.passes == 14_000 / 700
    assert chisquare(counts[:700]).pvalue > 1e-4
    assert chisquare(counts[700:]).pvalue > 1e-4
    with pytest.raises(ConfigError, match=r"replay_buffer\.columns\.observation\.frames: expected no such key"):
        buffer.add({name: value for name, value in rows_of(OWN, 4).items() if "frames" not in name}, torch.ones(4) > 0)
    other = {name: value.double() if name == "reward" else value for name, value in rows_of(OWN, 4).items()}
    with pytest.raises(
        ConfigError, match=r"replay_buffer\.columns\.reward: expected torch.float64 \(\), .*, got torch.float32"
    ):
        data_set(0.5).add(other, torch.ones(4, dtype=torch.bool))


def test_a_restored_buffer_draws_on_and_holds_its_own_rows() -> None:
    buffer = data_set(0.5)
    buffer.add(rows_of(OWN, 33), torch.ones(33, dtype=torch.bool))
    buffer.sample(9)
    after = data_set(0.5)
    after.load_rows(0, buffer.packed_rows(0, 33))
    after.load_state_dict(buffer.state_dict())
    require_equal(after.sample(9), buffer.sample(9))
    assert after.passes == buffer.passes == 8 / 700  # round(4.5) is 4
