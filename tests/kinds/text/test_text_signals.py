"""A process in which players talk and learn gets real signals in every stage of an epoch; what it leaves is resumed to
the bits of an uninterrupted run.
"""

import json
import os
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from resuming import assert_same_bits, at_call

from palestra import make_trainer
from palestra.cli import main
from palestra.kinds.text.trainer import TextTrainer
from palestra.kinds.text.tunings import Tunings
from palestra.text.models.local import LocalTuning
from palestra.text.waves import Waves
from tests.text.runs import RUNS, made_folder

# By name, where a process gets its signals.
STAGES: dict[str, Callable[[Callable[..., None]], AbstractContextManager[Any]]] = {
    "imitate": lambda deed: at_call(LocalTuning, "step", 2, deed),
    "sample": lambda deed: at_call(Waves, "play_batch", 2, deed),
    "create_jobs": lambda deed: at_call(TextTrainer, "create_jobs", 1, deed),
    "await_jobs": lambda deed: at_call(Tunings, "_tune", 1, deed),
    "evaluation": lambda deed: at_call(TextTrainer, "evaluate", 1, deed),
    "save": lambda deed: at_call(os, "fsync", 9, deed),
}
# Each with the exit code that it leads to.
SIGNALS: dict[str, tuple[list[signal.Signals], int]] = {
    "SIGTERM": ([signal.SIGTERM], 128 + signal.SIGTERM),
    "SIGTERM twice": ([signal.SIGTERM] * 2, 128 + signal.SIGTERM),
    "SIGINT": ([signal.SIGINT], 128 + signal.SIGINT),
    "SIGKILL": ([signal.SIGKILL], -signal.SIGKILL),
}


def exit_code(*words: str, stage: str, signals: list[signal.Signals]) -> int:
    """The exit code of a process that gets the signals in a stage."""

    def send(*_: Any) -> None:
        for number in signals:
            os.kill(os.getpid(), number)

    child = os.fork()
    if child == 0:
        code = 99
        try:
            with STAGES[stage](send):
                main([*words, "--quiet"])
            code = 0
        except SystemExit as left:
            code = left.code if isinstance(left.code, int) else 98
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def files_of(run: Path) -> dict[str, bytes]:
    files = [*(run / "rollouts").iterdir(), *(run / "transcripts").iterdir()]
    return {f"{file.parent.name}/{file.name}": file.read_bytes() for file in files}


def assert_survives(config: dict[str, Any], signals: dict[str, str], folder: Path) -> None:
    """A run gets signals in stages, one after the other. signals: names of SIGNALS by stage."""
    make_trainer(config, run=folder / "uninterrupted").fit()
    run, file = folder / "run", folder / "run.yml"
    file.write_text(json.dumps(config))
    for stage, name in signals.items():
        numbers, code = SIGNALS[name]
        words = ["resume", str(run)] if run.exists() else ["train", str(file), "--run", str(run)]
        assert exit_code(*words, stage=stage, signals=numbers) == code, f"{name} in {stage}"
    assert exit_code("resume", str(run), stage="sample", signals=[]) == 0
    assert_same_bits(run, folder / "uninterrupted")
    assert files_of(run) == files_of(folder / "uninterrupted")


@pytest.fixture(autouse=True)
def without_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("palestra.run.run.plot_scores", lambda *_: None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_folder(tmp_path_factory.mktemp("models"))


DEFAULT: list[tuple[int, dict[str, str]]] = [
    (0, {"imitate": "SIGTERM twice", "create_jobs": "SIGTERM", "evaluation": "SIGKILL"}),
    (2, {"sample": "SIGKILL", "await_jobs": "SIGINT", "save": "SIGTERM twice"}),
]


@pytest.mark.parametrize(("number", "signals"), DEFAULT, ids=[list(RUNS)[number] for number, _ in DEFAULT])
def test_a_run_that_gets_signals_in_its_stages_ends_in_the_same_bits(
    number: int, signals: dict[str, str], folder: Path, tmp_path: Path
) -> None:
    assert_survives(list(RUNS.values())[number](folder), signals, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(len(SIGNALS)), ids=SIGNALS)
@pytest.mark.parametrize("name", RUNS)
def test_every_run_that_gets_every_signal_in_its_stages_ends_in_the_same_bits(
    name: str, first: int, folder: Path, tmp_path: Path
) -> None:
    names = [*SIGNALS] * 3
    assert_survives(RUNS[name](folder), dict(zip(STAGES, names[first:], strict=False)), tmp_path)
