"""The journal of a study: whole lines alone count, and a torn end is cut off before anything is added."""

import json
import multiprocessing
import os
from pathlib import Path

import optuna
import pytest

from palestra.storage import disk
from palestra.storage.disk import Folder, RunFolderError
from palestra.storage.lock import lock_within
from palestra.sweeps import journal as journal_module
from palestra.sweeps.journal import BLOCK, JournalFile

TORN = [
    b'{"op_code":4,"wor',  # a disk that was full
    b'\0\0\0\0":4}\n',  # a power cut that kept the second half alone
    b"\0" * 99,
    b"12\n",
    b"[1]\n",
    b'"text"\n',
    b"[" * 100_000 + b"\n",
    b"\xff\xfe\n",
    b"\n",
]


@pytest.fixture
def journal(tmp_path: Path) -> JournalFile:
    made = JournalFile(Folder(tmp_path), "study.journal")
    made.append_logs([{"number": 0}, {"number": 1, "text": "x" * 2 * BLOCK}])
    return made


@pytest.mark.parametrize("torn", TORN)
def test_a_torn_end_is_no_line_and_is_cut_off_before_the_next_is_added(torn: bytes, journal: JournalFile) -> None:
    whole = journal.path.read_bytes()
    journal.path.write_bytes(whole + torn)
    other = JournalFile(journal.folder, journal.name)
    assert [log["number"] for log in other.read_logs(0)] == [0, 1]
    assert other.read_logs(2) == []
    assert journal.path.read_bytes() == whole + torn, "who reads changes nothing"
    other.append_logs([{"number": 2}])
    assert journal.path.read_bytes() == whole + b'{"number":2}\n'
    assert other.read_logs(2) == journal.read_logs(2) == [{"number": 2}]


@pytest.mark.parametrize("torn", TORN)
def test_a_journal_that_is_torn_in_its_first_line_is_empty(torn: bytes, tmp_path: Path) -> None:
    journal = JournalFile(Folder(tmp_path), "study.journal")
    journal.path.write_bytes(torn)
    assert journal.read_logs(0) == []
    journal.append_logs([{"number": 0}])
    assert journal.path.read_bytes() == b'{"number":0}\n'


def test_a_damaged_line_before_the_last_is_named(journal: JournalFile) -> None:
    journal.path.write_bytes(b'{"number":0}\n{"num\n{"number":2}\n')
    with pytest.raises(RunFolderError, match=r"study\.journal is damaged in line 2"):
        JournalFile(journal.folder, journal.name).read_logs(0)


def test_an_end_of_any_size_is_not_held_in_memory(journal: JournalFile, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, sizes, read = journal.path.read_bytes(), [], os.pread

    def noted(descriptor: int, length: int, offset: int) -> bytes:
        sizes.append(length)
        return read(descriptor, length, offset)

    os.truncate(journal.path, 4 * disk.PIECE)
    monkeypatch.setattr(os, "pread", noted)
    other = JournalFile(journal.folder, journal.name)
    assert len(other.read_logs(0)) == 2
    other.append_logs([{"number": 2}])
    assert journal.path.read_bytes() == whole + b'{"number":2}\n'
    assert max(sizes) <= disk.PIECE


def test_a_journal_without_an_end_is_refused(journal: JournalFile) -> None:
    os.truncate(journal.path, 1 << 40)
    with pytest.raises(RunFolderError, match="expected at most 1073741824 bytes"):
        JournalFile(journal.folder, journal.name).read_logs(0)


def test_a_full_disk_leaves_the_journal_as_it_was(journal: JournalFile, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(disk.Disk):
        def write(self, file: int, content: bytes | memoryview) -> int:
            return super().write(file, content[:5]) if len(content) > 5 else self.fail()

        def fail(self) -> int:
            raise OSError(28, "No space left on device")

    before = journal.path.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(disk, "DISK", Full())
        with pytest.raises(OSError, match="No space left"):
            journal.append_logs([{"number": 2}])
    assert journal.path.read_bytes() == before
    journal.append_logs([{"number": 2}])
    assert journal.read_logs(2) == [{"number": 2}]


def add(path: Path, who: int) -> None:
    journal = JournalFile(Folder(path.parent), path.name)
    for number in range(50):
        journal.append_logs([{"who": who, "number": number}])


def test_lines_of_several_processes_stay_whole(journal: JournalFile) -> None:
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=add, args=(journal.path, who)) for who in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    logs = journal.read_logs(2)
    assert sorted((log["who"], log["number"]) for log in logs) == [(who, n) for who in range(3) for n in range(50)]
    assert [log["number"] for log in logs if log["who"] == 1] == list(range(50))
    assert [json.loads(line) for line in journal.path.read_bytes().splitlines()][2:] == logs


def test_a_journal_that_is_locked_for_ever_is_named(journal: JournalFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "WAIT_S", 0.1)
    holder = journal.folder.append(journal.name)
    assert lock_within(holder, journal.path, 0.0)
    with pytest.raises(RunFolderError, match="has been locked by another process"):
        journal.append_logs([{"number": 2}])
    holder.close()
    journal.append_logs([{"number": 2}])


def test_optunas_own_storage_reads_it(tmp_path: Path) -> None:
    (ours := JournalFile(Folder(tmp_path), "study.journal")).make()
    storage = optuna.storages.JournalStorage(ours)
    study = optuna.create_study(study_name="s", storage=storage)
    study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=3)
    theirs = optuna.storages.journal.JournalFileBackend(str(tmp_path / "study.journal"))
    again = optuna.load_study(study_name="s", storage=optuna.storages.JournalStorage(theirs))
    assert [trial.values for trial in again.trials] == [trial.values for trial in study.trials]
    assert os.listdir(tmp_path) == ["study.journal"]
