"""Where time goes: seconds by phase, exact against a clock that the test moves."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from palestra.algorithms.dqn import DQN
from palestra.buffers.replay import ReplayBuffer
from palestra.callbacks import Callback
from palestra.kinds.games.trainer import Trainer
from palestra.recording.results import time_text
from palestra.rollouts.fused import FusedGame
from palestra.run.evaluating import Evaluating
from palestra.runtime.timing import PHASES, TimeLog
from palestra.storage.records_file import read_records

MakeConfig = Callable[..., dict[str, Any]]


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time of day, which stands still unless a test moves it."""
    now = [100.0]
    monkeypatch.setattr("palestra.runtime.timing.perf_counter", lambda: now[0])
    return now


def test_every_second_counts_for_the_phase_that_is_on(now: list[float]) -> None:
    log = TimeLog(torch.device("cpu"))
    now[0] += 1000.0  # before it runs
    with log.running():
        log.switch("play")
        now[0] += 1.0
        log.switch("update")
        now[0] += 2.0
        for _ in range(2):
            with log.during("memory"), log.during("memory"):
                now[0] += 2.0
        with log.during("evaluation"):
            now[0] += 8.0
            log.switch("play")  # whatever an evaluation does, training goes on with what it did
            now[0] += 16.0
        now[0] += 32.0
        took = {
            "play": 17.0,
            "memory": 4.0,
            "data": 0.0,
            "update": 34.0,
            "evaluation": 8.0,
            "saving": 0.0,
            "waiting": 0.0,
            "other": 0.0,
        }
        assert log.take() == took
        now[0] += 64.0
        assert log.take() == dict.fromkeys(PHASES, 0.0) | {"update": 64.0}
    now[0] += 1000.0
    assert log.total() == took | {"update": 98.0}
    nothing = dict.fromkeys(PHASES, 0.0)
    log = TimeLog(torch.device("cpu"))
    log.set_before(nothing | {"play": 5.0, "update": 3.0}, recorded=nothing | {"play": 4.0})
    assert log.total() == nothing | {"play": 5.0, "update": 3.0}
    assert log.take() == nothing | {"play": 1.0, "update": 3.0}  # what no record has yet


def test_on_cuda_events_are_read_only_once_the_gpu_has_passed_them(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = {"time_ms": 0.0, "passed_ms": 0.0}

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self, stream: object) -> None:
            assert stream == "stream"
            self.at_ms = gpu["time_ms"]

        def query(self) -> bool:
            return self.at_ms <= gpu["passed_ms"]

        def elapsed_time(self, end: "Event") -> float:
            assert self.query()
            assert end.query()
            return end.at_ms - self.at_ms

    monkeypatch.setattr("torch.cuda.Event", Event)
    monkeypatch.setattr("torch.cuda.current_stream", lambda device: "stream")
    log = TimeLog(torch.device("cuda"))
    with log.running():
        log.switch("play")
        gpu["time_ms"] = 3000.0
        log.switch("update")
        gpu["time_ms"] = 8000.0
        gpu["passed_ms"] = 3000.0
        assert log.take() == dict.fromkeys(PHASES, 0.0) | {"play": 3.0}
        gpu["passed_ms"] = 9000.0
        assert log.take() == dict.fromkeys(PHASES, 0.0) | {"update": 5.0}
        for _ in range(5000):  # no record for long: what is passed is read on the way, and its events are used again
            gpu["time_ms"] += 1.0
            gpu["passed_ms"] = gpu["time_ms"]
            log.switch("update")
        assert len(log._events) + len(log._free) < 1100
        assert log.take()["update"] == pytest.approx(5.0)


def test_a_run_records_where_its_time_went(
    make_config: MakeConfig, tmp_path: Path, now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    def slowed(owner: type, name: str, seconds: float) -> None:
        method = getattr(owner, name)

        def call(self: Any, *args: Any) -> Any:
            now[0] += seconds
            return method(self, *args)

        monkeypatch.setattr(owner, name, call)

    slowed(FusedGame, "collect", 1.0)
    slowed(ReplayBuffer, "_append", 0.25)
    slowed(ReplayBuffer, "draw", 0.25)
    slowed(DQN, "opt_step", 3.0)
    slowed(Evaluating, "_play", 50.0)
    slowed(Trainer, "state_dict", 7.0)

    class Idle(Callback):
        def after_step(self, trainer: Any, player: Any, metrics: Any) -> None:
            now[0] += 0.5

    config = make_config({"stop.after": 8, "players.agent": {"scripted": "random"}})
    trainer = Trainer(config, run=tmp_path / "run", callbacks=[Idle(None)])
    trainer.fit()
    records = read_records(tmp_path / "run" / "records.jsonl")
    times = [record["clock"]["time"] for record in records if record["kind"] == "training"]
    # Warm-up: 2 roll-outs; the second brings its 2 opt steps, and so does each that follows.
    first = {"play": 3.0, "memory": 3 * 0.25 + 4 * 0.25, "update": 12.0, "evaluation": 50.0, "saving": 7.0}
    then = {"play": 2.0, "memory": 2 * 0.25 + 4 * 0.25, "update": 12.0, "evaluation": 50.0, "saving": 0.0}
    others = {"data": 0.0, "waiting": 0.0, "other": 2.0}
    assert times == [first | others, then | others]
    seconds = {phase: times[0][phase] + times[1][phase] for phase in PHASES}
    assert trainer.progress.now().time == seconds | {"saving": 14.0}  # the last checkpoint comes after the last record
    resumed = Trainer.load(tmp_path / "run", callbacks=[Idle(None)])
    resumed.fit()
    assert resumed.progress.now().time == seconds | {"saving": 14.0}  # which the last checkpoint holds


def test_phases_are_told_as_shares() -> None:
    seconds = {"play": 4.1, "memory": 0.02, "update": 5.0, "evaluation": 0.88, "saving": 0.0, "other": 0.0}
    assert time_text(seconds) == "play 41%  update 50%  evaluation 9%"
    assert time_text({}) == ""
