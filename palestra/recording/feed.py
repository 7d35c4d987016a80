"""Feeds: each hands the records of a run to one recorder, in a thread of its own.

So training neither waits for the recorder nor fails with it. The only source is records.jsonl: after a failure of the
recorder, or a kill of the run, the missing records come from there.
"""

import logging
import os
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import BinaryIO

from palestra.recording.recorders import Recorder, RunCard, RunEnd
from palestra.storage.disk import open_plain
from palestra.storage.records_file import parse_record
from palestra.storage.run_folder import RunFolder
from palestra.storage.secrets import redacted

PATIENCE_S = 60.0  # a recorder without a sign of life for so long is reported, and the end of a run waits no longer
FIRST_PAUSE_S = 1.0  # before a failed recorder is tried again; each further pause is twice as long
LONGEST_PAUSE_S = 300.0

logger = logging.getLogger(__name__)


class Feed:
    """The thread of one recorder. Only `wait` waits for the recorder; all other methods return at once.

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
