"""The one door to the disk: what it refuses, by name."""

import os
from pathlib import Path

import pytest

from palestra.storage import disk
from palestra.storage.disk import Folder, RefusedPathError


def test_a_folder_behind_a_link_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "file").write_text("theirs")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoints").symlink_to(tmp_path / "elsewhere")
    folder = Folder(tmp_path / "run", "checkpoints")
    for deed in (lambda: folder.read("file"), lambda: folder.write("file", b"ours"), folder.names):
        with pytest.raises(RefusedPathError, match="checkpoints is a symbolic link"):
            deed()
    assert (tmp_path / "elsewhere" / "file").read_text() == "theirs"


def test_a_file_in_the_place_of_a_folder_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("")
    with pytest.raises(RefusedPathError, match="checkpoints is a file"):
        Folder(tmp_path, "checkpoints").read("file")


def test_what_takes_a_files_place_after_it_was_looked_at_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "file")
    monkeypatch.setattr(disk, "_kind", lambda folder, name: "file")
    with pytest.raises(RefusedPathError, match="file is no regular file"):
        Folder(tmp_path).read("file")


@pytest.mark.parametrize("size", [3, 5])
def test_a_file_of_another_size_than_was_written_is_refused_with_both(tmp_path: Path, size: int) -> None:
    (tmp_path / "file").write_bytes(b"1234")
    with pytest.raises(RefusedPathError, match=f"expected {size} bytes in .*/file, got 4"):
        Folder(tmp_path).read_exactly("file", size)
