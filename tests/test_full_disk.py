"""A disk that is really full: a small file system of its own, filled up while a run trains on it."""

import contextlib
import io
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from resuming import at_call, fit, pointed_at, records
from rich.console import Console

from palestra.cli import main
from palestra.storage import CheckpointError, RunFolderError
from palestra.trainer import Trainer

MakeConfig = Callable[..., dict[str, Any]]

pytestmark = pytest.mark.usefixtures("no_plots")


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


def train(disk: Path, config: dict[str, Any], freed_at: int) -> tuple[Trainer, str]:
    """Train on a disk that is full from the 10th opt step on, until another one; gives what was shown, too."""
    shown = io.StringIO()
    trainer = Trainer(config, run=disk / "run", console=Console(file=shown))
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
    assert trainer.save_failure is None
    assert "could not be saved" in shown
    assert "No space left on device" in shown
    assert records(disk / "run") == records(tmp_path / "uninterrupted")
    assert pointed_at(disk / "run", "latest") == pointed_at(tmp_path / "uninterrupted", "latest")


def test_a_disk_that_stays_full_leaves_the_last_checkpoint_from_which_the_run_is_replayed(
    disk: Path, config: dict[str, Any], tmp_path: Path
) -> None:
    fit(tmp_path / "uninterrupted", config)
    trainer, shown = train(disk, config, freed_at=10**6)
    assert (trainer.finished, trainer.save_failure is None) == (True, False)
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
