"""What a display is told of a run."""

import io
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import MakeConfig
from rich.console import Console

from palestra import Trainer
from palestra.callbacks import Callback
from palestra.recording.display import Display
from palestra.recording.results import Progress


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Progress, str, list[tuple[str, int, int]]]]:
    """Every moment of a run that a display is told, with phase and tasks as they were then."""
    moments: list[tuple[Progress, str, list[tuple[str, int, int]]]] = []

    def update(display: Display, progress: Progress) -> None:
        tasks = [(task.name, task.done, task.total) for task in progress.tasks]
        moments.append((progress, progress.phase(), tasks))

    monkeypatch.setattr("palestra.run.run.SHOW_INTERVAL_S", -1.0)
    monkeypatch.setattr(Display, "update", update)
    return moments


def test_evaluations_tell_how_many_games_are_over(told: list[Any], make_config: MakeConfig, tmp_path: Path) -> None:
    Trainer(make_config(), run=tmp_path / "run").fit()
    evaluating: dict[int, list[tuple[int, int]]] = {step: [] for step in (0, 8, 16, 24)}  # games over, at each
    for progress, phase, tasks in told:
        if tasks:
            assert phase == ("testing" if progress.counters["opt_steps"] == 24 else "evaluating")
            [(_, done, total)] = tasks
            evaluating[progress.counters["opt_steps"]].append((done, total))
    assert {step: {total for _, total in seen} for step, seen in evaluating.items()} == {
        0: {24},
        8: {16},
        16: {16},
        24: {36},
    }
    for seen in evaluating.values():
        assert seen == sorted(seen)
        assert seen[0][0] == 0
        assert 0 < seen[-1][0] <= seen[-1][1]


def test_phases_and_share_of_a_run(told: list[Any], make_config: MakeConfig, tmp_path: Path) -> None:
    Trainer(make_config(), run=tmp_path / "run").fit()
    shares = [progress.fraction for progress, _, _ in told]
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0.0, 1.0)
    phases = [phase for _, phase, _ in told]
    assert set(phases) == {"evaluating", "saving", "training", "testing", "finished"}
    assert phases[-1] == "finished"


def test_time_left_is_unknown_until_something_is_gained_and_in_the_test_and_nothing_at_the_end(
    told: list[Any], make_config: MakeConfig, tmp_path: Path
) -> None:
    Trainer(make_config(), run=tmp_path / "run").fit()
    for progress, phase, _ in told:
        assert (progress.remaining_s is None) == (progress.fraction == 0.0 or phase == "testing")
    assert told[-1][0].remaining_s == 0.0
    gone = [progress.elapsed_s for progress, _, _ in told]
    assert gone == sorted(gone)


def test_time_left_goes_by_the_pace_so_far(
    told: list[Any], make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = Trainer(make_config(), run=tmp_path / "run")
    monkeypatch.setattr("palestra.run.run.time", SimpleNamespace(monotonic=lambda: 100.0 + 2.0 * trainer.opt_steps))
    trainer.fit()
    left = {p.counters["opt_steps"]: p.remaining_s for p, _, _ in told if p.remaining_s is not None}
    assert left.keys() >= {8, 16, 24}
    assert left == pytest.approx({step: 2.0 * (24 - step) for step in left})


class Odd(Callback):
    """Adds a metric that is no number, at two opt steps."""

    def after_step(self, trainer: Trainer, player: Any, metrics: Any) -> None:
        if trainer.opt_steps in (6, 18):
            trainer.metrics.by_player["host"].add({"odd": math.nan})


def test_a_metric_that_is_no_number_is_told_once(told: list[Any], make_config: MakeConfig, tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), width=200)
    config = make_config({"output.display": "plain"})
    Trainer(config, run=tmp_path / "run", callbacks=[Odd(None)], console=console).fit()
    assert console.file.getvalue().count("warning: odd of host is nan at opt step 6") == 1  # type: ignore[attr-defined]
    assert console.file.getvalue().count("is nan") == 1  # type: ignore[attr-defined]
