"""Recorders that write files into the run's folder: TensorBoard's events, and tables as CSV.

TensorBoard gets scalars, histograms, images and texts, at the env step or opt step. It sorts scalars by name. Up to
NUM_MAIN of them, those that matter most, stand under `at_a_glance/`, all others under `detail/`, and the last scores
under `final/`. Hyperparameters appear in its HPARAMS tab. CSV has one file for each kind of record, one row for each
record, one column for each number.
"""

import csv
import io
import os
import re
import socket
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import numpy as np

from palestra.config import Config
from palestra.recording.recorders import Recorder, RunCard, RunEnd, Status, numbers_of
from palestra.recording.results import path_of_pair
from palestra.recording.values import Histogram, Media, values_of
from palestra.storage.disk import Folder

# ---- TensorBoard ---------------------------------------------------------------------------------------

SUFFIX = ".palestra"
NUM_MAIN, NUM_SCORES = 20, 12  # scalars at a glance, and how many of them may be scores of evaluations
MAIN_METRICS = ("episodes/return/", "episodes/length", "loss", "learning_rate", "exploration", "entropy", "grad_norm")
OUR_EVENTS = re.compile(rf"events\.out\.tfevents\.[0-9]+\..+\.[0-9a-f]{{32}}{re.escape(SUFFIX)}")


class TensorBoardConfig(Config):
    name: Literal["tensorboard"]
    """files for TensorBoard, in the run's tensorboard/"""

    def build(self) -> "TensorBoardRecorder":
        return TensorBoardRecorder(self)


class TensorBoardRecorder(Recorder):
    """Writes TensorBoard's files, anew each time that the run goes on, because event files cannot be cut back."""

    def __init__(self, config: TensorBoardConfig) -> None:
        self._events: Any = None  # an _EventFile, once it is open
        import_module("torch.utils.tensorboard")  # takes seconds: now, not while the clock of training runs

    def open(self, run: RunCard) -> int:
        from torch.utils.tensorboard.summary import hparams, text

        if self._events is not None:
            with suppress(OSError):  # nothing of that file is needed
                self._events.file.close()
        self._main: list[str] = []
        self._folder, folder = run.folder, Folder(run.folder, "tensorboard").make()
        folder.remove_files(OUR_EVENTS.fullmatch)
        self._events, self._axis = _EventFile(folder), run.axis
        params = {key: "null" if value is None else value for key, value in run.params.items()}
        _, start, _ = hparams(params, {})  # without an experiment of its own, all scalars are metrics
        self._events.add(start, 0)
        self._events.add(text("status", "running"), 0)
        return 0

    def write(self, number: int, record: Mapping[str, Any]) -> None:
        from torch.utils.tensorboard.summary import scalar, text

        step = record[self._axis]
        self._choose_main(record)
        for name, value in numbers_of(record).items():
            group = "at_a_glance" if name in self._main else "detail"
            self._events.add(scalar(f"{group}/{name}", value), step)
        for name, other in values_of(record, self._folder):
            match other:
                case Histogram():
                    self._events.add(_histogram(name, other), step)
                case Media():
                    self._events.add(_image(name, other.path), step)
                case str():
                    self._events.add(text(name, other), step)

    def _choose_main(self, record: Mapping[str, Any]) -> None:
        """Add names of a record to those at a glance, while there is room: the first ones to come stay."""
        num_scores = sum(name.startswith("evaluation/") for name in self._main)
        room = {True: NUM_SCORES - num_scores, False: NUM_MAIN - NUM_SCORES - len(self._main) + num_scores}
        for name in main_names(record):
            is_score = name.startswith("evaluation/")
            if name not in self._main and room[is_score] > 0:
                self._main.append(name)
                room[is_score] -= 1

    def flush(self) -> None:
        self._events.file.flush()

    def close(self, end: RunEnd) -> None:
        from torch.utils.tensorboard.summary import scalar, text

        for name, value in end.scores.items():
            self._events.add(scalar(name, value), end.step)
        self._events.add(_session_end(end.status), 0)
        self._events.add(text("status", end.status), end.step)
        self._events.file.close()
        self._events = None


def main_names(record: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of the numbers in a record that matter most, in the order of their importance.

    They are the scores of learning players, and of each player the returns, the loss and what its schedules say.
    """
    shown = [score for score in record.get("declared_scores", []) if score["shown"]]
    for pair in record.get("pairs", []):
        for score in shown if pair["learned"] else []:
            if {*score["high_for"], *score["low_for"]} & set(pair["learned"]):
                yield f"{path_of_pair(record, pair)}/{score['name']}"
    numbers = [name for name in numbers_of(record) if name.startswith("players/")]
    for metric in MAIN_METRICS:
        for name in numbers:
            own = name.split("/", 2)[2] if name.count("/") > 1 else ""
            if own == metric or (metric.endswith("/") and own.startswith(metric)):
                yield name


class _EventFile:
    """A file of TensorBoard's events.

    Torch's SummaryWriter writes in a thread of its own, which dies of a full disk with a traceback, and is then waited
    for without end; this one raises OSError where it is called.
    """

    def __init__(self, folder: Folder) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.summary.writer.record_writer import RecordWriter

        name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{uuid.uuid4().hex}{SUFFIX}"
        self.file = os.fdopen(folder.append(name).descriptor, "wb")
        self._records, self._event = RecordWriter(self.file), Event
        self._put(file_version="brain.Event:2")
        # a TensorBoard that looks on forgets what it has seen
        self._put(session_log=SessionLog(status=SessionLog.START))

    def add(self, summary: Any, step: int) -> None:
        self._put(step=step, summary=summary)

    def _put(self, **content: Any) -> None:
        self._records.write(self._event(wall_time=time.time(), **content).SerializeToString())


def _histogram(name: str, histogram: Histogram) -> Any:
    """Make a summary of a histogram.

    Its sums, which TensorBoard keeps and does not show, are those of the bins' middles.
    """
    from torch.utils.tensorboard.summary import histogram_raw

    edges, counts = np.array(histogram.edges), np.array(histogram.counts)
    middles = (edges[:-1] + edges[1:]) / 2
    sums = counts.sum(), counts @ middles, counts @ middles**2
    return histogram_raw(name, edges[0], edges[-1], *sums, edges[1:].tolist(), counts.tolist())


def _image(name: str, path: Path) -> Any:
    """Make a summary of a PNG or a GIF: TensorBoard shows both as images, and plays the latter."""
    import PIL.Image
    from tensorboard.compat.proto.summary_pb2 import Summary

    with PIL.Image.open(path) as picture:
        width, height = picture.size
    image = Summary.Image(height=height, width=width, colorspace=3, encoded_image_string=path.read_bytes())
    return Summary(value=[Summary.Value(tag=name, image=image)])


def _session_end(status: Status) -> Any:
    """Make the summary by which the HPARAMS tab knows how a run ended."""
    from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
    from tensorboard.plugins.hparams import api_pb2, metadata
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionEndInfo

    ends = {"complete": api_pb2.STATUS_SUCCESS, "failed": api_pb2.STATUS_FAILURE}
    data = HParamsPluginData(
        session_end_info=SessionEndInfo(status=ends.get(status, api_pb2.STATUS_UNKNOWN)),
        version=metadata.PLUGIN_DATA_VERSION,
    )
    plugin = SummaryMetadata.PluginData(plugin_name=metadata.PLUGIN_NAME, content=data.SerializeToString())
    value = Summary.Value(tag=metadata.SESSION_END_INFO_TAG, metadata=SummaryMetadata(plugin_data=plugin))
    return Summary(value=[value])


# ---- CSV -----------------------------------------------------------------------------------------------

OUR_TABLE = re.compile(r"(training|evaluation|failed_evaluation)\.csv|\.[a-z_]+\.csv\.[0-9]+\.tmp")
MAX_TABLE_BYTES = 1 << 40


class CsvConfig(Config):
    name: Literal["csv"]
    """tables in the run's csv/, one for each kind of record"""

    def build(self) -> "CsvRecorder":
        return CsvRecorder(self)


class CsvRecorder(Recorder):
    """Writes CSV files, anew each time that the run goes on. A column that comes later is empty in earlier rows."""

    def __init__(self, config: CsvConfig) -> None:
        self._tables: dict[str, _Table] = {}

    def open(self, run: RunCard) -> int:
        self._folder = Folder(run.folder, "csv").make()
        self._folder.remove_files(OUR_TABLE.fullmatch)
        self._tables = {}
        return 0

    def write(self, number: int, record: Mapping[str, Any]) -> None:
        kind = record["kind"]
        if kind not in self._tables:
            self._tables[kind] = _Table(self._folder, f"{kind}.csv")
        self._tables[kind].add({"record": number, **numbers_of(record)})

    def flush(self) -> None:
        for table in self._tables.values():
            table.write()

    def close(self, end: RunEnd) -> None:
        self.flush()


class _Table:
    """A CSV file that may get more columns."""

    def __init__(self, folder: Folder, name: str) -> None:
        self._folder, self._name = folder, name
        self._columns: list[str] = []
        self._rows: list[dict[str, float]] = []  # not yet written
        self._is_wider = False

    def add(self, row: dict[str, float]) -> None:
        new = [name for name in row if name not in self._columns]
        self._is_wider |= bool(new)
        self._columns += new
        self._rows.append(row)

    def write(self) -> None:
        if not self._rows:
            return
        if self._is_wider:
            written: list[dict[str, Any]] = []
            if self._folder.kind(self._name) is not None:
                text = self._folder.read(self._name, MAX_TABLE_BYTES).decode()
                written = list(csv.DictReader(io.StringIO(text, newline="")))
            self._folder.write(self._name, self._text(written + self._rows, with_head=True).encode())
            self._is_wider = False
        else:
            with closing(self._folder.append(self._name)) as file:
                file.append(self._text(self._rows, with_head=False).encode())
        self._rows = []

    def _text(self, rows: list[dict[str, Any]], with_head: bool) -> str:
        text = io.StringIO()
        writer = csv.DictWriter(text, self._columns, restval="", lineterminator="\n")
        if with_head:
            writer.writeheader()
        writer.writerows(rows)
        return text.getvalue()
