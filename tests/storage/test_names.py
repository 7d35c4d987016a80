"""Names of folders and files that are long, or no UTF-8."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from palestra.run.tables import Row, Rows, run_name, to_csv, to_parquet
from palestra.storage.disk import Folder, RunFolderError, write_file
from palestra.sweeps.folder import SweepFolder, is_sweep_folder
from palestra.sweeps.storages import SQLiteConfig

NO_UTF8 = os.fsdecode(b"d\xff")
LONGEST = "n" * 255


def test_a_file_and_a_sweep_may_have_the_longest_name_there_is(tmp_path: Path) -> None:
    Folder(tmp_path).write(f"{LONGEST[:-1]}f", b"content")
    assert (tmp_path / f"{LONGEST[:-1]}f").read_bytes() == b"content"
    SweepFolder.create(tmp_path / LONGEST, "space: {}\n", {})
    assert is_sweep_folder(tmp_path / LONGEST)
    with pytest.raises(RunFolderError, match=r"nn cannot be made: File name too long \(at most 255 bytes\)$"):
        SweepFolder.create(tmp_path / f"{LONGEST}n", "space: {}\n", {})
    assert len(list(tmp_path.iterdir())) == 2, "nothing else is left"


def test_a_study_lies_in_a_folder_whose_name_is_no_utf8(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    folder = Folder(tmp_path).below(NO_UTF8).make()
    assert SQLiteConfig(name="sqlite").open(folder, for_writing=True).get_all_studies() == []
    assert os.listdir(os.fsencode(folder.path)) == [b"study.db"]
    assert SQLiteConfig(name="sqlite").open(folder, for_writing=False).get_all_studies() == []


def test_tables_and_pages_name_a_run_whose_folder_is_no_utf8(tmp_path: Path) -> None:
    run = tmp_path / NO_UTF8
    assert run_name(run) == r"d\udcff"
    rows = Rows(("opt_steps",), [Row(run_name(run), 0, {"opt_steps": 2}, "x", 1.0)])
    assert r"d\udcff,0,2,x,1.0" in to_csv(rows)
    to_parquet(rows)
    write_file(tmp_path / "page", str(run))
    assert (tmp_path / "page").read_text().endswith(r"/d\udcff")


def test_commands_print_what_is_no_utf8_as_escapes() -> None:
    program = (
        "from palestra import cli; cli.main = lambda: print('\\udcff'); from palestra.__main__ import main; main()"
    )
    strict = os.environ | {"PYTHONIOENCODING": "utf-8:strict"}
    done = subprocess.run([sys.executable, "-c", program], env=strict, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("\\udcff\n", "")
