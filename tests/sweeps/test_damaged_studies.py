"""Studies that somebody has damaged or forged: every command says so in a line, and touches nothing else.

Covers palestra.sweeps.stored.
"""

import os
import random
import shutil
import sqlite3
import struct
import time
from contextlib import closing, suppress
from pathlib import Path

import pytest

from palestra.storage.disk import MAX_CONFIG_BYTES
from palestra.sweeps import storages
from tests.sweeps.ended import JOURNAL, ended_sweep, told

JOURNAL_MAGIC = bytes.fromhex("d9d505f920a163d7")  # of SQLite


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ended_sweep(tmp_path_factory.mktemp("sqlite"))


@pytest.fixture(scope="module")
def original_journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ended_sweep(tmp_path_factory.mktemp("journal"), storage=JOURNAL)


@pytest.fixture
def sweep(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "s"))


@pytest.fixture
def of_journal(original_journal: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original_journal, tmp_path / "j"))


def exit_codes(sweep: Path) -> list[int]:
    """Of commands that read the study."""
    return [told(command, sweep).exit_code for command in ("resume", "trials")]


def test_a_sound_study_is_read(sweep: Path, of_journal: Path) -> None:
    assert "trial 2, return/agent 3" in told("resume", sweep).output
    assert exit_codes(sweep) == [1, 0], "for a trial has failed"


# ---- forged rows ---------------------------------------------------------------------------------------------------

ATTRIBUTE = "UPDATE trial_user_attributes SET value_json = '{}' WHERE key = '{}'"
FORGED = [
    *(f"UPDATE trials SET {change}" for change in ("state = 'NOPE'", "number = 7", "number = NULL", "study_id = 9")),
    "UPDATE trials SET state = 'COMPLETE'",
    "UPDATE trials SET datetime_start = 'x'",
    "DELETE FROM trial_values",
    *(f"UPDATE trial_values SET {change}" for change in ("value = NULL", "value = 'x'", "value_type = 'NOPE'")),
    "UPDATE trial_values SET objective = 1",
    "INSERT INTO trial_values SELECT NULL, trial_id, 1, value, value_type FROM trial_values",
    *(f"UPDATE trial_params SET param_value = {value}" for value in ("99", "-1", "'x'", "NULL")),
    *(f"UPDATE trial_params SET distribution_json = '{text}'" for text in ("x", "[]", "{}", "null")),
    """UPDATE trial_params SET distribution_json = '{"name": "FloatDistribution", "attributes": {"low": 5}}'""",
    """UPDATE trial_params SET distribution_json =
       '{"name": "CategoricalDistribution", "attributes": {"choices": ["a"]}}'""",
    "UPDATE trial_params SET param_name = 'nokey' || param_id",
    "DELETE FROM trial_params",
    *(ATTRIBUTE.format(text, key) for text in ("x", "[1]", "{}", "null") for key in ("values", "counts", "folder")),
    *(ATTRIBUTE.format(text, "failure") for text in ("x", "[1]", "3")),
    ATTRIBUTE.format('{"0": "x"}', "values"),
    ATTRIBUTE.format('{"0": {"1": 2}}', "values"),
    ATTRIBUTE.format("-1e999", "seconds"),
    *(ATTRIBUTE.format(text, "counts") for text in ('{"env_steps": NaN}', '{"env_steps": "x"}')),
    *(f"UPDATE study_user_attributes SET value_json = '{text}'" for text in ("x", "[1]", "3", "null", "{}")),
    "DELETE FROM study_user_attributes",
    *(f"UPDATE study_directions SET direction = '{text}'" for text in ("NOPE", "NOT_SET", "MINIMIZE")),
    "INSERT INTO study_directions SELECT NULL, 'MINIMIZE', study_id, 1 FROM study_directions",
    "DELETE FROM study_directions",
    "INSERT INTO trial_system_attributes SELECT NULL, trial_id, 'x', 'x' FROM trials",
    "INSERT INTO trial_intermediate_values SELECT NULL, trial_id, 'x', 'x', 'NOPE' FROM trials",
    "UPDATE alembic_version SET version_num = 'x'",
    "DELETE FROM alembic_version",
    "UPDATE version_info SET schema_version = 1",
    "DELETE FROM studies",
    "UPDATE studies SET study_name = 'other'",
    "DROP TABLE trial_params",
]


@pytest.mark.parametrize("statement", FORGED)
def test_a_forged_row_ends_no_command_in_a_traceback(statement: str, sweep: Path) -> None:
    with closing(sqlite3.connect(sweep / "study.db")) as writer, writer:
        writer.execute("PRAGMA foreign_keys = OFF")
        writer.execute(statement)
    exit_codes(sweep)


ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT"
COLUMNS = (
    "x AS trial_id, x AS number, 1 AS study_id, 'FAIL' AS state, NULL AS datetime_start, NULL AS datetime_complete"
)
HIDDEN = {
    "a view": f"ALTER TABLE trials RENAME TO t; CREATE VIEW trials AS {ENDLESS} {COLUMNS} FROM n;",
    "a trigger": "CREATE TRIGGER t AFTER INSERT ON trials BEGIN DELETE FROM studies WHERE 1 < (SELECT 1); END;",
    "a computed column": "ALTER TABLE trials ADD COLUMN more AS (hex(state) LIKE '%0%1');",
    "a column with a check": "ALTER TABLE trials ADD COLUMN more INTEGER CHECK (instr(state, 'x') < 9);",
    "an index of what is computed": "CREATE INDEX more ON trials (hex(state));",
    "an index of what an operator computes": "CREATE INDEX more ON trials (state LIKE '%a%b');",
    "an index of some rows": "CREATE INDEX more ON trials (state) WHERE hex(state) LIKE '%0%1';",
    "a virtual table": "DROP TABLE trial_params; CREATE VIRTUAL TABLE trial_params USING fts5(a);",
}


@pytest.mark.parametrize("what", HIDDEN)
def test_a_study_with_more_than_tables_is_refused_before_it_is_asked(what: str, sweep: Path) -> None:
    with closing(sqlite3.connect(sweep / "study.db")) as writer:
        writer.executescript(HIDDEN[what])
    assert exit_codes(sweep) == [2, 2]
    assert "expected tables and indexes alone, got" in told("trials", sweep).output


def test_a_study_that_computes_for_ever_is_given_up(sweep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storages, "MOST_S", 0.5)
    monkeypatch.setattr(storages, "_require_tables_alone", lambda connection, path: None)
    with closing(sqlite3.connect(sweep / "study.db")) as writer:
        writer.executescript(HIDDEN["a view"])
    began = time.monotonic()
    assert "it takes more than" in told("resume", sweep).output
    assert time.monotonic() - began < 60


# ---- damaged files -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.7, 0.99])
def test_a_truncated_study_is_named(share: float, sweep: Path, of_journal: Path) -> None:
    for file in (sweep / "study.db", of_journal / "study.journal"):
        content = file.read_bytes()
        file.write_bytes(content[: int(share * len(content))])
        exit_codes(file.parent)


def test_a_lost_study_begins_no_trial_again(sweep: Path, of_journal: Path) -> None:
    for file in (sweep / "study.db", of_journal / "study.journal"):
        (file.parent / "trials/0000/notes.txt").write_text("mine")
        file.unlink()
        assert exit_codes(file.parent) == [2, 2]
        assert "because trials/ has so many, got none" in told("resume", file.parent).output
        assert sorted(path.name for path in (file.parent / "trials").rglob("*")) == [
            "0000",
            "0001",
            "0002",
            "notes.txt",
        ]


def test_a_file_that_is_larger_than_any_config_is_not_read_whole(sweep: Path) -> None:
    os.truncate(sweep / "sweep.yml", MAX_CONFIG_BYTES + 1)
    for command in ("resume", "trials"):
        assert "expected at most" in told(command, sweep).output


def test_garbage_is_named(sweep: Path, of_journal: Path) -> None:
    (sweep / "study.db").write_bytes(random.Random(0).randbytes(10_000))
    assert exit_codes(sweep) == [2, 2]
    (of_journal / "study.journal").write_bytes(b"\n".join(random.Random(0).randbytes(50) for _ in range(9)) + b"\n")
    assert exit_codes(of_journal) == [2, 2]


def test_flipped_bytes_end_no_command_in_a_traceback(sweep: Path, of_journal: Path) -> None:
    draw = random.Random(1)
    for file in (sweep / "study.db", of_journal / "study.journal"):
        whole = file.read_bytes()
        for _ in range(12):
            content = bytearray(whole)
            for _ in range(20):
                content[draw.randrange(len(content))] = draw.randrange(256)
            file.write_bytes(content)
            exit_codes(file.parent)


# ---- files that lead elsewhere -------------------------------------------------------------------------------------


def journal_naming(victim: Path) -> bytes:
    """A rollback journal that restores nothing, and names a super-journal, which SQLite deletes after that."""
    header = JOURNAL_MAGIC + struct.pack(">5I", 0, 0, 1, 512, 4096)  # records, nonce, pages, sector, page
    name = str(victim).encode()
    end = struct.pack(">I", 1) + name + struct.pack(">2I", len(name), sum(name)) + JOURNAL_MAGIC
    return header.ljust(512, b"\0") + end


def test_a_journal_that_names_a_file_of_the_users_deletes_nothing(sweep: Path, tmp_path: Path) -> None:
    victim = tmp_path / "thesis.tex"
    victim.write_text("mine")
    (sweep / "study.db-journal").write_bytes(journal_naming(victim))
    before = (sweep / "study.db").read_bytes()
    assert exit_codes(sweep) == [2, 2]
    assert "names another file, which SQLite would delete" in told("resume", sweep).output
    assert victim.read_text() == "mine"
    assert (sweep / "study.db").read_bytes() == before


def test_sqlite_would_delete_that_file(sweep: Path, tmp_path: Path) -> None:
    """That the journal above has teeth."""
    victim = tmp_path / "thesis.tex"
    victim.write_text("mine")
    (sweep / "study.db-journal").write_bytes(journal_naming(victim))
    with closing(sqlite3.connect(sweep / "study.db")) as reader, suppress(sqlite3.Error):
        reader.execute("SELECT * FROM studies").fetchall()
    assert not victim.exists()


FILES = ["study.db", "study.db-journal", "study.db-wal", "study.db-shm"]


@pytest.mark.parametrize("name", [*FILES, "study.journal"])
@pytest.mark.parametrize("kind", ["link", "hard link", "FIFO", "folder", "dangling link"])
def test_what_is_no_plain_file_of_the_folder_is_neither_opened_nor_changed(
    kind: str, name: str, sweep: Path, of_journal: Path, tmp_path: Path
) -> None:
    folder = of_journal if name == "study.journal" else sweep
    file, outside = folder / name, tmp_path / "outside"
    outside.write_bytes(content := file.read_bytes() if file.exists() else b"mine")
    file.unlink(missing_ok=True)
    match kind:
        case "link":
            file.symlink_to(outside)
        case "hard link":
            file.hardlink_to(outside)
        case "FIFO":
            os.mkfifo(file)
        case "folder":
            file.mkdir()
        case _:
            file.symlink_to(tmp_path / "nowhere")
    before = sorted(path.name for path in tmp_path.rglob("*"))
    resumed, listed = exit_codes(folder)
    assert resumed == 2
    assert listed == (0 if kind == "hard link" and name in ("study.db", "study.journal") else 2), "reading harms none"
    assert outside.read_bytes() == content
    assert sorted(path.name for path in tmp_path.rglob("*")) == before


def test_a_lock_that_optuna_left_is_waited_for_by_nobody(of_journal: Path) -> None:
    """It makes a link as its lock; a moved folder, and one whose process was killed, still has it."""
    (of_journal / "study.journal.lock").symlink_to("/nowhere/study.journal")
    assert exit_codes(of_journal) == [1, 0]
