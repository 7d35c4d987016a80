"""The records of a run: its records.jsonl, the recorders that read it, and what the display and the plot need of it."""

import logging
import math
import os
import threading
import traceback
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import Any, BinaryIO
from urllib.parse import quote

from palestra.recording.display import Display
from palestra.recording.recorders import Recorder, RunCard, RunEnd, Status, flat_params
from palestra.recording.results import Evaluation, by_name, is_after_training, pair_label, standings
from palestra.recording.values import Image, Video
from palestra.run.base import BaseRunConfig
from palestra.run.checkpoints import CheckpointError
from palestra.storage.disk import open_plain, writing
from palestra.storage.records_file import JsonlRecorder, iterate_records, parse_record, plain
from palestra.storage.run_folder import UNFILED, RunFolder
from palestra.storage.secrets import redacted
from palestra.storage.stored_files import NOT_OURS

PATIENCE_S = 60.0  # a recorder without a sign of life for so long is reported, and the end of a run waits no longer
FIRST_PAUSE_S = 1.0  # before a failed recorder is tried again; each further pause is twice as long
LONGEST_PAUSE_S = 300.0
MOST_POINTS = 128  # of a curve

logger = logging.getLogger(__name__)


class RunRecords:
    """The records of one run; `opened` while the run trains.

    folder: the run's. display: shows what goes wrong. config: the run's. jsonl: the file. step: the largest step of a
    record so far, on the usual axis of the kind of run. evaluations, history: what the records so far hold.
    """

    def __init__(self, folder: RunFolder, display: Display, config: BaseRunConfig) -> None:
        self.folder, self.display, self.config = folder, display, config
        self.evaluations: list[Evaluation] = []
        self.history = History(self.config.counters)
        self.step = 0
        self.feeds: list[Feed] = []
        self._reported_faults: set[str] = set()

    @contextmanager
    def opened(self) -> Iterator[None]:
        """A context in which records can be written.

        If an error leaves it, the recorders are told that the run failed.
        """
        with writing(self.folder.records):
            self.jsonl = JsonlRecorder(self.folder.records)
        try:
            yield
        except BaseException as error:
            self.finish("interrupted" if isinstance(error, KeyboardInterrupt) else "failed")
            raise
        finally:
            self.jsonl.close()

    def flush(self, checkpoint: int) -> None:
        """Bring all records to the disk, before the checkpoint of this number, which counts them.

        Raises CheckpointError if the disk refuses.
        """
        try:
            self.jsonl.flush()
        except OSError as error:
            why = f"the records before it cannot be written: {error}"
            raise CheckpointError(f"checkpoint {checkpoint:08d} could not be saved: {why}") from error
        self._show_news()

    def cut(self, length: int, step: int) -> None:
        """Keep the records in the first `length` bytes alone. step: the largest step among them."""
        self.step = step
        self.jsonl.cut(length)
        self.read_back()

    def read_back(self) -> None:
        """Remember what the file says."""
        self.evaluations, self.history = [], History(self.config.counters)
        for record in self.read():
            try:
                self._remember(record)
            except NOT_OURS as error:
                self._report_fault(f"{self.folder.records}: an evaluation differs from what was written: {error!r}")

    def feed(self, recorders: Mapping[str, Recorder]) -> None:
        """Hand all records, past and future, to recorders."""
        self._note_unfiled(list(recorders))
        card = RunCard(self.folder.path, flat_params(self.config.model_dump()), self.config.axis())
        self.feeds = [Feed(name, recorder, card, self.folder.records) for name, recorder in recorders.items()]

    def finish(self, status: Status) -> None:
        """Wait until the recorders have filed all records and the end of the run."""
        scores = {
            f"final/{name}/{pair_label(pair)}/{measure}": score.value
            for name, evaluations in by_name(self.evaluations).items()
            for pair in standings(evaluations)
            if pair.learned and is_after_training(evaluations)
            for measure, score in pair.scores.items()
            if math.isfinite(score.value)
        }
        for feed in self.feeds:
            feed.end(RunEnd(status, self.step, scores))
        for feed in self.feeds:
            feed.wait()
        self._show_news()
        self._note_unfiled([feed.name for feed in self.feeds if not feed.is_complete])
        self.feeds = []

    def unfiled(self) -> list[str]:
        """The names of the recorders that lack records or the end of the run, as the last process noted them."""
        is_there = self.folder.root.kind(UNFILED) is not None
        return self.folder.root.read(UNFILED).decode(errors="replace").split() if is_there else []

    def _note_unfiled(self, names: list[str]) -> None:
        with suppress(OSError):  # a full disk is reported elsewhere
            if names:
                self.folder.root.write(UNFILED, ("\n".join(names) + "\n").encode())
            elif self.feeds:
                self.folder.root.remove(UNFILED)

    def _show_news(self) -> None:
        for feed in self.feeds:
            for line in feed.news():
                self.display.error(line)

    def read(self) -> list[dict[str, Any]]:
        """All records that can be read; each damaged line is reported once."""
        return list(iterate_records(self.folder.records, self._report_fault))

    def _report_fault(self, fault: str) -> None:
        if fault not in self._reported_faults:
            self._reported_faults.add(fault)
            self.display.error(f"{fault}; the run goes on without that line")

    def write(self, record: Mapping[str, Any]) -> None:
        """Write a record, and before it the files of its images and videos.

        If the disk refuses, this is reported once, and the records wait in memory.
        """
        at = record[self.config.axis()]
        counted = (self.config.axis(), "opt_steps", "stages")
        step = "-".join(str(record[name]) for name in counted if name in record)
        record = {key: self._filed(value, key, step) for key, value in record.items()}
        was_waiting = self.jsonl.is_waiting
        try:
            self.jsonl.write(record)
        except OSError as error:
            if not was_waiting:
                self.display.error(f"the disk refuses records, which wait in memory: {error}; training goes on")
        self.step = max(self.step, at)
        for feed in self.feeds:
            feed.notify(self.jsonl.length)
        self._show_news()
        self._remember(plain(record))

    def _remember(self, record: Mapping[str, Any]) -> None:
        """Keep what the display and the plot need of a record."""
        if record.get("kind") == "evaluation":
            self.evaluations.append(Evaluation.from_record(record))
        elif record.get("kind") == "training":
            self.history.add(record)

    def _filed(self, value: Any, name: str, step: str) -> Any:
        """Write the images and videos in a value of a record, and give what stands in its place.

        name: of its files: the keys that lead to it. step: with which their names end.
        """
        if isinstance(value, Image | Video):
            path = self._file(f"{name}-{step}{value.suffix}", value)
            return None if path is None else {value.kind: path}
        if isinstance(value, Mapping):
            return {key: self._filed(item, f"{name}/{quote(str(key), safe='/ ')}", step) for key, item in value.items()}
        return value

    def _file(self, name: str, media: Image | Video) -> str | None:
        """Write an image or a video. Gives its path in the run's folder; None if the disk refuses."""
        *folders, last = name.split("/")
        folder = self.folder.media
        try:
            folder.make()
            for inner in folders:
                folder = folder.below(inner).make()
            folder.write(last, media.to_bytes())
        except OSError as error:
            path = folder.path / last
            self.display.error(f"{path} could not be written: {error}; training goes on, and the record has null there")
            return None
        return f"media/{name}"


class Feed:
    """The thread of one recorder. Only `wait` waits for the recorder; all other methods return at once.

    So training neither waits for the recorder nor fails with it. The only source is records.jsonl: after a failure of
    the recorder, or a kill of the run, the missing records come from there.

    is_complete: whether all records and the end are filed. num_filed: how many records are filed.
    """

    def __init__(self, name: str, recorder: Recorder, run: RunCard, records: Path) -> None:
        self.name, self.recorder, self.run, self.records = name, recorder, run, records
        self.is_complete, self.num_filed = False, 0
        self._length = records.stat().st_size
        self._end: RunEnd | None = None
        self._news: list[str] = []
        self._pause_s = FIRST_PAUSE_S
        self._is_failing = self._is_hung = False
        self._alive_at: float | None = monotonic()  # the last sign of life; None while there is nothing to do
        self._wake, self._ending = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work, name=f"recorder {name}", daemon=True)
        self._thread.start()

    # ---- the training's side ---------------------------------------------------------------------------

    def notify(self, length: int) -> None:
        """Say that records.jsonl has grown to `length` bytes."""
        self._length = length
        self._wake.set()

    def news(self) -> Iterator[str]:
        """Yield lines for the user, each once."""
        if not self._is_hung and (alive_at := self._alive_at) is not None and monotonic() - alive_at > PATIENCE_S:
            self._is_hung = True
            self._news.append(f"recorder {self.name} has not answered for {PATIENCE_S:g} s; training goes on")
        while self._news:
            yield self._news.pop(0)

    def end(self, end: RunEnd) -> None:
        """Say how the run ended: no further record will come."""
        self._alive_at = monotonic()
        self._end = end
        self._ending.set()
        self._wake.set()

    def wait(self) -> None:
        """Wait until all is filed, the recorder has failed again, or it has shown no sign of life for PATIENCE_S."""
        while self._thread.is_alive():
            self._thread.join(timeout=0.05)
            if (alive_at := self._alive_at) is not None and monotonic() - alive_at > PATIENCE_S:
                break
        if not self.is_complete:
            self._is_hung = True  # so that it is not reported again
            filed = f"it has filed {self.num_filed} records, but not how the run ended"
            way = RunFolder(self.run.folder).ways_on().to_resume()
            rest = "" if way is None else f"; to file the rest: {way}"
            self._news.append(f"recorder {self.name} is not finished: {filed}{rest}")

    # ---- the recorder's side ---------------------------------------------------------------------------

    def _work(self) -> None:
        while True:
            is_last = self._ending.is_set()
            try:
                self._file_records()
                return
            except BaseException as error:  # whatever a library raises in this thread: training goes on
                self._failed(error)
            if is_last:
                return
            self._alive_at = None
            self._ending.wait(self._pause_s)
            self._alive_at = monotonic()
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)

    def _file_records(self) -> None:
        num_before = self.num_filed = self.recorder.open(self.run)
        number = 0
        with os.fdopen(open_plain(self.records).descriptor, "rb") as file:
            while True:
                end = self._end  # before the length: after the end nothing more is recorded
                for line in _new_lines(file, self._length):
                    if number >= num_before:
                        self._file(number, line)
                    number += 1
                    self._alive_at = monotonic()
                self.recorder.flush()
                self.num_filed = max(self.num_filed, number)
                if end is not None:
                    self.recorder.close(end)
                    self.is_complete = True
                self._pause_s = FIRST_PAUSE_S
                if self._is_failing or self._is_hung:
                    self._is_failing = self._is_hung = False
                    self._news.append(f"recorder {self.name} works again; no record is missing there")
                if end is not None:
                    return
                self._alive_at = None
                self._wake.wait()
                self._wake.clear()
                self._alive_at = monotonic()

    def _file(self, number: int, line: bytes) -> None:
        try:
            record = parse_record(line)
        except ValueError:  # a damaged line, which RunRecords reports
            return
        self.recorder.write(number, record)

    def _failed(self, error: BaseException) -> None:
        logger.debug("recorder %s failed: %s", self.name, redacted("".join(traceback.format_exception(error))))
        if not self._is_failing:
            self._is_failing = True
            text = redacted(str(error)).strip().partition("\n")[0]
            why = f"{type(error).__name__}: {text}" if text else type(error).__name__
            self._news.append(f"recorder {self.name} failed: {why}; it is tried again, training goes on")


def _new_lines(file: BinaryIO, length: int) -> Iterator[bytes]:
    """Yield the whole lines from the file's position up to `length` bytes."""
    while (start := file.tell()) < length:
        if not (line := file.readline()).endswith(b"\n"):
            file.seek(start)  # its end is yet to be written
            return
        yield line


class Curve:
    """A curve of fewer than MOST_POINTS points, each the mean of equally many values.

    When there are MOST_POINTS, pairs of points are merged.
    """

    def __init__(self) -> None:
        self.points: list[float] = []
        self.last = math.nan
        self._num = 1  # values per point
        self._values: list[float] = []  # of the next point

    def add(self, value: float) -> None:
        self.last = value
        self._values.append(value)
        if len(self._values) < self._num:
            return
        self.points.append(sum(self._values) / self._num)
        self._values = []
        if len(self.points) == MOST_POINTS:
            self.points = [(one + other) / 2 for one, other in zip(self.points[::2], self.points[1::2], strict=True)]
            self._num *= 2


class History:
    """The curves of every player's metrics and of its episodes, by the names that they have in records.

    counters: names that have no curve.
    """

    def __init__(self, counters: Collection[str]) -> None:
        self.counters = counters
        self.curves: dict[str, dict[str, Curve]] = {}

    def add(self, record: Mapping[str, Any]) -> None:
        """Add the numbers of a training record, in which null stands for NaN."""
        for player, metrics in record.get("players", {}).items():
            curves = self.curves.setdefault(player, {})
            won = {f"won/{whom}": told["won"] for whom, told in metrics.get("meets", {}).items() if "won" in told}
            for name, value in (metrics.get("episodes", {}) | won | metrics).items():
                is_number = isinstance(value, int | float | None) and not isinstance(value, bool)
                if is_number and name not in self.counters:
                    curves.setdefault(name, Curve()).add(math.nan if value is None else float(value))

    def last(self, player: str) -> dict[str, float]:
        """Return the last value of each curve of a player."""
        return {name: curve.last for name, curve in self.curves.get(player, {}).items()}

    def points(self, player: str) -> dict[str, list[float]]:
        """Return the points of each curve of a player."""
        return {name: curve.points for name, curve in self.curves.get(player, {}).items()}
