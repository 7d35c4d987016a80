"""What the folder of a run promises."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from palestra.run.branching import unequal_bits
from palestra.storage.disk import RunFolderError, write_bytes
from palestra.storage.facts import machine, run_facts
from palestra.storage.run_folder import RunFolder
from palestra.storage.stored_files import to_json
from tests.forked import Forked
from tests.run.mirroring import run_of


def test_a_new_run_gets_the_number_after_the_largest(tmp_path: Path) -> None:
    for taken in ("dqn-2", "dqn-11", "dqn-x", "dqn-polyhedra-40"):
        (tmp_path / taken).mkdir()
    assert RunFolder.create(tmp_path, "dqn").path == tmp_path / "dqn-12"
    assert RunFolder.create(tmp_path, "ppo").path == tmp_path / "ppo-1"


def test_a_folder_that_another_process_made_in_the_meantime_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for taken in ("dqn-1", "dqn-2"):
        (tmp_path / taken).mkdir()
    monkeypatch.setattr(Path, "iterdir", lambda _: iter(()))  # as listed before the other process made them
    assert RunFolder.create(tmp_path, "dqn").path == tmp_path / "dqn-3"


def test_an_existing_folder_is_never_taken_for_a_new_run(tmp_path: Path) -> None:
    RunFolder.create_at(tmp_path / "deep" / "run")
    with pytest.raises(RunFolderError, match="exists already"):
        RunFolder.create_at(tmp_path / "deep" / "run")


def test_of_two_that_begin_in_one_empty_folder_the_slower_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "run")
    (tmp_path / "run").mkdir()
    runs = [RunFolder.create_at(tmp_path / name, ()) for name in ("run", "link")]
    with runs[0].beginning(()):
        write_bytes(runs[0].config, b"mine")
        with pytest.raises(RunFolderError, match="is in use"), runs[1].beginning(()):
            pass
        runs[0].write_facts(run_of("1"))
    with pytest.raises(RunFolderError, match="link exists already"), runs[1].beginning(()):
        pass
    assert runs[0].config.read_bytes() == b"mine"


def test_a_folder_without_config_is_not_opened_as_a_run(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"not a run.*config\.yml"):
        RunFolder.open(tmp_path)
    created = RunFolder.create(tmp_path, "dqn")
    write_bytes(created.config, b"seed: 1\n")
    assert RunFolder.open(created.path).config.read_text() == "seed: 1\n"


def test_a_file_is_not_opened_as_a_run(tmp_path: Path) -> None:
    (tmp_path / "cart.yml").write_text("seed: 1\n")
    with pytest.raises(RunFolderError, match=r"cart\.yml is not a run: expected the folder of a run, got a file$"):
        RunFolder.open(tmp_path / "cart.yml")


@pytest.mark.parametrize("name", ["", "../up", ".hidden", "a/b"])
def test_a_name_that_leaves_the_folder_of_runs_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(RunFolderError, match="expected a run's name without slashes"):
        RunFolder.create(tmp_path, name)


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.json"
    write_bytes(path, to_json({"a": 1}).encode())

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space"):
        write_bytes(path, to_json({"a": 2}).encode())
    assert json.loads(path.read_text()) == {"a": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_run_facts_name_versions_machine_command_and_of_the_environment_what_rounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "s3cr3t-value")
    monkeypatch.setattr(sys, "argv", ["palestra", "train", "my run.yml"])
    before = machine()
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    machine.cache_clear()
    facts = run_facts()
    told = list(unequal_bits(before, facts["machine"], "machine"))
    assert told == ["machine.MKL_CBWR was None, is COMPATIBLE; equal bits are not promised"]
    machine.cache_clear()
    extras = {"mujoco", "ale-py", "Box2D", "transformers", "tokenizers", "peft", "pyarrow", "jinja2"}
    assert set(facts["versions"]) == {"python", "palestra", "torch", "numpy", "numba", "gymnasium"} | extras
    assert facts["versions"]["torch"].startswith("2.")
    assert facts["machine"]["num_cpus"] == os.cpu_count()
    assert facts["machine"]["processor"]
    assert facts["command"] == "palestra train 'my run.yml'"
    assert "s3cr3t-value" not in json.dumps(facts)


HOLD_LOCK = """
import sys, time
from pathlib import Path
from palestra.storage.run_folder import RunFolder
with RunFolder.open(Path(sys.argv[1])).lock():
    print("locked", flush=True)
    time.sleep(60)
"""


def test_the_lock_admits_one_process_names_it_and_ends_with_a_kill(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "dqn")
    write_bytes(run.config, b"")
    holder = Forked([sys.executable, "-c", HOLD_LOCK, str(run.path)], stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"locked\n"
        with pytest.raises(RunFolderError, match=f"process {holder.pid}"), run.lock():
            pass
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    with run.lock():
        assert run.holds_lock


def test_the_lock_is_free_again_after_its_block(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "dqn")
    with run.lock(), pytest.raises(RunFolderError, match=f"process {os.getpid()}"), RunFolder(run.path).lock():
        pass
    with RunFolder(run.path).lock():
        assert not run.holds_lock


def test_a_folder_whose_run_was_killed_before_it_was_one_is_named(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "dqn")
    write_bytes(run.config, b"seed: 0\n")
    with pytest.raises(RunFolderError, match=r"dqn-1 is not a run: .*dqn-1/run\.json is missing$"):
        RunFolder.open(run.path).facts()
