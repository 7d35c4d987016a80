"""The rows of a replay buffer, saved and loaded alone."""

from pathlib import Path
from typing import Any

import pytest
import torch
from combinations import PRIORITIZED
from conftest import MakeConfig
from torch import Tensor

from palestra.buffers.prioritized import PrioritizedReplay
from palestra.buffers.replay import ReplayBuffer
from palestra.kinds.games.trainer import Trainer
from palestra.run.replay_file import load_replay, save_replay
from palestra.storage.disk import RunFolderError
from palestra.storage.stored_files import DamagedError


def buffer_of(trainer: Trainer) -> ReplayBuffer:
    buffer: ReplayBuffer = trainer.host_replay_buffer
    return buffer


def draws(buffer: ReplayBuffer) -> list[dict[str, Tensor]]:
    return [{name: value.clone() for name, value in buffer.sample(8).items()} for _ in range(3)]


@pytest.mark.parametrize("kind", ["uniform", "prioritized"])
def test_a_buffer_that_was_loaded_draws_what_the_saved_one_draws(
    kind: str, make_config: MakeConfig, tmp_path: Path
) -> None:
    changes: dict[str, Any] = {"players.host.algorithm.replay_buffer": PRIORITIZED} if kind == "prioritized" else {}
    trainer = Trainer(make_config(changes), run=tmp_path / "run")
    trainer.fit()
    save_replay(buffer_of(trainer), tmp_path / "rows")
    loaded = buffer_of(Trainer(make_config(changes)))
    load_replay(loaded, tmp_path / "rows")
    assert len(loaded) == len(buffer_of(trainer)) > 8
    assert isinstance(loaded, PrioritizedReplay) == (kind == "prioritized")
    for one, two in zip(draws(buffer_of(trainer)), draws(loaded), strict=True):
        assert one.keys() == two.keys()
        assert all(torch.equal(one[name], two[name]) for name in one)


def test_what_cannot_be_saved_or_loaded_is_told(make_config: MakeConfig, tmp_path: Path) -> None:
    trainer = Trainer(make_config(), run=tmp_path / "run")
    trainer.fit()
    buffer, rows = buffer_of(trainer), tmp_path / "rows"
    save_replay(buffer, rows)
    with pytest.raises(RunFolderError, match=r"rows exists already; expected a folder that does not$"):
        save_replay(buffer, rows)
    with pytest.raises(ValueError, match=r"^expected an empty replay buffer, got one with \d+ rows added$"):
        load_replay(buffer, rows)
    other = buffer_of(Trainer(make_config({"players.host.algorithm.replay_buffer.capacity": 50})))
    with pytest.raises(ValueError, match=r"^expected a ReplayBuffer of capacity 40, as the saved one, got"):
        load_replay(other, rows)
    empty = buffer_of(Trainer(make_config()))
    [segment] = rows.glob("replay-*.safetensors")
    segment.write_bytes(segment.read_bytes()[:-1] + b"?")
    with pytest.raises(DamagedError, match=r"differs from what was written"):
        load_replay(empty, rows)
    (rows / "replay.json").unlink()
    with pytest.raises(DamagedError, match=r"replay\.json cannot be read"):
        load_replay(empty, rows)
