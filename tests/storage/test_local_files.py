"""A mirror on a disk of this machine: whoever may write there cannot lead palestra to files elsewhere."""

import os
from pathlib import Path

import pytest

from palestra.run.fetching import fetch
from palestra.run.remote import RemoteError
from palestra.storage.disk import RunFolderError
from tests.run.mirroring import Run, fetched

ENTRIES = ["run.json", "checkpoints", "buffers", "checkpoints/{latest}", "checkpoints/{latest}/records.jsonl"]


def mirrored(folder: Path) -> tuple[Run, Path]:
    """A run with two checkpoints on its mirror, and the mirror's folder."""
    with (run := Run(folder / "run", f"file://{folder}/mirror")).mirror:
        run.save(0)
        run.save(1, best=True)
        run.mirror.finish()
    return run, folder / "mirror" / "run"


def moved_behind_a_link(mirror: Path, entry: str) -> Path:
    """The path of an entry, which now lies elsewhere; a link has its place."""
    [*_, latest] = sorted((mirror / "checkpoints").iterdir())
    place, elsewhere = mirror / entry.format(latest=latest.name), mirror.parent / "elsewhere"
    place.rename(elsewhere)
    place.symlink_to(elsewhere)
    return place


def contents(folder: Path) -> dict[str, bytes]:
    paths = [folder, *folder.rglob("*")]
    return {str(path): path.read_bytes() for path in paths if path.is_file()} | {"": repr(sorted(paths)).encode()}


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_link_in_a_mirror_is_named_and_nothing_behind_it_is_touched(entry: str, tmp_path: Path) -> None:
    _, mirror = mirrored(tmp_path)
    place = moved_behind_a_link(mirror, entry)
    before = contents(mirror.parent / "elsewhere")
    again = Run(tmp_path / "run", f"file://{tmp_path}/mirror")
    with pytest.raises(RemoteError, match=f"{place} is a symbolic link, which palestra neither follows nor changes"):
        again.mirror.__enter__()
    with pytest.raises(RemoteError, match=f"{place} is a symbolic link"):
        fetch(f"file://{mirror}", tmp_path / "fetched")
    assert not (tmp_path / "fetched").exists()
    assert contents(mirror.parent / "elsewhere") == before


def test_a_link_that_comes_while_a_run_trains_is_not_followed(tmp_path: Path) -> None:
    with (run := Run(tmp_path / "run", f"file://{tmp_path}/mirror")).mirror:
        run.save(0)
        run.mirror.finish()
        place = moved_behind_a_link(tmp_path / "mirror/run", "checkpoints")
        before = contents(tmp_path / "mirror/elsewhere")
        run.save(1)
        with pytest.raises(RemoteError, match=f"{place} is a symbolic link"):
            run.mirror.finish()
    assert contents(tmp_path / "mirror/elsewhere") == before


def test_the_other_name_of_a_hard_link_in_a_mirror_keeps_its_content(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_text("mine")
    (tmp_path / "mirror/run").mkdir(parents=True)
    os.link(kept, tmp_path / "mirror/run/run.json")
    run, mirror = mirrored(tmp_path)
    for place in (*mirror.glob("buffers/*"), *mirror.glob("checkpoints/*/*")):
        place.unlink()
        if place.name != "contents.json":  # else the checkpoint counts, and nothing is sent
            os.link(kept, place)
    again = Run(tmp_path / "run", f"file://{tmp_path}/mirror")
    with again.mirror:
        again.mirror.send(1)
        again.mirror.finish()
    assert fetched(f"file://{mirror}", tmp_path / "fetched") == (1, 1, [])
    assert kept.read_text() == "mine"
    assert run.told == again.told == []


def test_the_folder_that_the_user_names_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "large").mkdir()
    (tmp_path / "mirror").symlink_to(tmp_path / "large")
    mirrored(tmp_path)
    (tmp_path / "again").symlink_to(tmp_path / "large/run")
    assert fetched(f"file://{tmp_path}/again", tmp_path / "fetched") == (1, 1, [])


@pytest.mark.parametrize("name", ["buffers/rows.npy", "players/thesis.json", "notes.txt"])
def test_a_folder_that_holds_something_else_becomes_no_mirror(name: str, tmp_path: Path) -> None:
    file = tmp_path / "mirror/run" / name
    file.parent.mkdir(parents=True)
    file.write_text("mine")
    before = contents(tmp_path / "mirror")
    run = Run(tmp_path / "run", f"file://{tmp_path}/mirror")
    with pytest.raises(RunFolderError, match=f"expected a new folder, got file://{tmp_path}/mirror/run, with {name}"):
        run.mirror.__enter__()
    assert contents(tmp_path / "mirror") == before


def test_a_file_beside_the_segments_of_a_mirror_stays(tmp_path: Path) -> None:
    run, mirror = mirrored(tmp_path)
    (mirror / "buffers/rows.npy").write_text("mine")
    [segment, *_] = sorted(place.name for place in mirror.glob("buffers/*-*"))
    (mirror / f"buffers/.{segment}.7.tmp").write_text("left by a kill")
    again = Run(tmp_path / "run", f"file://{tmp_path}/mirror")
    with again.mirror:
        again.mirror.send(1)
        again.mirror.finish()
    assert (mirror / "buffers/rows.npy").read_text() == "mine"
    assert not (mirror / f"buffers/.{segment}.7.tmp").exists()
    assert run.told == again.told == []
