"""The display of a sweep: what it says of a study, when it says the sweep will end, and that it fits any screen.

Covers palestra.sweeps.progress.
"""

import io
import math
import signal
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from optuna.trial import TrialState, create_trial
from rich.cells import cell_len
from rich.console import Console
from terminals import Terminal

from palestra.commands.sweeping import summary
from palestra.config import render
from palestra.kinds.games.config import RunConfig
from palestra.run.kinds import read_config
from palestra.storage.lock import Lock
from palestra.sweeps import display as display_module
from palestra.sweeps.config import SweepConfig, read_sweep
from palestra.sweeps.display import (
    LiveSweepDisplay,
    PlainSweepDisplay,
    SweepDisplay,
    end_text,
    failures_text,
    make_sweep_display,
    progress_line,
    screen_lines,
)
from palestra.sweeps.folder import SweepFolder
from palestra.sweeps.progress import EndedTrial, RunProgress, SweepProgress, progress_of, work_left
from palestra.sweeps.search import Succession
from palestra.sweeps.space import Base, Space
from palestra.sweeps.study import SweepStudy
from palestra.sweeps.trials import OwnedTrial, Pace
from tests.recording.test_display import pipe, terminal, written
from tests.sweeps.test_sweep import BASE, SWEEP

NOON = datetime(2026, 3, 5, 12, 0)

# ---- when it will end ----------------------------------------------------------------------------------


WORK: dict[str, Any] = {
    "lefts": [30.0, 60.0],
    "num_places": 2,
    "trial_s": 100.0,
    "longest_s": 100.0,
    "num_new": 0.0,
    "begin_s": math.inf,
}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 60.0),  # the longest run's rest
        ({"lefts": []}, 0.0),
        ({"lefts": [], "num_new": 8.0}, 400.0),  # equal trials: four in each of two places
        ({"num_new": 8.0}, 445.0),
        ({"lefts": [], "num_new": 1.0}, 100.0),  # one trial of one seed leaves a place empty
        ({"lefts": [], "num_new": 1.0, "longest_s": 50.0}, 50.0),  # two seeds side by side do not
        ({"num_new": math.inf, "begin_s": 60.0}, 160.0),  # the last one begins at 60
        ({"num_new": 1.0, "begin_s": 60.0}, 100.0),  # the limit that comes first
        ({"num_new": 9.0, "begin_s": -5.0}, 60.0),  # no time is left to begin one
        ({"num_new": math.inf}, math.nan),
        ({"trial_s": math.nan, "longest_s": math.nan}, 60.0),
        ({"trial_s": math.nan, "longest_s": math.nan, "num_new": 1.0}, math.nan),
        ({"num_new": math.nan}, math.nan),
        ({"lefts": [math.nan, 60.0]}, math.nan),
    ],
)
def test_what_a_sweep_still_takes_is_its_work_by_its_places(changes: dict[str, Any], expected: float) -> None:
    assert work_left(**WORK | changes) == pytest.approx(expected, nan_ok=True)


def test_a_run_ends_as_its_pace_says_without_the_time_in_which_it_imports() -> None:
    pace = Pace()
    pace.begin(100.0, 0.0, 0.0, 0.0)
    pace.note(105.0, 0.0, 0.0, 0.0)
    assert math.isnan(pace.seconds_left(106.0))
    pace.note(110.0, 0.1, 100.0, 3.0)
    assert pace.seconds_left(111.0) == pytest.approx(3.0 * 9 - 1)  # by its seconds of training alone
    pace.note(114.0, 0.3, 300.0, 9.0)
    pace.note(115.0, 0.3, 300.0, 9.0)
    assert pace.seconds_left(115.0) == pytest.approx(0.7 * 20 - 1)
    assert pace.per_s() == pytest.approx(50.0)
    pace.end(120.0)
    pace.begin(200.0, 0.3, 300.0, 9.0)
    assert pace.seconds(205.0) == pytest.approx(25.0)
    assert math.isnan(pace.seconds_left(205.0))
    pace.note(210.0, 1.0, 1000.0, 30.0)
    assert pace.seconds_left(211.0) == 0.0
    pace.end(220.0)
    pace.begin(300.0, 1.0, 1000.0, 30.0)  # killed in its last evaluation
    assert pace.seconds_left(301.0) == 0.0


def test_what_a_run_has_trained_for_an_earlier_process_of_the_sweep_counts() -> None:
    pace = Pace()
    pace.begin(100.0, 0.5, 500.0, 60.0)
    assert pace.seconds(105.0) == 65.0


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (math.nan, ""),
        (59.0, "less than a minute left"),
        (12 * 60.0, "about 12 min left, at 12:12"),
        (3 * 3600.0 + 60, "about 3 h 1 min left, at 15:01"),
        (13 * 3600.0, "about 13 h 0 min left, at 01:00 on Friday"),
        (10 * 86400.0, "about 10 d 0 h left, at 12:00 on 15 March"),
    ],
)
def test_the_end_is_said_in_words(seconds: float, text: str) -> None:
    assert end_text(seconds, NOON) == text


# ---- what it says of a study ---------------------------------------------------------------------------

Study = Callable[..., tuple[SweepFolder, SweepStudy]]


@pytest.fixture
def make_study(tmp_path: Path) -> Study:
    def make(**changes: Any) -> tuple[SweepFolder, SweepStudy]:
        config = read_sweep(SWEEP | {"seeds": [0, 1]} | changes, [])
        base = read_config(BASE)
        folder = SweepFolder.create(tmp_path / "s", render(config, SweepConfig), {})
        space = Space([Base("base", base.model_dump(), RunConfig)], config.space)
        return folder, SweepStudy(folder, config, space, Succession())

    return make


def add(study: SweepStudy, state: TrialState, value: float | None = None, **facts: Any) -> None:
    study.study.add_trial(create_trial(state=state, value=value, user_attrs=facts))


def fill(study: SweepStudy) -> None:
    ended = {"counts": {"env_steps": 1000}, "seconds": 100.0}
    add(study, TrialState.COMPLETE, 3.0, values={"0": 2.0, "1": 4.0}, **ended)
    add(study, TrialState.FAIL, failure="seed 1: the loss is nan", **ended)
    add(study, TrialState.PRUNED, 1.0, values={}, **ended)
    add(study, TrialState.FAIL, skipped="gamma > 1")
    add(study, TrialState.RUNNING)


def test_progress_is_what_the_study_says(make_study: Study) -> None:
    folder, study = make_study(budget={"trials": 9, "total": {"after": 10_000, "unit": "env_steps"}, "minutes": 10.0})
    fill(study)
    progress = progress_of(folder, study, [], 2, None, worked_s=60.0)
    assert progress.counts == {"succeeded": 1, "failed": 1, "pruned": 1, "skipped": 1, "running": 1}
    assert (progress.num_ended, progress.total, progress.done, progress.count) == (3, 9, 3.0, 3000)
    assert (progress.max_count, progress.worked_s, progress.max_s) == (10_000, 60.0, 600.0)
    assert (progress.num_elsewhere, progress.runs, progress.share) == (1, [], pytest.approx(1 / 3))
    assert progress.best is not None
    assert (progress.best.number, progress.best.value, progress.best.values) == (0, 3.0, [2.0, 4.0])
    assert {trial.number: trial.state for trial in progress.ended} == {
        0: "succeeded",
        1: "failed",
        2: "pruned",
        3: "skipped",
    }
    [failure] = progress.failures
    assert (failure.reason, failure.log) == ("seed 1: the loss is nan", folder.path / "trials/0001/seed-1.log")
    assert failures_text(progress) == [
        "1 trial failed:",
        "  trial 1: seed 1: the loss is nan",
        f"    its log: {failure.log}",
    ]


def test_the_points_of_a_grid_that_are_skipped_are_no_trials(make_study: Study) -> None:
    folder, study = make_study(
        budget={"trials": None, "total": None, "minutes": None},
        search={"name": "grid"},
        space={"gamma": SWEEP["space"]["gamma"]},
    )
    fill(study)
    assert progress_of(folder, study, [], 2, 12, worked_s=0.0).total == 11


def test_the_end_of_a_study_is_estimated_from_what_ended_and_what_runs(make_study: Study) -> None:
    folder, study = make_study(budget={"trials": 5, "total": None, "minutes": None})
    ended = {"counts": {"env_steps": 1000}, "seconds": 100.0}
    add(study, TrialState.COMPLETE, 3.0, values={"0": 3.0}, **ended)
    add(study, TrialState.PRUNED, values={}, **(ended | {"seconds": 60.0}))
    claimed = study.claim()
    lock = Lock.take(folder.trial(claimed.number).make(), "lock")
    assert lock is not None
    owned = OwnedTrial(study, folder, study.config, claimed.number, read_config(BASE).model_dump(), None, lock)
    progress = progress_of(folder, study, [owned], 2, None, worked_s=0.0)
    assert progress.num_elsewhere == 0
    assert progress.seconds_left == pytest.approx(3 * 80.0 / 2)  # two seeds side by side, none has gone on yet
    owned.runs[0].value, owned.runs[1].value = 1.0, 2.0
    for run in owned.runs:
        run.pace.begin(0.0, 0.0, 0.0, 0.0)
        run.pace.end(70.0)
    assert progress_of(folder, study, [owned], 2, None, 0.0).seconds_left == pytest.approx(2 * 100.0 / 2)
    assert math.isnan(progress_of(folder, study, [owned], 2, None, 0.0, signal.SIGINT).seconds_left)
    lock.free()


def test_a_trial_that_runs_will_count_towards_the_budget(
    make_study: Study,
) -> None:
    counted = {"budget": {"trials": None, "total": {"after": 3500, "unit": "env_steps"}, "minutes": None}}
    folder, study = make_study(**counted)
    for _ in range(2):
        add(study, TrialState.COMPLETE, 3.0, counts={"env_steps": 1000}, seconds=100.0, values={})
    assert progress_of(folder, study, [], 2, None, worked_s=0.0).seconds_left == pytest.approx(2 * 100.0 / 2)
    add(study, TrialState.RUNNING)  # in another process, which has two places, too
    left = progress_of(folder, study, [], 2, None, worked_s=0.0).seconds_left
    assert left == pytest.approx(2 * 100.0 / 4, abs=5.0)


def test_nothing_is_estimated_before_anything_is_known(make_study: Study) -> None:
    folder, study = make_study()
    assert math.isnan(progress_of(folder, study, [], 2, None, worked_s=0.0).seconds_left)


# ---- how it looks --------------------------------------------------------------------------------------


def ended(number: int, state: str = "succeeded", reason: str = "") -> EndedTrial:
    point = {"players.agent.algorithm.[red]gamma": "0.99", "x.learning_rate": "0.0001234"}
    log = Path(f"[red]/trials/{number:04}/seed-0.log") if reason else None
    return EndedTrial(number, state, None if reason else 400.0 + number, [400.0, 402.0], point, reason, log, [])


def sweep_progress(**changes: Any) -> SweepProgress:
    failures = [ended(number, "failed", f"seed 0: [red]odd[/red] {'and long ' * 30}") for number in (9, 7, 5, 3)]
    facts: dict[str, Any] = {
        "path": Path("runs/[red]"),
        "measure": "return/agent",
        "generation": None,
        "num_generations": None,
        "counts": {"succeeded": 90, "failed": 4, "pruned": 12, "skipped": 3, "running": 9},
        "total": 1000,
        "done": 110.5,
        "unit": "env_steps",
        "count": 12_345_678,
        "max_count": 5e9,
        "worked_s": 4000.0,
        "max_s": 86400.0,
        "seconds_left": 12345.0,
        "best": ended(77),
        "runs": [RunProgress(100 + i, i, i / 9, 3.0 * i, 60.0 * i, 1000.0 * i, 123.4, i % 2) for i in range(8)],
        "num_elsewhere": 3,
        "ended": [ended(number) for number in range(20)],
        "failures": failures,
        "first_failures": failures[::-1][:3],
        "stopped_by": None,
    }
    return SweepProgress(**(facts | changes))


def drawn(progress: SweepProgress, width: int, height: int) -> list[str]:
    return ["".join(part.text for part in line) for line in screen_lines(progress, 0.0, NOON, width, height)]


@pytest.mark.parametrize("width", [30, 40, 60, 80, 140])
@pytest.mark.parametrize("height", [5, 12, 23, 40])
@pytest.mark.parametrize(
    "changes", [{}, {"runs": [], "best": None, "ended": [], "failures": [], "num_elsewhere": 0, "total": None}]
)
def test_a_frame_fits_its_screen(width: int, height: int, changes: dict[str, Any]) -> None:
    lines = drawn(sweep_progress(**changes), width, height)
    assert len(lines) <= height
    assert {cell_len(line) for line in lines} == {width}


def test_the_summary_names_the_point_of_the_best_trial_where_it_has_one() -> None:
    best = "best: trial 77, return/agent 477 (seeds: 400, 402)"
    told = summary(sweep_progress(), Path("best.yml")).splitlines()
    assert told[1] == f"{best}, [red]gamma 0.99, learning_rate 0.0001234"
    told = summary(sweep_progress(best=replace(ended(77), point={})), Path("best.yml")).splitlines()
    assert told[1] == best


def test_a_frame_shows_all_facts_where_there_is_room() -> None:
    text = "\n".join(drawn(sweep_progress(), 140, 40))
    for fact in (
        "sweep [red]",
        "106 of 1,000 trials",
        "about 3 h 26 min left, at 15:25",
        "12 pruned",
        "12.3M of 5.00G env steps",
        "worked 1:06:40 of 24:00:00",
        "trial 77  return/agent 477  seeds: 400, 402",
        "[red]gamma 0.99, learning_rate 0.0001234",
        "trial 107 seed 7",
        "77%        21  0:07:00    123 steps/s   1 restart",
        "3 more trials begun",
        "trial 9 failed: seed 0: [red]odd[/red] and",
        "[red]/trials/0009/seed-0.log",
    ):
        assert fact in text, fact


def test_few_lines_show_the_end_the_best_and_the_newest_failure() -> None:
    text = "\n".join(drawn(sweep_progress(), 60, 12))
    for fact in ("about 3 h 26 min", "9 running", "trial 77", "trial 100 seed 0", "and 7 more runs", "trial 9 failed"):
        assert fact in text, fact


def test_after_a_signal_the_frame_says_that_runs_are_saved() -> None:
    assert "SIGINT: the runs are being saved" in drawn(sweep_progress(stopped_by=signal.SIGINT), 80, 23)[1]
    assert "stopped by SIGINT" in drawn(sweep_progress(stopped_by=signal.SIGINT, runs=[]), 80, 23)[1]


# ---- the displays --------------------------------------------------------------------------------------


def test_live_on_a_terminal_plain_elsewhere_nothing_where_it_is_quiet() -> None:
    assert type(make_sweep_display(terminal())) is LiveSweepDisplay
    assert type(make_sweep_display(pipe())) is PlainSweepDisplay
    assert type(make_sweep_display(Console(quiet=True))) is SweepDisplay


def test_plain_lines_tell_what_ended_and_now_and_then_how_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(display_module.time, "monotonic", lambda: now[0])
    console = pipe()
    with make_sweep_display(console) as display:
        for seconds in (1.0, 59.0, 61.0, 62.0, 130.0):
            now[0] = seconds
            display.update(sweep_progress)
        display.ended("trial 3: succeeded, [red]3[/red]")
        display.stopping(signal.SIGTERM, sweep_progress)
        display.update(sweep_progress, is_last=True)
    first, second, *others = written(console).splitlines()
    lines = [line.rpartition(" | ")[0] for line in (first, second, progress_line(sweep_progress(), NOON))]
    assert lines[0] == lines[1] == lines[2], "but for the time of the day at which it ends"
    assert "106 of 1,000 trials done | 90 succeeded" in first
    assert "running: trial 100 seed 0 at 0%, trial 101 seed 1 at 11%" in first
    assert others == ["trial 3: succeeded, [red]3[/red]", "SIGTERM: the runs are being saved"]


def test_the_study_is_read_once_a_second_and_less_often_where_that_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    now, reads = [0.0], []

    def read() -> SweepProgress:
        reads.append(now[0])
        now[0] += 0.0 if len(reads) < 3 else 0.05
        return sweep_progress()

    monkeypatch.setattr(display_module.time, "monotonic", lambda: now[0])
    display = LiveSweepDisplay(Console(file=io.StringIO(), force_terminal=True), is_ascii=False)
    while now[0] < 12.0:
        display.update(read)
        now[0] += 0.25
    assert reads == [0.0, 1.0, 2.0, pytest.approx(7.05, abs=0.26)]
    display.ended("a trial")
    display.update(read)
    assert len(reads) == 5


def test_a_display_that_fails_says_it_once_and_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def read() -> SweepProgress:
        raise ZeroDivisionError

    for display in (PlainSweepDisplay(pipe()), LiveSweepDisplay(terminal(), is_ascii=False)):
        caplog.clear()
        with display:
            for _ in range(3):
                display._due_s = -math.inf
                display.update(read)
        assert [record.message for record in caplog.records] == [
            "the display could not show how the sweep stands; the sweep goes on"
        ]


def test_a_terminal_shows_the_frame_and_is_left_clean() -> None:
    with Terminal(80, 24) as screen:
        display = LiveSweepDisplay(screen.console, is_ascii=False)
        try:
            with display:
                display.update(sweep_progress)
                screen.wait_for(lambda lines: any("106 of 1,000 trials" in line for line in lines))
                screen.resize(60, 12)
                screen.wait_for(lambda lines: len([line for line in lines if line]) <= 12)
                display.stopping(signal.SIGINT, lambda: sweep_progress(stopped_by=signal.SIGINT))
                screen.wait_for(lambda lines: any("being saved" in line for line in lines))
                raise ZeroDivisionError
        except ZeroDivisionError:
            pass
        lines = screen.settle()
        bottom = next(i for i, line in enumerate(lines) if "─╯" in line)
        assert (screen.screen.cursor.y, screen.screen.cursor.x) == (bottom + 1, 0)
        assert screen.shows_cursor()
