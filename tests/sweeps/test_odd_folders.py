"""A sweep whose folders are in any state: what is none of its own is refused by name and stays, and the rest is done.

Its runs are made in a moment, by this process.
"""

import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from palestra.config import load_yaml
from palestra.run.kinds import read_config
from palestra.storage.disk import Folder, RunFolderError
from palestra.storage.lock import Lock
from palestra.sweeps import sweep as sweep_module
from palestra.sweeps.config import read_sweep
from palestra.sweeps.display import SweepDisplay
from palestra.sweeps.outcomes import FAILURE, state_of
from palestra.sweeps.places import LocalJob, LocalPlace
from palestra.sweeps.sweep import Sweep
from tests.sweeps.made_runs import made_runs, make_run, tree
from tests.sweeps.small_runs import write_base
from tests.sweeps.test_sweep import SWEEP

GRID = {
    "search": {"name": "grid"},
    "space": {"gamma": {"name": "choice", "values": [0.9, 0.99]}},
    "budget": {"trials": None, "total": None, "minutes": None},
    "seeds": [0, 1],
    "storage": {"name": "journal", "path": None, "study": "s"},
}


class Told(SweepDisplay):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def ended(self, line: str) -> None:
        self.lines.append(line)

    note = ended


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The arguments of the jobs that were started."""
    jobs, start = made_runs()
    monkeypatch.setattr(LocalPlace, "start", start)
    monkeypatch.setattr(sweep_module, "LOOK_S", 0.05)
    return jobs


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("original")
    base = write_base(folder)
    sweep = Sweep.create(folder / "s", read_sweep(SWEEP | GRID, []), {"base": read_config(base)}, SweepDisplay())
    sweep.study.claim()  # and the process is killed: a trial has its folder after the study knows it
    make_run(folder / "other", base, 0)
    return folder


@pytest.fixture
def sweep(original: Path, started: list[list[str]], tmp_path: Path) -> Path:
    """A sweep of two trials with two seeds each, of which none has a run; and beside it `other`, a finished run of
    somebody's."""
    shutil.copytree(original, tmp_path, dirs_exist_ok=True)
    return tmp_path / "s"


def resumed(sweep: Path, meanwhile: Callable[[Path], Any] = lambda sweep: None) -> tuple[Sweep, Told]:
    told = Told()
    opened = Sweep.open(sweep, [], told, trust=False)
    meanwhile(sweep)
    assert opened.work() is None
    return opened, told


def states(opened: Sweep) -> list[str]:
    return [state_of(trial) for trial in opened.study.trials()]


def begin(sweep: Path, gamma: str = "0.9") -> Path:
    """trials/0000 with its config, as a process leaves it that was killed before its first run."""
    trial = sweep / "trials/0000"
    trial.mkdir(parents=True)
    text = (sweep / "base/base.yml").read_text()
    line = next(line for line in text.splitlines() if line.strip().startswith("gamma:"))
    (trial / "config.yml").write_text(text.replace(line.strip(), f"gamma: {gamma}"))
    return trial


def test_made_runs_give_the_values_of_trained_ones(sweep: Path) -> None:
    opened, told = resumed(sweep)
    assert [(state_of(trial), trial.value) for trial in opened.study.trials()] == [("succeeded", 100.5)] * 2
    assert told.lines[-1].startswith("trial 1: succeeded")


def linked(path: Path, target: Path) -> None:
    path.symlink_to(target)


def run_of(trial: Path, seed: int) -> None:
    make_run(trial / "seed-0", trial / "config.yml", seed)


REFUSED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "the trial is a link": (
        lambda sweep: linked(sweep / "trials/0000", sweep.parent / "other"),
        "trials/0000 is a symbolic link",
    ),
    "the trial is a file": (lambda sweep: (sweep / "trials/0000").write_text("mine"), "trials/0000 is a file"),
    "its config is a link": (
        lambda sweep: (
            (sweep / "trials/0000").mkdir(),
            linked(sweep / "trials/0000/config.yml", sweep.parent / "other/config.yml"),
        ),
        "config.yml is a symbolic link",
    ),
    "its config is a pipe": (
        lambda sweep: ((sweep / "trials/0000").mkdir(), os.mkfifo(sweep / "trials/0000/config.yml")),
        "config.yml is no regular file",
    ),
    "its lock is a link": (
        lambda sweep: linked(begin(sweep) / "lock", sweep.parent / "other/records.jsonl"),
        "lock is a symbolic link",
    ),
    "its run is a link": (
        lambda sweep: linked(begin(sweep) / "seed-0", sweep.parent / "other"),
        "seed 0: .*seed-0: expected a folder of a run, got a symbolic link",
    ),
    "its run is a file": (
        lambda sweep: (begin(sweep) / "seed-0").write_text("mine"),
        "seed 0: .*seed-0: expected a folder of a run, got a file",
    ),
    "its log is a link": (
        lambda sweep: linked(begin(sweep) / "seed-0.log", sweep.parent / "other/records.jsonl"),
        "seed 0: .*seed-0.log: expected a file of a run, got a symbolic link",
    ),
    "its run has another seed": (
        lambda sweep: run_of(begin(sweep), 1),
        "seed 0: .*seed-0: expected the run in which seed is 0, got one in which it is 1",
    ),
    "its run has another config": (
        lambda sweep: make_run(begin(sweep) / "seed-0", sweep.parent / "other/config.yml", 0),
        "seed 0: .*seed-0: expected the run in which .*gamma is 0.9, got one in which it is ",
    ),
    "its run has lost its config": (
        lambda sweep: (run_of(begin(sweep), 0), (sweep / "trials/0000/seed-0/config.yml").unlink()),
        "seed 0: .*seed-0: expected a run, but config.yml is missing",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_comes_while_it_works_and_is_none_of_its_own_fails_the_trial_by_name_and_stays(
    case: str, sweep: Path, started: list[list[str]]
) -> None:
    make, why = REFUSED[case]
    there: dict[str, bytes | str] = {}

    def meanwhile(sweep: Path) -> None:
        make(sweep)
        there.update(tree(sweep / "trials/0000"))

    others = tree(sweep.parent / "other")
    opened, told = resumed(sweep, meanwhile)
    assert states(opened) == ["failed", "succeeded"]
    failed = [line for line in told.lines if line.startswith("trial 0: failed")]
    assert failed == [f"trial 0: failed: {opened.study.trials()[0].user_attrs[FAILURE]}"]
    assert pytest.approx(100.5) == opened.study.trials()[1].value
    assert re.search(why, failed[0])
    assert tree(sweep.parent / "other") == others
    after = tree(sweep / "trials/0000")
    assert {name: after[name] for name in there} == there
    assert not any("trials/0000/seed-0" in word for arguments in started for word in arguments)


@pytest.mark.parametrize("kind", ["link to nowhere", "link to a file", "link to a folder", "pipe"])
@pytest.mark.parametrize(
    "name", ["", "config.yml", "lock", "seed-0", "seed-0.log", "seed-0/lock", "seed-0/records.jsonl", "seed-1/media"]
)
def test_with_a_link_or_a_pipe_in_a_trial_no_trial_goes_on(
    name: str, kind: str, sweep: Path, started: list[list[str]]
) -> None:
    run_of(begin(sweep), 0)
    path, elsewhere = (sweep / "trials/0000" / name), sweep.parent / "elsewhere"
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    path.parent.mkdir(exist_ok=True)
    targets = {"link to a file": elsewhere / "notes.txt", "link to a folder": elsewhere, "pipe": None}
    elsewhere.mkdir()
    (elsewhere / "notes.txt").write_text("mine")
    if (target := targets.get(kind, sweep.parent / "nowhere")) is None:
        os.mkfifo(path)
    else:
        path.symlink_to(target)
    before = tree(sweep.parent)
    with pytest.raises(RunFolderError, match=f"{path}: expected a f.* of .*, got (a symbolic link|no regular file)$"):
        resumed(sweep)
    assert tree(sweep.parent) == before
    assert started == []


WORKS: dict[str, Callable[[Path], Any]] = {
    "no folder of trials": lambda sweep: (sweep / "trials").rmdir(),
    "an empty trial": lambda sweep: (sweep / "trials/0000").mkdir(),
    "a trial without its config": lambda sweep: (run_of(begin(sweep), 0), (sweep / "trials/0000/config.yml").unlink()),
    "a run that was killed before it was one": lambda sweep: (begin(sweep) / "seed-0/checkpoints").mkdir(parents=True),
    "a run that has ended": lambda sweep: run_of(begin(sweep), 0),
    "a stranger's file": lambda sweep: (sweep / "trials/notes.txt").write_text("mine"),
}


@pytest.mark.parametrize("case", WORKS)
def test_what_is_missing_is_made(case: str, sweep: Path) -> None:
    WORKS[case](sweep)
    opened, _ = resumed(sweep)
    assert [(state_of(trial), trial.value) for trial in opened.study.trials()] == [("succeeded", 100.5)] * 2


@pytest.mark.parametrize("name", ["base", "trials", "best.yml", "lock", "base/base.yml"])
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_sweep_with_a_link_or_a_pipe_for_a_file_is_refused(
    name: str, kind: str, sweep: Path, started: list[list[str]]
) -> None:
    path, elsewhere = sweep / name, sweep.parent / "elsewhere"
    if path.exists():
        path.rename(elsewhere)
    else:
        elsewhere.write_text("mine")
    if kind == "link":
        path.symlink_to(elsewhere)
    else:
        os.mkfifo(path)
    before = tree(sweep.parent)
    with pytest.raises(RunFolderError, match=f"{path}"):
        resumed(sweep)
    after = tree(sweep.parent)
    assert {key: after[key] for key in before} == before
    assert started == []


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep_module, "NAME_S", 0.1)


def until_told(lines: list[str], sweep: Sweep, lock: Lock, is_due: Callable[[], bool]) -> Iterator[str]:
    """Works, and frees the lock when something was told of waiting and `is_due`."""
    held: Lock | None = lock
    end_s = time.monotonic() + 60
    while sweep._step() and time.monotonic() < end_s:
        waiting = [line for line in lines if line.startswith("waiting")]
        if waiting and held is not None and is_due():
            yield waiting[0]
            held.free()
            held = None
        time.sleep(0.01)


@pytest.mark.usefixtures("impatient")
def test_a_run_that_a_stopped_process_holds_is_named_once_and_the_others_begin(
    sweep: Path, started: list[list[str]]
) -> None:
    trial = begin(sweep)
    run_of(trial, 0)
    lock = Lock.take(Folder(trial / "seed-0"), "lock")
    assert lock is not None
    told = Told()
    opened = Sweep.open(sweep, [], told, trust=False)
    [line] = until_told(told.lines, opened, lock, lambda: len(started) == 3)  # all others
    number = os.getpid()
    assert line == (
        f"waiting for process {number}, which holds {trial / 'seed-0'} (if it hangs, kill -9 {number} ends it)"
    )
    assert states(opened) == ["succeeded", "succeeded"]
    assert sum(each.startswith("waiting") for each in told.lines) == 1
    order = [Path(arguments[-2]).relative_to(sweep / "trials") for arguments in started]
    assert order[0] == Path("0000/seed-1"), "the run of the other seed does not wait"
    assert [arguments[0] for arguments in started if "0000/seed-0" in arguments[1]] == ["resume"]


@pytest.mark.usefixtures("impatient")
def test_a_trial_that_a_stopped_sweep_holds_is_named_where_nothing_else_is_left(sweep: Path) -> None:
    first = Sweep.open(sweep, [], SweepDisplay(), trust=False)
    [number] = [trial.number for trial in first.study.running()]
    lock = Lock.take(first.folder.trial(number).make(), "lock")
    assert lock is not None
    told = Told()
    opened = Sweep.open(sweep, [], told, trust=False)
    [line] = until_told(told.lines, opened, lock, lambda: True)
    assert line.startswith(f"waiting for process {os.getpid()}, which holds {sweep / 'trials/0000'} (")
    assert states(opened) == ["succeeded", "succeeded"]


def test_a_sweep_that_could_not_begin_removes_nothing_of_others(sweep: Path) -> None:
    opened = Sweep.open(sweep, [], SweepDisplay(), trust=False)
    opened.folder.is_new = True
    (sweep / "thesis.tex").write_text("mine")
    (sweep / "base/mine").mkdir()
    opened.folder.remove_unused()
    assert tree(sweep) == {"thesis.tex": b"mine", "base": "a folder", "base/mine": "a folder"}
    shutil.rmtree(sweep / "base")
    (sweep / "thesis.tex").unlink()
    opened.folder.remove_unused()
    assert not sweep.exists()
    assert load_yaml(sweep.parent / "base.yml")


def test_a_job_whose_log_cannot_be_written_leaves_no_file_open(tmp_path: Path) -> None:
    (tmp_path / "log").symlink_to("elsewhere")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(OSError, match="log"):
            LocalJob([], tmp_path / "log", {})
    assert len(os.listdir("/proc/self/fd")) == before
