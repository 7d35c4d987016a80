"""What the mirror of a run promises, on stores in memory and on the disk, whatever fails."""

import json
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mirroring import Run, failing, fetched, mirror_config, numbers_on_mirror, on_mirror

from palestra.storage import CheckpointError, RunFolderError, StoredRows
from palestra.storage.contents import Contents
from palestra.storage.fetching import fetch
from palestra.storage.remote import Remote, RemoteError
from palestra.storage.segments import DamagedError

URL = "memory://mirrors"
PLACE = f"{URL}/run"


@pytest.fixture(autouse=True)
def empty_memory() -> Iterator[None]:
    clear_memory()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)  # test_checkpoints.py is about the disk
        yield
    clear_memory()


def clear_memory() -> None:
    memory = fsspec.filesystem("memory")
    memory.store.clear()
    memory.pseudo_dirs[:] = [""]


def save_in_turn(run: Run, numbers: range, best: int | None = None) -> None:
    """Save, and wait for each upload."""
    for number in numbers:
        run.save(number, best=number == best)
        run.mirror.finish()


# ---- what comes back -----------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["memory", "disk"])
def test_the_newest_and_the_best_come_back_with_all_that_belongs_to_them(where: str, tmp_path: Path) -> None:
    url = URL if where == "memory" else f"file://{tmp_path}/deep/below"
    run = Run(tmp_path / "run", url)
    with run.mirror:
        for number in range(8):
            run.save(number, best=number == 3)
            run.mirror.finish()
            assert fetched(f"{url}/run", tmp_path / f"fetched-{number}") == (number, 3 if number >= 3 else None, [])
    assert run.told == []


def test_a_run_goes_on_from_its_mirror_and_keeps_it_up(tmp_path: Path) -> None:
    with (run := Run(tmp_path / "run", URL, keep_last=3)).mirror:
        save_in_turn(run, range(4), best=1)
    folder, _ = fetch(PLACE, tmp_path / "again")
    with (again := Run(folder.path, URL, keep_last=3)).mirror:
        assert again.go_back() == 3
        save_in_turn(again, range(4, 6))
    assert numbers_on_mirror(PLACE) == [1, 3, 4, 5]
    assert fetched(PLACE, tmp_path / "whole") == (5, 1, [])


def test_retention_on_the_mirror_is_that_of_the_folder_and_segments_go_with_the_last_that_needs_them(
    tmp_path: Path,
) -> None:
    with (run := Run(tmp_path / "run", URL, keep_last=2, keep_every=5)).mirror:
        for number in range(13):
            run.save(number, best=number == 3)
            run.mirror.finish()
            run.checkpoints.remove_unkept(number)
            assert numbers_on_mirror(PLACE) == run.checkpoints.numbers()
            segments = {path.split("/")[1] for path in on_mirror(PLACE) if path.startswith("buffers/")}
            assert segments == {path.name for path in run.folder.buffers.iterdir()}
    assert numbers_on_mirror(PLACE) == [0, 3, 5, 10, 11, 12]
    assert (tmp_path / "run" / "checkpoints" / "latest").read_text() == "00000012\n"


def test_nothing_is_sent_twice(tmp_path: Path) -> None:
    with failing(lambda call: None) as calls, (run := Run(tmp_path / "run", URL)).mirror:
        save_in_turn(run, range(3))
        before = len(calls)
        run.mirror.send(2)
        run.mirror.finish()
        assert len(calls) == before
        run.save(3)
        run.mirror.finish()
        assert calls[before:].count("put_file") <= 2 + 1 + 1  # state, tensors, the tail, one full segment
        assert set(calls[before:]) <= {"put_file", "pipe_file", "rm_file"}


def test_a_second_life_of_a_number_takes_the_place_of_the_first(tmp_path: Path) -> None:
    """After a fall back in the folder, the numbers that follow come again, with other records."""
    with (run := Run(tmp_path / "run", URL, keep_last=3)).mirror:
        save_in_turn(run, range(5))
    (tmp_path / "run" / "checkpoints" / "00000004" / "state.json").write_text("?")
    before = set(on_mirror(PLACE))
    with (again := Run(tmp_path / "run", URL, keep_last=3)).mirror:
        assert again.go_back() == 3
        again.checkpoints.save(4, {"number": "other"}, {}, {"host": again.ring}, 0)
        again.mirror.send(4)
        again.mirror.finish()
    assert numbers_on_mirror(PLACE) == [2, 3, 4]
    gone = {path.split("/")[1] for path in before - set(on_mirror(PLACE)) if path.startswith("checkpoints/")}
    assert [name[:8] for name in gone] == ["00000004"]
    folder, _ = fetch(PLACE, tmp_path / "again")
    assert json.loads((folder.checkpoints / "00000004" / "state.json").read_text()) == {"number": "other"}


def test_a_best_that_is_damaged_in_the_folder_does_not_keep_the_rest_from_the_mirror(tmp_path: Path) -> None:
    with (run := Run(tmp_path / "run", URL)).mirror:
        save_in_turn(run, range(2))
        (tmp_path / "run" / "checkpoints" / "best").write_text("00000001\n")
        (tmp_path / "run" / "checkpoints" / "00000001" / "state.json").unlink()
        run.save(2)
        run.mirror.finish()
        run.save(3)
        run.mirror.finish()
    assert numbers_on_mirror(PLACE) == [1, 2, 3]  # where it is whole
    assert fetched(PLACE, tmp_path / "again") == (3, 1, [])


# ---- stores that fail ------------------------------------------------------------------------------------


def refused(call: int) -> Exception:
    return PermissionError(f"call {call} is refused")


def save_on(run: Run) -> None:
    """Six saves; those that the mirror refuses are told."""
    for number in range(6):
        run.save(number, best=number == 2)
        try:
            run.mirror.finish()
        except RemoteError:
            assert "is refused" in run.told[-1]
            assert "training goes on" in run.told[-1]


STRIDES = [pytest.param(7, id="every 7th call"), pytest.param(1, id="every call", marks=pytest.mark.slow)]


@pytest.mark.parametrize("stride", STRIDES)
def test_a_store_that_fails_at_any_one_call_is_told_and_has_all_after_the_next_save(
    stride: int, tmp_path: Path
) -> None:
    with failing(lambda call: None) as calls, (run := Run(tmp_path / "whole", URL)).mirror:
        num_opening = len(calls)
        save_on(run)
    whole = on_mirror(PLACE)
    for number in [*range(num_opening + 1, len(calls), stride), len(calls)]:
        clear_memory()
        path = tmp_path / str(number)
        with failing(lambda call, n=number: refused(call) if call == n else None), (run := Run(path, URL)).mirror:
            save_on(run)
            assert len(run.told) == 1
            run.mirror.send(5)  # what was missed at the last save
            run.mirror.finish()
        assert on_mirror(PLACE) == whole
        assert fetched(PLACE, tmp_path / f"{number}-fetched")[:2] == (5, 2)


@pytest.mark.parametrize("stride", STRIDES)
def test_a_store_that_fails_from_any_call_on_keeps_a_checkpoint_from_which_the_run_goes_on(
    stride: int, tmp_path: Path
) -> None:
    """As if the process had been killed there: what it was writing is half there."""
    with failing(lambda call: None) as calls, (run := Run(tmp_path / "whole", URL)).mirror:
        num_opening = len(calls)
        save_on(run)
    reached = []
    for number in [*range(num_opening + 1, len(calls), stride), len(calls)]:
        clear_memory()
        path, again = tmp_path / str(number), tmp_path / f"{number}-again"
        with failing(lambda call, n=number: refused(call) if call >= n else None), (run := Run(path, URL)).mirror:
            save_on(run)
        assert run.told
        if not numbers_on_mirror(PLACE):
            with pytest.raises(CheckpointError, match="no whole checkpoint"):
                fetch(PLACE, again)
            assert not again.exists()
            reached.append(-1)
            continue
        latest, _, warnings = fetched(PLACE, again)
        reached.append(latest)
        assert all("contents.json is not what was written" in warning for warning in warnings)  # half of it is there
        with (resumed := Run(again, URL)).mirror:
            assert resumed.go_back() == latest
            save_in_turn(resumed, range(latest + 1, 7))
        assert {latest for latest, _, _ in [fetched(PLACE, tmp_path / f"{number}-whole")]} == {6}
    assert reached == sorted(reached)
    assert set(reached) == {-1, 0, 1, 2, 3, 4, 5}


@settings(deadline=None, max_examples=25)
@given(
    keep_last=st.integers(1, 3),
    keep_every=st.none() | st.integers(2, 4),
    saves=st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=8),
    died_at=st.integers(1, 250),
)
def test_whatever_was_whole_on_the_mirror_is_there_or_newer(
    keep_last: int,
    keep_every: int | None,
    saves: list[tuple[bool, bool]],
    died_at: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Saves, some awaited and some overtaken, some the best; at some call the store dies."""
    clear_memory()
    folder = tmp_path_factory.mktemp("runs")
    known = -1
    with failing(lambda call: refused(call) if call >= died_at else None):
        run = Run(folder / "run", URL, keep_last, keep_every)
        try:
            with run.mirror:
                for number, (best, awaited) in enumerate(saves):
                    run.save(number, best)
                    if awaited:
                        run.mirror.finish()
                        known = number
        except RemoteError:
            pass
    there = numbers_on_mirror(PLACE)
    if known >= 0:
        latest, best, warnings = fetched(PLACE, folder / "fetched")
        assert latest == max(there) >= known
        assert all("contents.json is not what was written" in warning for warning in warnings)
        marked = [number for number in range(latest + 1) if saves[number][0]]
        assert best == max(marked, default=None)
        kept = {number for number in range(latest) if keep_every is not None and number % keep_every == 0}
        awaited = {number for number in range(known) if saves[number][1]}
        assert kept & awaited <= set(there)


def test_what_may_pass_is_tried_again_and_what_cannot_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr("palestra.storage.remote.time.sleep", waits.append)
    remote = Remote(PLACE, {}, attempts=4, first_wait_s=0.5)
    with failing(lambda call: ConnectionError("reset") if call < 4 else None) as calls:
        remote.write("a", b"x")
    assert (calls, waits) == (["pipe_file"] * 4, [0.5, 1.0, 2.0])
    assert remote.read("a") == b"x"
    with (
        failing(lambda call: ConnectionError("reset")) as calls,
        pytest.raises(RemoteError, match=r"memory://mirrors/run: writing a: ConnectionError: reset \(attempt 4\)"),
    ):
        remote.write("a", b"x")
    assert len(calls) == 4
    with failing(lambda call: PermissionError("no")) as calls, pytest.raises(RemoteError, match="PermissionError: no"):
        remote.write("a", b"x")
    assert len(calls) == 1


def test_a_place_that_cannot_be_written_is_an_error_before_anything_is_saved(tmp_path: Path) -> None:
    with failing(lambda call: None) as calls, Run(tmp_path / "whole", URL).mirror:
        num_opening = len(calls)
    assert num_opening >= 2
    for number in range(1, num_opening + 1):
        clear_memory()
        with (
            failing(lambda call, n=number: refused(call) if call == n else None),
            pytest.raises(RemoteError, match=f"call {number} is refused"),
            Run(tmp_path / str(number), URL).mirror,
        ):
            pass
        with (run := Run(tmp_path / str(number), URL)).mirror:  # run.json may be half there
            save_in_turn(run, range(1))
        assert fetched(PLACE, tmp_path / f"{number}-fetched") == (0, None, [])


# ---- training does not wait ----------------------------------------------------------------------------


class Gate:
    """Lets uploads through when it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open, self.reached = threading.Event(), threading.Event()
        original = Remote.put

        def put(remote: Remote, path: str, local: Path) -> None:
            self.reached.set()
            assert self.open.wait(30.0)
            original(remote, path, local)

        monkeypatch.setattr(Remote, "put", put)


def test_saves_go_on_during_an_upload_and_the_newest_is_sent_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    with (run := Run(tmp_path / "run", URL, keep_last=1)).mirror:
        run.save(0)
        assert gate.reached.wait(30.0)
        for number in range(1, 9):
            run.save(number)
        assert run.checkpoints.numbers() == [0, 7, 8]  # 0 is being sent; 7 was to be the next
        assert numbers_on_mirror(PLACE) == []
        gate.open.set()
        run.mirror.finish()
        assert numbers_on_mirror(PLACE) == [8]
        run.checkpoints.remove_unkept(8)
        assert run.checkpoints.numbers() == [8]
    assert run.told == []
    assert fetched(PLACE, tmp_path / "again") == (8, None, [])


def test_an_upload_that_takes_too_long_at_the_end_is_an_error_and_touches_the_mirror_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    with (run := Run(tmp_path / "run", URL, end_wait_s=0.05)).mirror:
        run.save(0)
        assert gate.reached.wait(30.0)
        with pytest.raises(RemoteError, match=r"longer than end_wait_s = 0\.05"):
            run.mirror.finish()
    gate.open.set()
    for thread in threading.enumerate():
        if thread.name == "mirror":
            thread.join(30.0)
    assert numbers_on_mirror(PLACE) == []


# ---- who may write -------------------------------------------------------------------------------------


def test_a_mirror_of_another_run_is_refused_and_left_alone(tmp_path: Path) -> None:
    with (run := Run(tmp_path / "run", URL)).mirror:
        save_in_turn(run, range(2))
    before = on_mirror(PLACE)
    other = Run(tmp_path / "other", URL)
    other.folder.run.write_text(json.dumps({"id": "two"}))
    with pytest.raises(RunFolderError, match=r"holds another run; expected another output\.mirror\.url"), other.mirror:
        pass
    assert on_mirror(PLACE) == before


def test_a_folder_that_the_mirror_is_ahead_of_is_refused(tmp_path: Path) -> None:
    with (run := Run(tmp_path / "run", URL)).mirror:
        save_in_turn(run, range(2))
    shutil.copytree(tmp_path / "run", tmp_path / "old")
    with run.mirror.__class__(PLACE, mirror_config(URL), run.folder, run.checkpoints, run.told.append) as run.mirror:
        save_in_turn(run, range(2, 4))
    before = on_mirror(PLACE)
    with (
        pytest.raises(RunFolderError, match=r"has checkpoint 00000003, which .*old has not.*palestra resume memory"),
        Run(tmp_path / "old", URL).mirror,
    ):
        pass
    assert on_mirror(PLACE) == before


# ---- damage --------------------------------------------------------------------------------------------


def test_any_file_that_is_damaged_on_the_mirror_is_named_and_the_checkpoint_before_is_used(tmp_path: Path) -> None:
    with (run := Run(tmp_path / "run", f"file://{tmp_path}/mirror", keep_last=3)).mirror:
        save_in_turn(run, range(4))
    place = tmp_path / "mirror" / "run"
    [latest] = place.glob("checkpoints/00000003-*")
    segments = {
        path.parent.name[:8]: Contents.from_bytes(path.read_bytes()).segments.keys()
        for path in place.glob("checkpoints/*/contents.json")
    }
    new = [place / "buffers" / name for name in segments["00000003"] - segments["00000002"]]
    assert new
    for number, path in enumerate([*latest.iterdir(), *new]):
        content = path.read_bytes()
        flipped = bytearray(content)
        flipped[len(content) // 2] ^= 4
        for way, damaged in enumerate((bytes(flipped), content[:-1], b"", None)):
            if damaged is None:
                path.unlink()
            else:
                path.write_bytes(damaged)
            number_back, _, warnings = fetched(f"file://{place}", tmp_path / f"again-{number}-{way}")
            assert number_back == 2, (path, way)
            if not (path.name == "contents.json" and damaged is None):  # without it the checkpoint is not there
                assert latest.name in warnings[0]
                assert path.name in warnings[0]
            path.write_bytes(content)
    assert fetched(f"file://{place}", tmp_path / "whole") == (3, None, [])


def test_a_best_that_is_damaged_on_the_mirror_is_named_and_left_out(tmp_path: Path) -> None:
    with (run := Run(tmp_path / "run", f"file://{tmp_path}/mirror")).mirror:
        save_in_turn(run, range(4), best=1)
    place = tmp_path / "mirror" / "run"
    [best] = place.glob("checkpoints/00000001-*")
    (best / "state.json").write_text("?")
    latest, marked, warnings = fetched(f"file://{place}", tmp_path / "again")
    assert (latest, marked) == (3, None)
    assert best.name in warnings[0]
    (best / "contents.json").unlink()
    assert fetched(f"file://{place}", tmp_path / "once-more")[:2] == (3, None)


def test_all_damaged_is_an_error_that_names_each_and_leaves_no_folder(tmp_path: Path) -> None:
    with (run := Run(tmp_path / "run", f"file://{tmp_path}/mirror")).mirror:
        save_in_turn(run, range(2))
    for path in (tmp_path / "mirror").glob("run/checkpoints/*/tensors.safetensors"):
        path.write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"(?s)no whole checkpoint.*00000001-.*damaged.*00000000-.*damaged"):
        fetch(f"file://{tmp_path}/mirror/run", tmp_path / "again")
    assert not [path for path in tmp_path.iterdir() if "again" in path.name]


def test_a_contents_json_of_a_newer_format_is_refused_with_its_version(tmp_path: Path) -> None:
    with (run := Run(tmp_path / "run", f"file://{tmp_path}/mirror")).mirror:
        save_in_turn(run, range(2))
    [path] = (tmp_path / "mirror").glob("run/checkpoints/00000001-*/contents.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 7}))
    with pytest.raises(CheckpointError, match=r"contents\.json has format 7; this palestra reads up to 1"):
        fetch(f"file://{tmp_path}/mirror/run", tmp_path / "again")


@pytest.mark.parametrize("name", ["../../../escaped", "/tmp/escaped", ".", "..", "a/b", "a\\b", "", "x\0"])
def test_a_contents_json_that_names_files_elsewhere_is_refused(name: str) -> None:
    files = dict.fromkeys(("run.json", "config.yml", "records.jsonl", "manifest.json"), "0" * 64)
    whole = Contents(files, {"a": "0"}, "00000003-1a2b3c4d")
    assert Contents.from_bytes(whole.to_bytes()) == whole
    for contents in (Contents(files | {name: "0"}, {}, None), Contents(files, {name: "0"}, None)):
        with pytest.raises(DamagedError, match="no name of a file"):
            Contents.from_bytes(contents.to_bytes())
    with pytest.raises(DamagedError, match="no name of a checkpoint"):
        Contents.from_bytes(Contents(files, {}, name).to_bytes())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@settings(deadline=None)
@given(
    content=st.binary()
    | JSON.map(json.dumps).map(str.encode)
    | st.fixed_dictionaries(
        {"format": st.just(1) | JSON, "files": JSON, "segments": JSON, "best": JSON, "sha256": JSON}
    )
    .map(json.dumps)
    .map(str.encode)
)
def test_any_bytes_in_the_place_of_contents_json_are_refused(content: bytes) -> None:
    with pytest.raises(CheckpointError):
        Contents.from_bytes(content)


# ---- fetching ------------------------------------------------------------------------------------------


def test_a_place_without_a_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="there is no run at memory://nowhere"):
        fetch("memory://nowhere", tmp_path / "again")


def test_a_folder_that_exists_is_not_fetched_into(tmp_path: Path) -> None:
    with (run := Run(tmp_path / "run", URL)).mirror:
        save_in_turn(run, range(1))
    (tmp_path / "there").mkdir()
    with pytest.raises(RunFolderError, match="there exists already; go on there"):
        fetch(PLACE, tmp_path / "there")


def test_a_fetch_that_was_killed_leaves_nothing_in_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (run := Run(tmp_path / "run", URL)).mirror:
        save_in_turn(run, range(2))
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)
        with failing(lambda call: PermissionError("killed") if call > 8 else None), pytest.raises(RemoteError):
            fetch(PLACE, tmp_path / "again")
    assert (tmp_path / ".again.fetched").exists()
    assert fetched(PLACE, tmp_path / "again") == (1, None, [])
    assert not (tmp_path / ".again.fetched").exists()


def test_a_mirror_that_was_packed_into_a_zip_comes_back(tmp_path: Path) -> None:
    with (run := Run(tmp_path / "run", f"file://{tmp_path}/mirror")).mirror:
        save_in_turn(run, range(3), best=1)
    shutil.make_archive(str(tmp_path / "packed"), "zip", tmp_path / "mirror")
    assert fetched(f"zip://run::file://{tmp_path}/packed.zip", tmp_path / "again") == (2, 1, [])
    assert os.listdir(tmp_path / "again" / "buffers")


def test_the_rows_of_a_fetched_checkpoint_are_read_from_its_own_folder(tmp_path: Path) -> None:
    with (run := Run(tmp_path / "run", URL)).mirror:
        save_in_turn(run, range(4))
    folder, _ = fetch(PLACE, tmp_path / "again")
    manifest = json.loads((folder.checkpoints / "00000003" / "manifest.json").read_text())
    rows = StoredRows.from_manifest(folder.checkpoints / "00000003", manifest["buffers"]["host"])
    rows.check()
    shutil.rmtree(folder.buffers)
    with pytest.raises(DamagedError):
        rows.check()
