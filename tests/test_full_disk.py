"""A disk that is really full: a small file system of its own, filled up while a run trains on it."""

import contextlib
import errno
import io
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from resuming import at_call, fit, pointed_at, records
from rich.console import Console
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from palestra.cli import main
from palestra.evaluation.measures import Measure
from palestra.kinds.games.trainer import Trainer
from palestra.recording.files import CsvConfig, CsvRecorder, TensorBoardConfig, TensorBoardRecorder
from palestra.recording.recorders import Recorder, RunCard, RunEnd
from palestra.run import records as feeds
from palestra.run.checkpoints import Checkpoints
from palestra.storage.disk import RunFolderError
from palestra.storage.records_file import JsonlRecorder
from palestra.storage.run_folder import RunFolder
from palestra.storage.stored_files import CheckpointError
from palestra.sweeps.display import make_sweep_display
from palestra.sweeps.sweep import Sweep
from tests.sweeps.ended import JOURNAL, ended_sweep, told

MakeConfig = Callable[..., dict[str, Any]]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """4 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(place)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no file system can be mounted here: {error}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(disk: Path) -> None:
    with contextlib.suppress(OSError), open(disk / "filler", "ab", buffering=0) as file:
        while True:
            file.write(b"x" * 512)


def until(condition: Callable[[], bool]) -> None:
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < 60, "never"
        time.sleep(0.005)


def train(disk: Path, config: dict[str, Any], freed_at: int) -> tuple[Trainer, str]:
    """Train on a disk that is full from the 10th opt step on, until another one; gives what was shown, too."""
    shown = io.StringIO()
    trainer = Trainer(config, run=disk / "run", console=Console(file=shown, width=1000))
    full = at_call(Trainer, "before_step", 10, lambda *_: fill(disk))
    free = at_call(Trainer, "after_step", freed_at, lambda *_: (disk / "filler").unlink())
    try:
        with full, free:
            trainer.fit()
    except CheckpointError as error:
        shown.write(str(error))
    return trainer, shown.getvalue()


@pytest.fixture
def config(make_config: MakeConfig) -> dict[str, Any]:
    return make_config({"output.save": {"every": 4, "unit": "opt_steps"}, "output.keep_last": 1})


def test_a_disk_that_is_full_for_a_while_costs_saves_alone(disk: Path, config: dict[str, Any], tmp_path: Path) -> None:
    fit(tmp_path / "uninterrupted", config)
    trainer, shown = train(disk, config, freed_at=18)
    assert trainer.finished
    assert trainer.checkpoints.failure is None
    assert "could not be saved" in shown
    assert "No space left on device" in shown
    assert records(disk / "run") == records(tmp_path / "uninterrupted")
    assert pointed_at(disk / "run", "latest") == pointed_at(tmp_path / "uninterrupted", "latest")


RECORDERS: dict[str, Callable[[], Recorder]] = {
    "tensorboard": lambda: TensorBoardRecorder(TensorBoardConfig(name="tensorboard")),
    "csv": lambda: CsvRecorder(CsvConfig(name="csv")),
}


def filed_steps(disk: Path, name: str) -> list[int]:
    """The step of every record that a recorder has filed."""
    (file,) = (disk / name).iterdir()
    if name == "csv":
        return [int(line.split(",")[1]) for line in file.read_text().splitlines()[1:]]
    events = EventFileLoader(str(file)).Load()
    return [event.step for event in events if [value.tag for value in event.summary.value] == ["detail/x/0"]]


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("num_filled", [0, 3])
@pytest.mark.parametrize("name", RECORDERS)
def test_a_recorder_on_a_full_disk_is_told_once_and_gets_what_it_misses(
    name: str, num_filled: int, disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    """In one thread, and no other: that of torch's writer would die with a traceback, or be waited for without end."""
    monkeypatch.setattr(feeds, "FIRST_PAUSE_S", 0.01)
    jsonl = JsonlRecorder(tmp_path / "records.jsonl")
    fed, news = (
        feeds.Feed(name, RECORDERS[name](), RunCard(disk, {}, "env_steps"), tmp_path / "records.jsonl"),
        list[str](),
    )
    for step in range(100):
        if step == num_filled:
            until(lambda: fed.num_filed == num_filled)
            fill(disk)
        jsonl.write({"kind": "training", "env_steps": step, "x": {str(number): step for number in range(50)}})
        fed.notify(jsonl.length)
    until(lambda: bool(news.extend(fed.news())) or bool(news))
    (disk / "filler").unlink()
    until(lambda: bool(news.extend(fed.news())) or len(news) == 2)
    fed.end(RunEnd("complete", 100, {}))
    fed.wait()
    jsonl.close()
    assert news == [
        f"recorder {name} failed: OSError: [Errno 28] No space left on device; it is tried again, training goes on",
        f"recorder {name} works again; no record is missing there",
    ]
    assert filed_steps(disk, name) == list(range(100))
    assert capfd.readouterr().err == ""


def test_a_disk_that_stays_full_leaves_the_last_checkpoint_from_which_the_run_is_replayed(
    disk: Path, config: dict[str, Any], tmp_path: Path
) -> None:
    fit(tmp_path / "uninterrupted", config)
    trainer, shown = train(disk, config, freed_at=10**6)
    assert (trainer.finished, trainer.checkpoints.failure is None) == (True, False)
    assert shown.count("the disk refuses records, which wait in memory") == 1
    assert "No space left on device" in shown
    latest = pointed_at(disk / "run", "latest")
    assert latest is not None
    assert latest["counters"]["opt_steps"] == 8
    (disk / "filler").unlink()
    assert fit(disk / "run").finished
    assert records(disk / "run") == records(tmp_path / "uninterrupted")
    assert pointed_at(disk / "run", "latest") == pointed_at(tmp_path / "uninterrupted", "latest")


def test_a_run_that_cannot_begin_says_so(disk: Path, config: dict[str, Any]) -> None:
    fill(disk)
    with pytest.raises(RunFolderError, match="No space left on device"):
        Trainer(config, run=disk / "run").fit()


@pytest.mark.parametrize(
    "command", [["extend", "run", "stop.after=30"], ["branch", "run/checkpoints/00000001", "seed=7"]]
)
def test_a_command_that_has_no_room_is_one_line_and_changes_nothing(
    command: list[str], disk: Path, config: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(disk)
    fit(Path("run"), config)
    files = sorted((path, path.read_bytes()) for path in Path("run").rglob("*") if path.is_file())
    fill(disk)
    with pytest.raises(SystemExit) as left:
        main([*command, "--quiet"])
    assert left.value.code in (1, 2)
    told = capsys.readouterr().err
    assert "No space left on device" in told
    assert "Traceback" not in told
    assert sorted((path, path.read_bytes()) for path in Path("run").rglob("*") if path.is_file()) == files


@pytest.mark.parametrize("storage", [{"name": "sqlite"}, JOURNAL])
def test_a_study_on_a_full_disk_is_one_line_and_goes_on_afterwards(storage: dict[str, Any], disk: Path) -> None:
    sweep = ended_sweep(disk, storage=storage)
    opened = Sweep.open(sweep, ["budget.trials=9"], make_sweep_display(Console(quiet=True)), trust=False)
    fill(disk)
    with pytest.raises(OSError, match="No space left") as refused:
        [opened.study.claim() for _ in range(100)]  # some fit into what the file has of the disk
    assert refused.value.errno == errno.ENOSPC
    assert "the disk refuses: [Errno 28]" in told("resume", sweep).output
    (disk / "filler").unlink()
    assert len(opened.study.trials()) == opened.study.claim().number
    assert [trial.values for trial in opened.study.trials()[:3]] == [[1.0], None, [3.0]]


def test_a_run_whose_best_players_are_in_no_checkpoint_is_an_error_at_its_end(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here a process has too few descriptors at one moment; all later saves succeed."""
    mark_best, scores = Checkpoints.mark_best, {0: 1.0, 8: 9.0}

    def refusing(self: Checkpoints, name: str) -> None:
        if name == "00000001":
            raise CheckpointError(f"checkpoint {name} could not be marked as the best: Too many open files")
        mark_best(self, name)

    monkeypatch.setattr(Checkpoints, "mark_best", refusing)
    monkeypatch.setattr(Measure, "of", lambda self, record: scores.get(record["opt_steps"], 2.0))
    trainer = Trainer(make_config({"output.save": {"every": 8, "unit": "opt_steps"}}), run=tmp_path / "run")
    with pytest.raises(
        CheckpointError, match=r"the best players of the run are in no checkpoint: .*Too many open files"
    ):
        trainer.fit()
    assert trainer.finished
    assert Checkpoints(RunFolder(tmp_path / "run"), 1, None).load("best").counters["opt_steps"] == 16
