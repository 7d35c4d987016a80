"""A run after the power went, at any moment: its last checkpoint, or the one before it, loads to the bit."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from resuming import fit, records

from palestra.run import checkpoints as checkpoints_module
from palestra.run.checkpoints import Checkpoints
from palestra.storage import disk
from palestra.storage.disk import RunFolderError
from palestra.storage.manifest import Manifest
from palestra.storage.records_file import JsonlRecorder, measured
from palestra.storage.run_folder import RunFolder
from palestra.storage.stored_files import CheckpointError
from tests.run.power_loss import RecordingDisk, Sync, states_after_power_loss

MakeConfig = Callable[..., dict[str, Any]]


@pytest.fixture
def changes() -> dict[str, Any]:
    return {
        "output.save": {"every": 6, "unit": "opt_steps"},
        "output.keep_last": 1,
        "output.keep_every": None,
        "players.host.algorithm.replay_buffer.capacity": 24,
    }


@pytest.fixture
def log(make_config: MakeConfig, changes: dict[str, Any], tmp_path: Path) -> list[Any]:
    """The calls of a run, a mark for each checkpoint that was saved, and for each that was marked as the best."""
    (tmp_path / "run").mkdir()
    recording = RecordingDisk(tmp_path / "run")
    save, mark_best = Checkpoints.save, Checkpoints.mark_best

    def saved(checkpoints: Checkpoints, *args: Any, **kwargs: Any) -> str:
        name = save(checkpoints, *args, **kwargs)
        recording.note(("saved", Manifest.read(checkpoints.folder.below(name))))
        return name

    def marked(checkpoints: Checkpoints, name: str) -> None:
        mark_best(checkpoints, name)
        recording.note(("best", name))

    def made(cls: type[RunFolder], path: Path, copies: object) -> RunFolder:
        folder = cls(path)
        for name in ("checkpoints", "evaluations"):
            folder.root.below(name).make()
        folder.root.sync()
        return folder

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(disk, "DISK", recording)
        patch.setattr(checkpoints_module, "rows_per_segment", lambda buffer, at_most: 8)
        patch.setattr(Checkpoints, "save", saved)
        patch.setattr(Checkpoints, "mark_best", marked)
        patch.setattr(RunFolder, "create_at", classmethod(made))
        fit(tmp_path / "run", make_config(changes))
    return recording.log


def assert_a_checkpoint_stands(run: Path, marks: list[Any], all_marks: list[Any]) -> str:
    """The last that was saved, or the one that is being saved; and the best. Gives its name."""
    saved = [mark[1] for mark in marks if mark[0] == "saved"]
    following = [mark[1] for mark in all_marks if mark[0] == "saved"][len(saved) :][:1]
    folder = RunFolder(run)
    try:
        checkpoints = Checkpoints(folder, 1, None)
        loaded = checkpoints.load("latest")
    except (CheckpointError, RunFolderError):
        assert not saved
        return ""
    assert loaded.manifest in [*saved[-1:], *following]
    assert folder.records.exists()
    file = disk.open_plain(folder.records)
    assert measured(file, loaded.records.length) == loaded.records
    file.close()
    if any(mark[0] == "best" for mark in marks):
        assert checkpoints.load("best").manifest in [*saved, *following]
    return loaded.folder.name


def replayed(log: list[Any], tmp_path: Path, most: int) -> list[str]:
    """The checkpoint that stands in each of the states."""
    all_marks = [entry for entry in log if isinstance(entry, tuple)]
    found = []
    for marks, state in states_after_power_loss(log, most):
        state.put_at(tmp_path / "state")
        found.append(assert_a_checkpoint_stands(tmp_path / "state", marks, all_marks))
        shutil.rmtree(tmp_path / "state")
    return found


def test_the_last_checkpoint_or_the_one_before_it_loads_after_a_power_loss(log: list[Any], tmp_path: Path) -> None:
    found = replayed(log, tmp_path, most=12)
    assert len(set(found)) >= 5
    assert len(found) > 500


@pytest.mark.slow
def test_every_part_of_what_was_not_safe_leaves_a_checkpoint(log: list[Any], tmp_path: Path) -> None:
    """All of them up to 2**10 at a sync, beyond that 1,000 of them."""
    assert len(replayed(log, tmp_path, most=1024)) > 10_000


def test_a_run_goes_on_after_a_power_loss_to_the_same_bits(
    log: list[Any], make_config: MakeConfig, changes: dict[str, Any], tmp_path: Path
) -> None:
    states = [state for marks, state in states_after_power_loss(log, most=8) if len(marks) > 1]
    for number, state in enumerate(states[:: len(states) // 6]):
        state.put_at(tmp_path / f"{number}")
        fit(tmp_path / f"{number}")
        assert records(tmp_path / f"{number}") == records(tmp_path / "run")


@pytest.mark.parametrize("left_out", ["a file's", "a folder's", "the records'"])
def test_a_sync_that_is_left_out_is_found(left_out: str, log: list[Any], tmp_path: Path) -> None:
    """That the replay has teeth: without one kind of sync, some state has lost a checkpoint."""
    folders = {folder for entry in log for folder in ((getattr(entry, "names", ()) and entry.objects) or ())}
    grown = [entry.objects[0] for entry in log if type(entry).__name__ == "Write"]
    records_file = max(set(grown), key=grown.count)
    kinds = {
        "a file's": lambda number: number not in folders and number != records_file,
        "a folder's": lambda number: number in folders,
        "the records'": lambda number: number == records_file,
    }
    without = [entry for entry in log if not (isinstance(entry, Sync) and kinds[left_out](entry.object))]
    with pytest.raises(AssertionError):
        replayed(without, tmp_path, most=64)


def test_records_are_synced_when_they_are_flushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recording = RecordingDisk(tmp_path)
    monkeypatch.setattr(disk, "DISK", recording)
    recorder = JsonlRecorder(tmp_path / "records.jsonl")
    recorder.write({"env_steps": 1})
    recorder.flush()
    recorder.close()
    assert isinstance(recording.log[-1], Sync)
