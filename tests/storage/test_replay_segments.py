"""What storage promises about replay rows."""

import errno
from pathlib import Path

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from palestra.buffers.replay import ReplayBuffer, UniformReplayConfig
from palestra.run.checkpoints import Checkpoints
from palestra.storage.disk import DISK
from palestra.storage.run_folder import RunFolder
from palestra.storage.stored_files import CheckpointError
from tests.run.ring import NONE, Ring


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path, "run")


def refuse(*args: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def save(checkpoints: Checkpoints, number: int, **rings: Ring) -> None:
    checkpoints.save(number, {}, {}, rings, records=NONE)


def restored(checkpoints: Checkpoints, capacity: int, which: int | str = "latest") -> Ring:
    ring = Ring(capacity)
    checkpoints.restore_buffers(checkpoints.load(which), {"host": ring})
    return ring


@settings(max_examples=40)
@given(
    capacity=st.integers(1, 30),
    segment_rows=st.integers(1, 12),
    adds=st.lists(st.tuples(st.integers(0, 40), st.booleans()), min_size=1, max_size=5),
)
@example(capacity=3, segment_rows=12, adds=[(11, False)])
def test_exactly_the_rows_held_come_back(
    capacity: int, segment_rows: int, adds: list[tuple[int, bool]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    run = RunFolder.create(tmp_path_factory.mktemp("runs"), "run")
    checkpoints = Checkpoints(run, keep_last=1, keep_every=None, segment_rows=segment_rows)
    ring = Ring(capacity)
    for number, (num, resumes) in enumerate(adds):
        ring.add(num)
        save(checkpoints, number, host=ring)
        again = restored(Checkpoints(run, 1, None, segment_rows), capacity)
        assert again.held == ring.held
        if resumes:
            checkpoints = Checkpoints(run, 1, None, segment_rows)
            ring = restored(checkpoints, capacity)
            ring.num_added = again.num_added


def test_a_full_segment_is_written_once_and_shared_by_later_checkpoints(run: RunFolder) -> None:
    checkpoints = Checkpoints(run, keep_last=3, keep_every=None, segment_rows=4)
    ring = Ring(capacity=100)
    ring.add(9)
    save(checkpoints, 0, host=ring)
    written = {path.name: path.stat().st_ino for path in run.buffers.path.iterdir()}
    assert sorted(name[:8] for name in written) == ["host-0-4", "host-4-8"]
    ring.add(4)
    save(checkpoints, 1, host=ring)
    resumed = Checkpoints(run, keep_last=3, keep_every=None, segment_rows=4)
    ring = restored(resumed, 100)
    ring.add(4)
    save(resumed, 2, host=ring)
    after = {path.name: path.stat().st_ino for path in run.buffers.path.iterdir()}
    assert after.items() > written.items()
    assert len(after) == 4


def test_segments_of_large_rows_are_short(run: RunFolder) -> None:
    """The unfinished one is written anew at every save."""
    for bounds in (["host-0-8192"], ["host-0-4096", "host-4096-8192"]):
        ring = Ring(capacity=9000)
        ring.row_bytes = len(bounds) << 13
        ring.add(9000)
        checkpoints = Checkpoints(run, keep_last=1, keep_every=None)
        save(checkpoints, 0, host=ring)
        assert sorted(path.name.rsplit("-", 1)[0] for path in run.buffers.path.iterdir()) == bounds
        assert restored(checkpoints, 9000).held == ring.held


def test_what_was_written_ahead_is_not_written_again(run: RunFolder) -> None:
    checkpoints = Checkpoints(run, keep_last=2, keep_every=None, segment_rows=4)
    ring = Ring(capacity=100)
    ring.add(9)
    checkpoints.write_ahead({"host": ring})
    written = {path.name: path.stat().st_ino for path in run.buffers.path.iterdir()}
    assert sorted(name[:8] for name in written) == ["host-0-4", "host-4-8"]
    ring.add(4)
    save(checkpoints, 0, host=ring)
    ring.add(4)
    checkpoints.write_ahead({"host": ring})
    save(checkpoints, 1, host=ring)
    after = {path.name: path.stat().st_ino for path in run.buffers.path.iterdir()}
    assert after.items() > written.items()
    assert len(after) == 4
    assert restored(checkpoints, 100).held == ring.held
    assert restored(checkpoints, 100, 0).held.keys() == set(range(13))


def test_what_was_written_ahead_goes_when_the_save_fails_and_comes_with_the_next_one(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = Checkpoints(run, keep_last=2, keep_every=None, segment_rows=4)
    ring = Ring(capacity=100)
    ring.add(9)
    with monkeypatch.context() as patch:
        patch.setattr(DISK, "rename", refuse)
        checkpoints.write_ahead({"host": ring})
        with pytest.raises(CheckpointError, match="No space left"):
            save(checkpoints, 0, host=ring)
    assert list(run.buffers.path.iterdir()) == []
    save(checkpoints, 0, host=ring)
    assert restored(checkpoints, 100).held == ring.held


def test_a_disk_that_refuses_what_is_written_ahead_is_told_by_the_save(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = Checkpoints(run, keep_last=2, keep_every=None, segment_rows=4)
    ring = Ring(capacity=100)
    ring.add(9)
    with monkeypatch.context() as patch:
        patch.setattr(DISK, "rename", refuse)
        checkpoints.write_ahead({"host": ring})
        with pytest.raises(CheckpointError, match="No space left"):
            save(checkpoints, 0, host=ring)
    save(checkpoints, 0, host=ring)
    assert restored(checkpoints, 100).held == ring.held


def test_rows_are_left_alone_where_only_the_state_is_wanted(run: RunFolder) -> None:
    checkpoints = Checkpoints(run, keep_last=1, keep_every=None, segment_rows=4)
    ring = Ring(capacity=100)
    ring.add(6)
    save(checkpoints, 0, host=ring)
    for path in [*run.buffers.path.iterdir(), *run.checkpoints.path.glob("*/host-*")]:
        path.unlink()
    assert checkpoints.load("latest", check_rows=False).counters == {}
    with pytest.raises(CheckpointError, match="host-"):
        checkpoints.load("latest")


def test_a_segment_goes_when_no_kept_manifest_names_it(run: RunFolder) -> None:
    checkpoints = Checkpoints(run, keep_last=2, keep_every=None, segment_rows=4)
    ring = Ring(capacity=8)
    for number in range(6):
        ring.add(4)
        save(checkpoints, number, host=ring)
        if number == 1:
            checkpoints.mark_best("00000001")
    starts = sorted(int(path.name.split("-")[1]) for path in run.buffers.path.iterdir())
    assert starts == [0, 4, 12, 16, 20]  # best: 0 and 4; the last two: 12, 16 and 16, 20
    assert restored(checkpoints, 8, "best").held.keys() == set(range(8))


def test_a_segment_that_was_never_seen_whole_is_written_from_its_surviving_part(run: RunFolder) -> None:
    checkpoints = Checkpoints(run, keep_last=1, keep_every=None, segment_rows=10)
    ring = Ring(capacity=12)
    ring.add(103)
    save(checkpoints, 0, host=ring)
    assert [path.name.rsplit("-", 1)[0] for path in run.buffers.path.iterdir()] == ["host-91-100"]
    assert restored(checkpoints, 12).held == ring.held


def test_rows_of_a_run_that_goes_on_otherwise_do_not_spoil_kept_checkpoints(run: RunFolder) -> None:
    checkpoints = Checkpoints(run, keep_last=5, keep_every=None, segment_rows=4)
    ring = Ring(capacity=100)
    for number in range(3):
        ring.add(6)
        save(checkpoints, number, host=ring)
    checkpoints.mark_best("00000002")
    checkpoints = Checkpoints(run, keep_last=5, keep_every=None, segment_rows=4)
    other = restored(checkpoints, 100, 0)
    other.seed = 1
    other.add(12)
    save(checkpoints, 1, host=other)
    assert restored(checkpoints, 100, 1).held == other.held
    assert restored(checkpoints, 100, "best").held == ring.held


def test_names_of_buffers_with_dots_and_slashes_stay_apart_and_inside(run: RunFolder, tmp_path: Path) -> None:
    checkpoints = Checkpoints(run, keep_last=1, keep_every=None, segment_rows=4)
    names = ["a/b", "a.b", "a%2Fb", "..", "../../x", "a b", "ä", ""]
    rings = {name: Ring(10, seed=seed) for seed, name in enumerate(names)}
    for ring in rings.values():
        ring.add(6)
    save(checkpoints, 0, **rings)
    again = {name: Ring(10) for name in names}
    checkpoints.restore_buffers(checkpoints.load("latest"), again)
    assert {name: ring.held for name, ring in again.items()} == {name: ring.held for name, ring in rings.items()}
    assert len(list(run.buffers.path.iterdir())) == len(names)
    assert [path.name for path in tmp_path.iterdir()] == [run.path.name]


@pytest.mark.parametrize("where", ["buffers", "checkpoints/00000001"])
def test_damaged_rows_are_found_at_load_and_the_checkpoint_before_is_used(run: RunFolder, where: str) -> None:
    checkpoints = Checkpoints(run, keep_last=2, keep_every=None, segment_rows=4)
    ring = Ring(capacity=100)
    ring.add(2)
    save(checkpoints, 0, host=ring)
    ring.add(5)
    save(checkpoints, 1, host=ring)
    [path] = (run.path / where).glob("host-*")
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    loaded = checkpoints.load("latest")
    assert loaded.folder.name == "00000000"
    assert path.name in loaded.warnings[0]


def test_a_checkpoint_with_other_buffers_is_refused(run: RunFolder) -> None:
    checkpoints = Checkpoints(run, keep_last=2, keep_every=None)
    save(checkpoints, 0, host=Ring(4))
    with pytest.raises(CheckpointError, match=r"expected rows of the buffers \['agent'\], got those of \['host'\]"):
        checkpoints.restore_buffers(checkpoints.load("latest"), {"agent": Ring(4)})
    with pytest.raises(CheckpointError, match=r"expected rows of the buffers \[\], got those of \['host'\]"):
        checkpoints.restore_buffers(checkpoints.load("latest"), {})


def test_a_checkpoint_of_a_smaller_buffer_is_refused(run: RunFolder) -> None:
    checkpoints = Checkpoints(run, keep_last=2, keep_every=None)
    ring = Ring(4)
    ring.add(6)
    save(checkpoints, 0, host=ring)
    with pytest.raises(
        CheckpointError, match="capacity of the buffer of host: expected 4, because rows came round, got 5"
    ):
        checkpoints.restore_buffers(checkpoints.load("latest"), {"host": Ring(5)})


def test_frames_that_recur_are_stored_once_and_come_back_to_the_bit(run: RunFolder) -> None:
    frames = torch.randint(0, 256, (95, 30, 20), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    stacks = frames.unfold(0, 4, 1).permute(0, 3, 1, 2)
    rows = {"seen": stacks[:90], "next": stacks[1:91], "number": torch.arange(90)}

    def film() -> ReplayBuffer:
        config = UniformReplayConfig(name="uniform", capacity=100, layout="whole", scratch_folder=None)
        return ReplayBuffer(config, torch.device("cpu"), 0, "film")

    checkpoints = Checkpoints(run, keep_last=1, keep_every=None, segment_rows=40)
    buffer = film()
    buffer.add(rows, torch.ones(90, dtype=torch.bool))
    checkpoints.save(0, {}, {}, {"agent": buffer}, records=NONE)
    size = sum(path.stat().st_size for path in run.path.rglob("agent-*.safetensors"))
    num_frames = 90 + 3 * 4  # and those that a segment shares with the one before
    assert num_frames * 600 < size < 1.2 * num_frames * 600
    again = film()
    checkpoints.restore_buffers(checkpoints.load("latest"), {"agent": again})
    again.load_state_dict(buffer.state_dict())
    for name, value in again.rows(0, 90).items():
        assert torch.equal(rows[name], value)
        assert rows[name].dtype == value.dtype
