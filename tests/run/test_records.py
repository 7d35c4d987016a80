"""What feeds promise: every record once, in order, whatever a recorder does."""

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from palestra.recording.recorders import Recorder, RunCard, RunEnd
from palestra.run import records as feeds
from palestra.run.records import Feed
from palestra.storage.records_file import JsonlRecorder

END = RunEnd("complete", 5, {"final/rho": 0.5})
TIMEOUT_S = 20.0


class Kept(Recorder):
    """Keeps records in memory, as a server does: what was handed over stays. `fault` may raise at any call."""

    def __init__(self, fault: Callable[[str], None] = lambda call: None) -> None:
        self.fault = fault
        self.records: list[Mapping[str, Any]] = []
        self.ends: list[RunEnd] = []

    def open(self, run: RunCard) -> int:
        self.fault("open")
        self.waiting: list[Mapping[str, Any]] = []
        return len(self.records)

    def write(self, number: int, record: Mapping[str, Any]) -> None:
        self.fault("write")
        assert number == len(self.records) + len(self.waiting)
        self.waiting.append(record)

    def flush(self) -> None:
        self.fault("flush")
        self.records += self.waiting
        self.waiting = []

    def close(self, end: RunEnd) -> None:
        self.fault("close")
        self.ends.append(end)


class FailingTwice:
    def __init__(self, call: str) -> None:
        self.call, self.num_left = call, 2

    def __call__(self, call: str) -> None:
        if call == self.call and self.num_left > 0:
            self.num_left -= 1
            raise ConnectionError("the server hung up\nand more lines")


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(feeds, "PATIENCE_S", 0.3)


@pytest.fixture
def jsonl(tmp_path: Path) -> Iterator[JsonlRecorder]:
    recorder = JsonlRecorder(tmp_path / "records.jsonl")
    for step in range(3):
        recorder.write({"env_steps": step})
    yield recorder
    recorder.close()


def fed(recorder: Recorder, tmp_path: Path) -> Feed:
    return Feed("kept", recorder, RunCard(tmp_path, {}, "env_steps"), tmp_path / "records.jsonl")


def finish(feed: Feed) -> None:
    feed.end(END)
    feed.wait()


def until(condition: Callable[[], bool]) -> None:
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < TIMEOUT_S
        time.sleep(0.005)


def steps(recorder: Kept) -> list[int]:
    return [record["env_steps"] for record in recorder.records]


def test_records_from_before_and_after_the_start_arrive_once(jsonl: JsonlRecorder, tmp_path: Path) -> None:
    recorder = Kept()
    feed = fed(recorder, tmp_path)
    for step in (3, 4):
        jsonl.write({"env_steps": step})
        feed.notify(jsonl.length)
    finish(feed)
    assert steps(recorder) == [0, 1, 2, 3, 4]
    assert recorder.ends == [END]
    assert list(feed.news()) == []


def test_what_a_recorder_holds_is_not_written_again(jsonl: JsonlRecorder, tmp_path: Path) -> None:
    recorder = Kept()
    recorder.records = [{"env_steps": step} for step in range(4)]  # one more than the run was cut back to
    feed = fed(recorder, tmp_path)
    for step in (3, 4):
        jsonl.write({"env_steps": step})
        feed.notify(jsonl.length)
    finish(feed)
    assert steps(recorder) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("call", ["open", "write", "flush", "close"])
def test_a_recorder_that_fails_is_reported_once_and_misses_nothing(
    call: str, jsonl: JsonlRecorder, tmp_path: Path
) -> None:
    recorder, news = Kept(FailingTwice(call)), list[str]()
    feed = fed(recorder, tmp_path)
    if call != "close":
        until(lambda: bool(news.extend(feed.news())) or any("works again" in line for line in news))
    jsonl.write({"env_steps": 3})
    feed.notify(jsonl.length)
    if call == "close":  # fails twice in a row, and the second time is the last
        finish(feed)
        assert "is not finished" in list(feed.news())[-1]
        assert recorder.ends == []
    else:
        finish(feed)
        assert news == [
            "recorder kept failed: ConnectionError: the server hung up; it is tried again, training goes on",
            "recorder kept works again; no record is missing there",
        ]
        assert recorder.ends == [END]
    assert steps(recorder) == [0, 1, 2, 3]


def test_a_recorder_that_never_works_is_left_unfinished_and_says_where_the_records_are(
    jsonl: JsonlRecorder, tmp_path: Path
) -> None:
    def refuse(call: str) -> None:
        raise OSError

    feed = fed(Kept(refuse), tmp_path)
    finish(feed)
    first, last = feed.news()
    assert first == "recorder kept failed: OSError; it is tried again, training goes on"
    left = "it has filed 0 records, but not how the run ended"
    assert last == f"recorder kept is not finished: {left}"  # no checkpoint, from which a run could go on


def test_a_recorder_that_hangs_is_reported_once_and_the_end_does_not_wait_for_it(
    jsonl: JsonlRecorder, tmp_path: Path
) -> None:
    is_free, news = threading.Event(), list[str]()

    def hang(call: str) -> None:
        if call == "flush":
            is_free.wait()

    feed = fed(Kept(hang), tmp_path)
    until(lambda: bool(news.extend(feed.news())) or bool(news))
    assert news == ["recorder kept has not answered for 0.3 s; training goes on"]
    feed.notify(jsonl.length)
    finish(feed)
    assert ["is not finished" in line for line in feed.news()] == [True]
    is_free.set()


def test_a_half_written_line_waits_for_its_end(jsonl: JsonlRecorder, tmp_path: Path) -> None:
    recorder = Kept()
    feed = fed(recorder, tmp_path)
    line = json.dumps({"env_steps": 3}).encode() + b"\n"
    with open(tmp_path / "records.jsonl", "ab", buffering=0) as file:
        for part in (line[:5], line[5:]):
            file.write(part)
            feed.notify(file.tell())
            until(lambda: feed._alive_at is None)
    finish(feed)
    assert steps(recorder) == [0, 1, 2, 3]
    assert list(feed.news()) == []
