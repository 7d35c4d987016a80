"""Locks between processes: one holds them, who waits names it, and looking changes nothing."""

import errno
import fcntl
import logging
import os
import platform
import re
import threading
import time
from pathlib import Path

import pytest

from palestra.storage import lock as lock_module
from palestra.storage.disk import Folder, RefusedPathError
from palestra.storage.lock import Lock, holder, in_use, is_held, take_or_refuse


def test_who_looks_at_a_lock_neither_makes_it_nor_takes_it(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    assert not is_held(folder, "lock")
    assert list(tmp_path.iterdir()) == []
    lock = Lock.take(folder, "lock")
    assert lock is not None
    assert is_held(folder, "lock")
    assert in_use(folder) == f"{tmp_path} is in use by process {os.getpid()}; wait for it or stop it"
    assert Lock.take(folder, "lock") is None
    lock.free()
    assert not is_held(folder, "lock")


def test_who_waits_for_long_says_for_whom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lock_module, "TELL_S", 0.05)
    first = Lock.take(Folder(tmp_path), "lock")
    assert first is not None
    taken: list[Lock | None] = []
    with caplog.at_level(logging.WARNING):
        waits = threading.Thread(target=lambda: taken.append(Lock.take(Folder(tmp_path), "lock", wait=True)))
        waits.start()
        end_s = time.monotonic() + 30
        while not caplog.messages and time.monotonic() < end_s:
            time.sleep(0.01)
        assert taken == []
        first.free()
        waits.join(30)
    assert caplog.messages == [f"waiting for process {os.getpid()}, which holds {tmp_path / 'lock'}"]
    assert isinstance(taken[0], Lock)


def test_a_lock_that_names_nobody_is_held_by_somebody_of_unknown_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock_module, "NAME_S", 0.05)
    for text in (b"", b"\x1b[2J", b"12 of them", b"9" * 20):
        (tmp_path / "lock").write_bytes(text)
        assert holder(Folder(tmp_path), "lock") == "of unknown id"


def test_a_link_or_a_pipe_is_no_lock(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "link").symlink_to("mine")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe"):
        with pytest.raises(RefusedPathError):
            Lock.take(Folder(tmp_path), name)
        with pytest.raises(RefusedPathError):
            is_held(Folder(tmp_path), name)
    assert (tmp_path / "mine").read_text() == "mine"


def test_a_process_of_another_machine_is_named_with_its_machine(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text(f"4711 on {platform.node()}")
    assert holder(Folder(tmp_path), "lock") == "4711"
    (tmp_path / "lock").write_text("4711 on node-7.cluster")
    assert in_use(Folder(tmp_path)) == f"{tmp_path} is in use by process 4711 on node-7.cluster; wait for it or stop it"


def test_a_disk_that_has_no_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(descriptor: int, how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    (tmp_path / "lock").touch()
    monkeypatch.setattr(fcntl, "flock", flock)
    expected = f"{tmp_path / 'lock'}: expected a file system on which files can be locked"
    for use in (Lock.take, is_held, take_or_refuse):
        with pytest.raises(RefusedPathError, match=rf"^{re.escape(expected)} \(flock\), got .* No locks available$"):
            use(Folder(tmp_path), "lock")
