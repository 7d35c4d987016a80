"""The records of a run: its records.jsonl, the recorders that read it, and what the display and the plot need of it."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from palestra.recording.display import Display
from palestra.recording.feed import Feed
from palestra.recording.recorders import JsonlRecorder, Recorder, RunCard, RunEnd, Status, flat_params, plain
from palestra.recording.results import Evaluation, History, by_name, is_after_training, pair_label, standings
from palestra.recording.values import Image, Video, file_media
from palestra.run.base import BaseRunConfig
from palestra.run.checkpoints import CheckpointError
from palestra.run.loaded_checkpoint import NOT_OURS
from palestra.storage.disk import writing
from palestra.storage.records_file import iterate_records
from palestra.storage.run_folder import UNFILED, RunFolder


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
        card = RunCard(self.folder.path, flat_params(self.config.model_dump()), self.config.axes[0])
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
        at = record[self.config.axes[0]]
        counted = (self.config.axes[0], "opt_steps", "stages")
        step = "-".join(str(record[name]) for name in counted if name in record)
        record = file_media(record, lambda name, media: self._file(f"{name}-{step}{media.suffix}", media))
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
