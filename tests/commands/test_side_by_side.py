"""`palestra train FILE --seeds 0..4 --at 2`: the same runs as one after the other, stopped ones go on, and a folder in
any other state is refused and stays."""

import json
import os
import re
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from palestra.commands.failures import silent
from palestra.commands.side_by_side import resume_side_by_side, train_side_by_side
from palestra.config import ConfigError, load_yaml
from palestra.run.kinds import read_config
from palestra.runtime.threads import available_cores
from palestra.storage.disk import Folder, RunFolderError
from palestra.storage.lock import Lock
from palestra.sweeps.folder import runs_in
from palestra.sweeps.places import LocalPlace
from tests.sweeps.made_runs import made_runs, tree
from tests.sweeps.small_runs import done, palestra, write_base


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return write_base(tmp_path)


def records(run: Path) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (run / "records.jsonl").read_text().splitlines()]
    return [{key: value for key, value in record.items() if key != "clock"} for record in found]


def test_runs_side_by_side_are_those_in_sequence_and_go_on_after_a_signal(base: Path, tmp_path: Path) -> None:
    at = min(2, available_cores())
    command = ("train", base, "--seeds", "3,5", "--run", "side", "--at", at)
    process = palestra(*command, cwd=tmp_path)
    while not (tmp_path / "side/seed-3/checkpoints/latest").exists():
        time.sleep(0.02)
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert "to go on: palestra resume side\n" in output
    shutil.rmtree(tmp_path / "side/seed-5", ignore_errors=True)
    (tmp_path / "side/seed-5/checkpoints").mkdir(parents=True)  # as if it had been stopped before it was a run
    output = done("resume", "side", cwd=tmp_path)
    assert "seed 3: finished" in output
    assert "Over 2 seeds (3, 5)" in output
    done("train", base, "--seeds", "3,5", "--run", "one", "--quiet", cwd=tmp_path)
    for seed in (3, 5):
        assert records(tmp_path / f"side/seed-{seed}") == records(tmp_path / f"one/seed-{seed}")
    assert runs_in(tmp_path / "side") == [tmp_path / "side/seed-3", tmp_path / "side/seed-5"]
    message = done("resume", "one", cwd=tmp_path, code=2).splitlines()[-1]
    new = "to begin a seed that has no run: palestra train one/seed-3/config.yml --seeds SEED --run one"
    assert message == f"one holds 2 runs, none of which was stopped; {new}"
    done("train", "one/seed-3/config.yml", "--seeds", "4", "--run", "one", "--quiet", cwd=tmp_path)
    for seed in (3, 5):  # as if they had been stopped
        file = tmp_path / f"one/seed-{seed}/records.jsonl"
        file.write_text("".join(file.read_text().splitlines(keepends=True)[:3]))
    message = done("resume", "one", cwd=tmp_path, code=2).splitlines()[-1]
    ways = "palestra resume one/seed-3 && palestra resume one/seed-5"
    assert message == f"one holds 3 runs; to go on with what was stopped: {ways}; {new}"
    assert "Over 2 seeds (3, 5)" in done(*command, cwd=tmp_path)  # the same command goes on, too
    other = done(*command, "gamma=0.5", cwd=tmp_path, code=2)
    told = (
        r"does not hold runs of this config: expected the one in which .*gamma is 0\.5, got one in which it is 0\.\d+\n"
    )
    assert re.search(rf"side exists already, and {told}", other)


def test_seeds_one_after_the_other_go_on_by_the_same_command_after_a_kill(base: Path, tmp_path: Path) -> None:
    done("train", base, "--seeds", "3,5", "--run", "whole", "--quiet", cwd=tmp_path)
    command = ("train", base, "--seeds", "3,5", "--run", "killed")
    process = palestra(*command, cwd=tmp_path)
    while not (tmp_path / "killed/seed-5/checkpoints/latest").exists():
        time.sleep(0.02)
        assert process.poll() is None
    process.kill()
    process.communicate(timeout=60)
    other = done("train", base, "--seeds", "1,3", "--run", "killed", "gamma=0.5", cwd=tmp_path, code=2)
    assert not (tmp_path / "killed/seed-1").exists()  # the folders of all are looked at before the first begins
    assert "killed/seed-3: expected the run in which " in other
    assert "gamma is 0.5, got one in which it is 0.9" in other
    output = done("train", base, "--seeds", "3,5,6", "--run", "killed", cwd=tmp_path)
    assert "Over 3 seeds (3, 5, 6)" in output
    for seed in (3, 5):
        assert records(tmp_path / f"killed/seed-{seed}") == records(tmp_path / f"whole/seed-{seed}")


def test_a_run_that_is_killed_is_named_and_the_others_end(base: Path, tmp_path: Path) -> None:
    process = palestra("train", base, "--seeds", "0,1", "--run", "side", "--at", 1, cwd=tmp_path)
    while not (tmp_path / "side/seed-0/lock").exists() or not (tmp_path / "side/seed-0/lock").read_text():
        time.sleep(0.02)
        assert process.poll() is None
    os.kill(int((tmp_path / "side/seed-0/lock").read_text().split()[0]), signal.SIGKILL)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "seed 0: failed: its process ended with SIGKILL" in output
    assert "seed 1: finished" in output


def test_more_runs_than_cores_and_no_seeds_are_refused(base: Path, tmp_path: Path) -> None:
    most = available_cores()
    output = done("train", base, "--seeds", "0..9", "--at", most + 1, cwd=tmp_path, code=2)
    assert f"--at: expected at most {most}" in output
    assert "--at: expected it together with --seeds" in done("train", base, "--at", 1, cwd=tmp_path, code=2)
    assert [path.name for path in tmp_path.iterdir()] == ["base.yml"]


# ---- a folder in any state, with runs that are made in a moment -----------------------------------------------------


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The arguments of the jobs that were started."""
    jobs, start = made_runs()
    monkeypatch.setattr(LocalPlace, "start", start)
    return jobs


@pytest.fixture
def side(base: Path, started: list[list[str]], tmp_path: Path) -> Path:
    """The finished runs of two seeds."""
    train(base, tmp_path / "side")
    assert [arguments[0] for arguments in started] == ["train", "train"]
    started.clear()
    return tmp_path / "side"


def train(base: Path, folder: Path) -> None:
    train_side_by_side(read_config(base), "base", folder, [0, 1], 1, silent)


def away(path: Path) -> None:
    path.rename(path.parent.parent / "away")
    path.symlink_to(path.parent.parent / "away")


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


REFUSED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a run without its config": (lambda side: (side / "seed-1/config.yml").unlink(), "seed-1: .*config.yml is missing"),
    "a link to a run": (lambda side: away(side / "seed-1"), "seed-1: expected a folder of a run, got a symbolic link"),
    "two runs in each other's place": (
        lambda side: [(side / a).rename(side / b) for a, b in (("seed-0", "x"), ("seed-1", "seed-0"), ("x", "seed-1"))],
        "seed-0: expected the run in which seed is 0, got one in which it is 1",
    ),
    "a run that is a file": (lambda side: (shutil.rmtree(side / "seed-1"), (side / "seed-1").touch()), "got a file"),
    "base.yml a pipe": (lambda side: pipe(side / "base.yml"), "base.yml is no regular file"),
    "base.yml a link": (lambda side: away(side / "base.yml"), "base.yml is a symbolic link"),
    "no base.yml": (
        lambda side: (side / "base.yml").unlink(),
        "side exists already, and does not hold runs of this|base.yml",
    ),
    "a link for a lock": (lambda side: away(side / "lock"), "lock is a symbolic link"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_folder_in_which_anything_else_stands_is_refused_and_stays(
    case: str, side: Path, base: Path, started: list[list[str]]
) -> None:
    change, told = REFUSED[case]
    change(side)
    before = tree(side.parent)
    for again in (lambda: train(base, side), lambda: resume_side_by_side(side, False, silent)):
        with pytest.raises((RunFolderError, ConfigError), match=told):
            again()
        assert {**before, "side/lock": ""} == {**tree(side.parent), "side/lock": ""}
    assert started == []


@pytest.mark.parametrize("name", ["seeds.yml", "seed-1"])
def test_a_link_in_the_place_of_a_file_that_palestra_writes_is_not_written_through(
    name: str, side: Path, base: Path, started: list[list[str]]
) -> None:
    away(side / name)
    before = tree(side.parent / "away") or (side.parent / "away").read_bytes()
    with pytest.raises(RunFolderError, match=f"{name}.* a symbolic link"):
        train(base, side)
    assert (tree(side.parent / "away") or (side.parent / "away").read_bytes()) == before
    assert started == []


def test_a_second_command_is_refused_names_the_first_and_touches_nothing(
    side: Path, base: Path, started: list[list[str]]
) -> None:
    (side / "seed-1/config.yml").unlink()  # as a run that the first one is making
    (side / "seed-1/run.json").unlink()
    lock = Lock.take(Folder(side), "lock")
    assert lock is not None
    before = tree(side)
    told = f"^{re.escape(str(side))} is in use by process {os.getpid()}; wait for it or stop it$"
    for again in (lambda: train(base, side), lambda: resume_side_by_side(side, False, silent)):
        with pytest.raises(RunFolderError, match=told):
            again()
    assert tree(side) == before
    assert started == []
    lock.free()


@pytest.mark.parametrize("seeds", [[0, 1, 0], list(range(10_001))])
def test_seeds_that_no_command_would_take_are_refused(seeds: list[int], side: Path, started: list[list[str]]) -> None:
    (side / "seeds.yml").write_text(f"seeds: {seeds}\nat: 1\n")
    before = tree(side)
    with pytest.raises(ConfigError, match=r"seeds(\.2)?: expected (each value once, got 0 again|.*10000)"):
        resume_side_by_side(side, False, silent)
    assert tree(side) == before
    assert started == []


@pytest.mark.parametrize("left", [[], ["lock"], ["lock", ".base.yml.7.tmp"], ["lock", "base.yml", ".seeds.yml.7.tmp"]])
def test_what_was_killed_before_it_had_its_files_goes_on_by_the_same_command(
    left: list[str], base: Path, started: list[list[str]], tmp_path: Path
) -> None:
    (tmp_path / "side").mkdir()
    for name in left:
        (tmp_path / "side" / name).write_bytes(base.read_bytes() if name == "base.yml" else b"")
    train(base, tmp_path / "side")
    assert [arguments[-2] for arguments in started] == [str(tmp_path / "side/seed-0"), str(tmp_path / "side/seed-1")]
    assert load_yaml(tmp_path / "side/seeds.yml") == {"seeds": [0, 1], "at": 1}
    started.clear()
    resume_side_by_side(tmp_path / "side", False, silent)
    assert [arguments[0] for arguments in started] == ["resume", "resume"]


@pytest.mark.parametrize("name", ["thesis.tex", "seeds.yml", "seed-0/config.yml"])
def test_a_folder_of_somebody_elses_stays_as_it_is(
    name: str, base: Path, started: list[list[str]], tmp_path: Path
) -> None:
    (tmp_path / "side" / name).parent.mkdir(parents=True)
    (tmp_path / "side" / name).write_text("mine")
    before = tree(tmp_path)
    with pytest.raises(RunFolderError, match="side exists already, and does not hold runs of this config"):
        train(base, tmp_path / "side")
    assert tree(tmp_path) == before
    assert started == []


def test_a_damaged_record_is_told_and_costs_no_summary(
    side: Path, base: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (side / "seed-1/records.jsonl").open("a") as file:
        file.write('{"kind": "evaluation"}\n{"torn\n')
    train_side_by_side(read_config(base), "base", side, [0, 1], 1, Console(width=1000))
    told = capsys.readouterr().out
    for number in (2, 3):
        assert f"seed-1/records.jsonl, line {number}: " in told
    assert "Over 2 seeds (0, 1)" in told
