"""What the mirror of a run promises, on stores in memory and on the disk, whatever fails."""

import json
import re
import shutil
import threading
from pathlib import Path

import fsspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palestra.run.fetching import fetch
from palestra.run.remote import Remote, RemoteError
from palestra.storage.disk import RunFolderError
from palestra.storage.stored_files import CheckpointError
from tests.run.mirroring import (
    PLACE,
    URL,
    Run,
    clear_memory,
    failing,
    fetched,
    mirror_config,
    numbers_on_mirror,
    on_mirror,
    run_of,
    save_in_turn,
)
from tests.run.ring import NONE


@pytest.fixture(autouse=True)
def empty_memory() -> None:
    clear_memory()


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
            run.checkpoints.remove_unkept(number, None)
            assert numbers_on_mirror(PLACE) == run.checkpoints.numbers()
            segments = {path.split("/")[1] for path in on_mirror(PLACE) if path.startswith("buffers/")}
            assert segments == set(run.folder.buffers.names())
    assert numbers_on_mirror(PLACE) == [0, 3, 5, 10, 11, 12]
    assert (tmp_path / "run" / "checkpoints" / "latest").read_text() == "00000012\n"


def test_a_file_that_only_readers_miss_keeps_no_checkpoint_from_the_mirror(tmp_path: Path) -> None:
    with (run := Run(tmp_path / "run", URL)).mirror:
        for name in ("0.yml", "1.yml"):
            run.checkpoints.write_once("transcripts", name, name.encode())
        run.save(0)
        run.mirror.finish()
        (tmp_path / "run" / "transcripts" / "0.yml").unlink()
        run.save(1)
        run.mirror.finish()
    assert run.told == []
    folder, warnings = fetch(PLACE, tmp_path / "again")
    assert (folder.checkpoints.path / "latest").read_text() == "00000001\n"
    assert warnings == []
    assert [path.name for path in (tmp_path / "again" / "transcripts").iterdir()] == ["1.yml"]
    fsspec.filesystem("memory").pipe(f"{PLACE.removeprefix('memory:/')}/transcripts/1.yml", b"other")
    folder, [line] = fetch(PLACE, tmp_path / "other")
    assert line.startswith("transcripts/1.yml differs from what was written")
    assert "training does not need it" in line
    assert (folder.checkpoints.path / "latest").read_text() == "00000001\n"


def test_nothing_is_sent_twice(tmp_path: Path) -> None:
    with failing(lambda call: None) as calls, (run := Run(tmp_path / "run", URL)).mirror:
        save_in_turn(run, range(3))
        before = len(calls)
        run.mirror.send(2)
        run.mirror.finish()
        assert set(calls[before:]) == {"ls"}
        before = len(calls)
        run.save(3)
        run.mirror.finish()
        assert calls[before:].count("put_file") <= 2 + 1 + 1  # state, tensors, the tail, one full segment
        assert set(calls[before:]) <= {"ls", "put_file", "pipe_file", "rm_file"}


def test_what_vanishes_while_a_run_trains_is_sent_again_with_the_next_save(tmp_path: Path) -> None:
    """As from a disk that is mounted anew, empty."""
    with (run := Run(tmp_path / "run", f"file://{tmp_path}/mirror")).mirror:
        run.folder.evaluations.make().write("last-opt-step-1.json", b"{}")
        save_in_turn(run, range(3), best=1)
        shutil.rmtree(tmp_path / "mirror")
        save_in_turn(run, range(3, 5))
        assert run.told == []
    assert fetched(f"file://{tmp_path}/mirror/run", tmp_path / "whole") == (4, 1, [])
    assert (tmp_path / "mirror/run/evaluations/last-opt-step-1.json").read_bytes() == b"{}"


def test_a_second_life_of_a_number_takes_the_place_of_the_first(tmp_path: Path) -> None:
    """After a fall back in the folder, the numbers that follow come again, with other records."""
    with (run := Run(tmp_path / "run", URL, keep_last=3)).mirror:
        save_in_turn(run, range(5))
    (tmp_path / "run" / "checkpoints" / "00000004" / "state.json").write_text("?")
    before = set(on_mirror(PLACE))
    with (again := Run(tmp_path / "run", URL, keep_last=3)).mirror:
        assert again.go_back() == 3
        again.checkpoints.save(4, {"number": "other"}, {}, {"host": again.ring}, NONE)
        again.mirror.send(4)
        again.mirror.finish()
    assert numbers_on_mirror(PLACE) == [2, 3, 4]
    gone = {path.split("/")[1] for path in before - set(on_mirror(PLACE)) if path.startswith("checkpoints/")}
    assert [name[:8] for name in gone] == ["00000004"]
    folder, _ = fetch(PLACE, tmp_path / "again")
    assert json.loads((folder.checkpoints.path / "00000004" / "state.json").read_text()) == {"number": "other"}


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


def test_a_segment_of_which_a_kill_has_left_a_part_is_sent_again(tmp_path: Path) -> None:
    with (run := Run(tmp_path / "run", URL)).mirror:
        save_in_turn(run, range(2))
    remote, whole = Remote(PLACE, {}, 1, 0.0), on_mirror(PLACE)
    (contents,) = [path for path in whole if path.startswith("checkpoints/00000001") and path.endswith("contents.json")]
    newest = max(path for path in whole if path.startswith("buffers/"))
    remote.remove(contents)
    remote.write(newest, remote.read(newest)[:10])
    with (again := Run(tmp_path / "run", URL)).mirror:
        again.mirror.send(1)
        again.mirror.finish()
    assert on_mirror(PLACE) == whole
    assert fetched(PLACE, tmp_path / "again") == (1, None, [])


def test_the_best_is_there_before_a_later_one_that_names_it(tmp_path: Path) -> None:
    with (run := Run(tmp_path / "run", URL)).mirror:
        save_in_turn(run, range(1))
        send, run.mirror.send = run.mirror.send, lambda number: None  # type: ignore[method-assign]
        run.save(1, best=True)
        run.save(2)
        send(2)
        run.mirror.finish()
    assert fetched(PLACE, tmp_path / "again") == (2, 1, [])


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
            assert "the mirror lacks what is new" in run.told[-1]


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
            assert run.noted == [f"{PLACE}: an upload has succeeded again; the mirror lacks nothing"]
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
        assert len(run.told) == 1
        if not numbers_on_mirror(PLACE):
            with pytest.raises(CheckpointError, match="no complete checkpoint"):
                fetch(PLACE, again)
            assert not again.exists()
            reached.append(-1)
            continue
        latest, _, warnings = fetched(PLACE, again)
        reached.append(latest)
        assert all(re.search("is damaged: .* contents.json", warning) for warning in warnings)  # half of it is there
        with (resumed := Run(again, URL)).mirror:
            assert resumed.go_back() == latest
            save_in_turn(resumed, range(latest + 1, 7))
        assert {latest for latest, _, _ in [fetched(PLACE, tmp_path / f"{number}-whole")]} == {6}
    assert reached == sorted(reached)
    assert set(reached) == {-1, 0, 1, 2, 3, 4, 5}


@settings(max_examples=25)
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
        assert all(re.search("is damaged: .*contents.json", warning) for warning in warnings)  # half of it is there
        marked = [number for number in range(latest + 1) if saves[number][0]]
        assert best == max(marked, default=None)
        kept = {number for number in range(latest) if keep_every is not None and number % keep_every == 0}
        awaited = {number for number in range(known) if saves[number][1]}
        assert kept & awaited <= set(there)


def test_what_may_pass_is_tried_again_and_what_cannot_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr("palestra.run.remote.time.sleep", waits.append)
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
        run.checkpoints.remove_unkept(8, None)
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
    other.folder.write_facts(run_of("2"))
    with (
        pytest.raises(RunFolderError, match=r"output\.mirror\.url: expected a new folder, got .* of another run"),
        other.mirror,
    ):
        pass
    assert on_mirror(PLACE) == before


def test_a_folder_that_the_mirror_is_ahead_of_is_refused(tmp_path: Path) -> None:
    with (run := Run(tmp_path / "run", URL)).mirror:
        save_in_turn(run, range(2))
    shutil.copytree(tmp_path / "run", tmp_path / "old")
    told = run.told.append, run.noted.append
    with run.mirror.__class__(PLACE, mirror_config(URL), run.folder, run.checkpoints, *told) as run.mirror:
        save_in_turn(run, range(2, 4))
    before = on_mirror(PLACE)
    with (
        pytest.raises(RunFolderError, match=r"has checkpoint 00000003, but .*old does not.*palestra resume memory"),
        Run(tmp_path / "old", URL).mirror,
    ):
        pass
    assert on_mirror(PLACE) == before
