"""What comes back from a mirror, whole or damaged."""

import json
import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palestra.run import fetching
from palestra.run.checkpoints import Checkpoints
from palestra.run.fetching import fetch, fetch_new_checkpoints
from palestra.run.mirror import RUN_FILES, Contents
from palestra.run.remote import RemoteError
from palestra.storage.disk import RunFolderError
from palestra.storage.manifest import CheckpointPlace, Manifest
from palestra.storage.stored_files import CheckpointError, DamagedError, StoredFile
from tests.run.mirroring import (
    PLACE,
    URL,
    Run,
    clear_memory,
    failing,
    fetched,
    numbers_on_mirror,
    save_in_turn,
)


@pytest.fixture(autouse=True)
def empty_memory() -> None:
    clear_memory()


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
    with pytest.raises(CheckpointError, match=r"(?s)no complete checkpoint.*00000001-.*damaged.*00000000-.*damaged"):
        fetch(f"file://{tmp_path}/mirror/run", tmp_path / "again")
    assert not [path for path in tmp_path.iterdir() if "again" in path.name]


def test_a_contents_json_of_a_newer_format_is_refused_with_its_version(tmp_path: Path) -> None:
    with (run := Run(tmp_path / "run", f"file://{tmp_path}/mirror")).mirror:
        save_in_turn(run, range(2))
    [path] = (tmp_path / "mirror").glob("run/checkpoints/00000001-*/contents.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 7}))
    with pytest.raises(CheckpointError, match=r"contents\.json: expected format 4, got 7 of a later palestra"):
        fetch(f"file://{tmp_path}/mirror/run", tmp_path / "again")


@pytest.mark.parametrize("name", ["../../../escaped", "/etc/escaped", ".", "..", "a/b", "a\\b", "", "x\0"])
def test_a_contents_json_that_names_files_elsewhere_is_refused(name: str) -> None:
    files = dict.fromkeys(("run.json", "config.yml", "records.jsonl", "manifest.json"), StoredFile.of(b""))
    other, one = {name: StoredFile.of(b"")}, {"a": StoredFile.of(b"")}
    whole = Contents(format=4, files=files, segments=one, once={"players": one}, best="00000003-1a2b3c4d")
    assert Contents.from_bytes(whole.to_bytes()) == whole
    once = [{"once": {"players": other}}, {"once": {name: one}}]
    for forged in ({"files": files | other}, {"segments": other}, *once, {"best": name}):
        contents = Contents.model_construct(**(dict(whole) | forged))
        with pytest.raises(DamagedError, match=r"should match pattern|should be 'players'"):
            Contents.from_bytes(contents.to_bytes())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(
    content=st.binary()
    | JSON.map(json.dumps).map(str.encode)
    | st.fixed_dictionaries(
        {"format": st.just(4) | JSON, "files": JSON, "segments": JSON, "once": JSON, "best": JSON, "sha256": JSON}
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
    (tmp_path / "there/mine").touch()
    with pytest.raises(RunFolderError, match=r"there exists already; --run DIR fetches elsewhere"):
        fetch(PLACE, tmp_path / "there")
    (tmp_path / "there/mine").unlink()
    assert fetch(PLACE, tmp_path / "there")[0].config.exists()


def test_a_fetch_that_was_killed_leaves_nothing_in_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (run := Run(tmp_path / "run", URL)).mirror:
        save_in_turn(run, range(2))
    with monkeypatch.context() as patch:
        patch.setattr(fetching, "_remove", lambda unfinished: None)
        with failing(lambda call: PermissionError("killed") if call > 8 else None), pytest.raises(RemoteError):
            fetch(PLACE, tmp_path / "again")
    assert (tmp_path / ".again.fetched").exists()
    assert fetched(PLACE, tmp_path / "again") == (1, None, [])
    assert not (tmp_path / ".again.fetched").exists()


def test_checkpoints_that_are_new_on_the_mirror_come_without_rows(tmp_path: Path) -> None:
    with (run := Run(tmp_path / "run", URL)).mirror:
        save_in_turn(run, range(2))
        folder, _ = fetch(PLACE, tmp_path / "copy", with_rows=False)
        checkpoints = Checkpoints(folder, 1, None)
        assert checkpoints.numbers() == [1]
        save_in_turn(run, range(2, 4))
        fetch_new_checkpoints(PLACE, folder)
    there = numbers_on_mirror(PLACE)
    assert checkpoints.numbers() == sorted({1, *there})
    assert not list(folder.buffers.path.glob("*"))
    for number in there:
        assert checkpoints.load(number, check_rows=False).state["number"] == number
        assert set(folder.checkpoints.below(f"{number:08d}").names()).isdisjoint(RUN_FILES)


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
    place = CheckpointPlace(folder.checkpoints.below("00000003"), folder.buffers)
    rows = Manifest.read(place.folder).buffers["host"]
    rows.check(place)
    shutil.rmtree(folder.buffers.path)
    with pytest.raises(DamagedError):
        rows.check(place)
