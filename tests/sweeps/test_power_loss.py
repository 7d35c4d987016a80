"""A study after the power went, at any moment: what a sweep was told is there, and the study can be worked on.

SQLite's own calls are taken down by a file system of APSW, which wraps the same library: it is given the statements
that Optuna gave.
"""

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import optuna
import pytest

from palestra.storage import disk
from palestra.storage.disk import Folder
from palestra.sweeps import storages
from palestra.sweeps.folder import SweepFolder
from palestra.sweeps.journal import JournalFile
from palestra.sweeps.storages import SQLiteConfig
from palestra.sweeps.stored import require_sound
from palestra.sweeps.study import SweepStudy
from tests.run.power_loss import ROOT, Cut, Put, RecordingDisk, State, Sync, Write, states_after_power_loss
from tests.sweeps.ended import JOURNAL, ended_sweep

METHODS = ("claim", "point", "note", "fail", "complete")  # after each of them, what it told must be safe


@pytest.fixture
def marking(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A log into which each of these methods puts how many times they have been called."""
    log: list[Any] = []

    def marked(method: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any) -> Any:
            result = method(*args)
            log.append(len([mark for mark in log if isinstance(mark, int)]))
            return result

        return called

    for name in METHODS:
        monkeypatch.setattr(SweepStudy, name, marked(getattr(SweepStudy, name)))
    return log


# ---- the journal ---------------------------------------------------------------------------------------------------


def test_a_journal_holds_what_was_told_before_the_power_went(
    marking: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "j").mkdir()
    recording = RecordingDisk(tmp_path / "j")
    recording.log = marking
    whole, append = [], JournalFile.append_logs

    def appended(journal: JournalFile, logs: list[dict[str, Any]]) -> None:
        append(journal, logs)
        whole.extend(logs)
        marking.append(("lines", len(whole)))

    monkeypatch.setattr(disk, "DISK", recording)
    monkeypatch.setattr(JournalFile, "append_logs", appended)
    ended_sweep(tmp_path, storage=JOURNAL | {"path": str(tmp_path / "j/study.journal")})
    num_states = 0
    for marks, state in states_after_power_loss(marking, most=12):
        state.put_at(tmp_path / "state")
        journal = JournalFile(Folder(tmp_path / "state"), "study.journal")
        journal.make()
        told = max((mark[1] for mark in marks if isinstance(mark, tuple)), default=0)
        found = journal.read_logs(0)
        assert found in (whole[:told], whole[: told + 1])
        append(journal, [{"goes": "on"}])
        assert JournalFile(journal.folder, journal.name).read_logs(0) == [*found, {"goes": "on"}]
        shutil.rmtree(tmp_path / "state")
        num_states += 1
    assert num_states > 90
    assert len(whole) > 15


# ---- SQLite --------------------------------------------------------------------------------------------------------


class RecordingFiles(apsw.VFS):
    """The file system of this machine for SQLite, whose changes it takes down as RecordingDisk does."""

    def __init__(self, log: list[Any]) -> None:
        self.log, self.numbers, self.next = log, dict[str, int](), ROOT + 1
        super().__init__("recording", "")

    def xOpen(self, name: Any, flags: list[int]) -> "RecordingFile":  # noqa: N802
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        is_new = not Path(path).exists()
        file = RecordingFile(self, path, flags)
        if is_new:
            self.numbers[path] = file.number = self.next
            self.next += 1
            self.log.append(Put((ROOT,), ((ROOT, Path(path).name, file.number),), new_file=file.number))
            file.waits_for_name = path.endswith("-journal")
        file.number = self.numbers[path]
        return file

    def xDelete(self, path: str, syncs_folder: bool) -> None:  # noqa: N802
        super().xDelete(path, syncs_folder)
        self.log.append(Put((ROOT,), ((ROOT, Path(path).name, None),)))
        del self.numbers[path]
        if syncs_folder:
            self.log.append(Sync(ROOT))


class RecordingFile(apsw.VFSFile):
    """waits_for_name: whether SQLite syncs the folder together with the file, as it does for new journals."""

    number, waits_for_name = ROOT, False

    def __init__(self, files: RecordingFiles, path: str, flags: list[int]) -> None:
        self.log = files.log
        super().__init__("", path, flags)

    def xWrite(self, content: bytes, offset: int) -> None:  # noqa: N802
        super().xWrite(content, offset)
        half = len(content) // 2
        self.log.append(Write((self.number,), offset, content[:half]))
        self.log.append(Write((self.number,), offset + half, content[half:]))

    def xTruncate(self, length: int) -> None:  # noqa: N802
        super().xTruncate(length)
        self.log.append(Cut((self.number,), length))

    def xSync(self, flags: int) -> None:  # noqa: N802
        super().xSync(flags)
        self.log.append(Sync(self.number))
        if self.waits_for_name:
            self.log.append(Sync(ROOT))
            self.waits_for_name = False


@pytest.fixture
def statements(marking: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What Optuna asks SQLite for in a sweep, with the marks."""
    restrain = storages._restrain

    def restrained(connection: sqlite3.Connection) -> None:
        restrain(connection)
        connection.set_trace_callback(marking.append)

    monkeypatch.setattr(storages, "_restrain", restrained)
    ended_sweep(tmp_path)
    return list(marking)


def told(file: Path) -> list[Any]:
    """The rows of a study. Reading them restores what a transaction had changed that was not finished."""
    with closing(sqlite3.connect(file)) as reader:
        assert reader.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        tables = ("trials", "trial_params", "trial_values", "trial_user_attributes", "study_user_attributes")
        return [row for table in tables for row in reader.execute(f"SELECT * FROM {table} ORDER BY 1")]


def replayed(statements: list[Any], tmp_path: Path, most: int) -> Iterator[tuple[list[Any], State, list[list[Any]]]]:
    """What the disk may hold: with the marks, and the rows at each mark."""
    (tmp_path / "replay").mkdir()
    log: list[Any] = []
    files = RecordingFiles(log)
    rows = []
    with closing(apsw.Connection(str(tmp_path / "replay/study.db"), vfs="recording")) as connection:
        for statement in statements:
            if isinstance(statement, str):
                list(connection.execute(statement))
            else:
                log.append(statement)
                if isinstance(statement, int):
                    rows.append(told(tmp_path / "replay/study.db"))
    del files
    for marks, state in states_after_power_loss(log, most):
        yield marks, state, rows


def require_all(statements: list[Any], tmp_path: Path, most: int) -> int:
    """How many states there are; each has at least what was told at its last mark."""
    num_states = 0
    for marks, state, rows in replayed(statements, tmp_path, most):
        state.put_at(tmp_path / "state")
        if marks:
            found = told(tmp_path / "state/study.db")
            known = rows[len(marks) - 1 : len(marks) + 1]  # a mark may be reached with its last sync
            assert found in known or len(known[0]) < len(found) < len(known[-1])
        shutil.rmtree(tmp_path / "state")
        num_states += 1
    return num_states


def test_a_study_in_sqlite_holds_what_was_told_before_the_power_went(statements: list[Any], tmp_path: Path) -> None:
    assert require_all(statements, tmp_path, most=4) > 200


def test_a_sync_that_is_left_out_is_found(statements: list[Any], tmp_path: Path) -> None:
    """That the replay has teeth: as SQLite is by default, it does not wait until a journal's name is gone."""
    with pytest.raises(AssertionError):
        require_all([entry for entry in statements if entry != "PRAGMA synchronous = EXTRA"], tmp_path, most=16)


def test_a_sweep_goes_on_with_a_study_after_a_power_loss(statements: list[Any], tmp_path: Path) -> None:
    states = [(marks, state) for marks, state, _ in replayed(statements, tmp_path, most=2) if marks]
    for marks, state in states[:: len(states) // 5]:
        shutil.copytree(tmp_path / "s", tmp_path / "again")
        for path, content in state.tree():
            assert content is not None
            (tmp_path / "again" / path).write_bytes(content)
        folder = SweepFolder.open(tmp_path / "again")
        shutil.rmtree(tmp_path / "again/trials")
        study = optuna.load_study(
            study_name="sweep", storage=SQLiteConfig(name="sqlite").open(folder.root, for_writing=True)
        )
        assert len(require_sound(folder, study, "max")) >= len(marks) // 4
        shutil.rmtree(tmp_path / "again")
