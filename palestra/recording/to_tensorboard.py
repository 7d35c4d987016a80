"""Records as TensorBoard's scalars, histograms, images and texts, at step `env_steps`; hyperparameters for its HPARAMS
tab."""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import PIL.Image

from palestra.config import Config
from palestra.recording.recorders import Recorder, RunCard, RunEnd, Status, numbers_of
from palestra.recording.values import Histogram, Media, values_of

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

SUFFIX = ".palestra"


class TensorBoardConfig(Config):
    name: Literal["tensorboard"]
    """files for TensorBoard, in the run's tensorboard/"""


class TensorBoardRecorder(Recorder):
    """Its files are written anew each time that the run goes on: event files cannot be cut back."""

    def __init__(self, config: TensorBoardConfig) -> None:
        self._writer: SummaryWriter | None = None
        import_module("torch.utils.tensorboard")  # takes seconds: now, not while the clock of training runs

    def open(self, run: RunCard) -> int:
        from torch.utils.tensorboard import SummaryWriter
        from torch.utils.tensorboard.summary import hparams

        if self._writer is not None:
            self._writer.close()
        self._folder, folder = run.folder, run.folder / "tensorboard"
        for path in folder.glob(f"*{SUFFIX}"):
            path.unlink()
        # purge_step: a TensorBoard that looks on forgets what it has seen
        self._writer = SummaryWriter(str(folder), purge_step=0, filename_suffix=SUFFIX)
        params = {key: "null" if value is None else value for key, value in run.params.items()}
        _, start, _ = hparams(params, {})  # without an experiment of its own, all scalars are metrics
        self._add_summary(start)
        self._writer.add_text("status", "running", 0)
        return 0

    def write(self, number: int, record: Mapping[str, Any]) -> None:
        assert self._writer is not None
        for name, value in numbers_of(record).items():
            self._writer.add_scalar(name, value, record["env_steps"])
        for name, other in values_of(record, self._folder):
            match other:
                case Histogram():
                    self._add_histogram(name, other, record["env_steps"])
                case Media():
                    self._add_summary(_image(name, other.path), record["env_steps"])
                case str():
                    self._writer.add_text(name, other, record["env_steps"])

    def flush(self) -> None:
        assert self._writer is not None
        self._writer.flush()

    def close(self, end: RunEnd) -> None:
        assert self._writer is not None
        for name, value in end.scores.items():
            self._writer.add_scalar(name, value, end.env_steps)
        self._add_summary(_session_end(end.status))
        self._writer.add_text("status", end.status, end.env_steps)
        self._writer.close()
        self._writer = None

    def _add_summary(self, summary: Any, step: int | None = None) -> None:
        writer: Any = self._writer
        writer.file_writer.add_summary(summary, step)

    def _add_histogram(self, name: str, histogram: Histogram, step: int) -> None:
        """The sums, which TensorBoard keeps and does not show, are those of the bins' middles."""
        assert self._writer is not None
        edges, counts = np.array(histogram.edges), np.array(histogram.counts)
        middles = (edges[:-1] + edges[1:]) / 2
        sums = counts.sum(), counts @ middles, counts @ middles**2
        self._writer.add_histogram_raw(name, edges[0], edges[-1], *sums, edges[1:].tolist(), counts.tolist(), step)


def _image(name: str, path: Path) -> Any:
    """A PNG or a GIF: TensorBoard shows both as images, and plays the latter."""
    from tensorboard.compat.proto.summary_pb2 import Summary

    with PIL.Image.open(path) as picture:
        width, height = picture.size
    image = Summary.Image(height=height, width=width, colorspace=3, encoded_image_string=path.read_bytes())
    return Summary(value=[Summary.Value(tag=name, image=image)])


def _session_end(status: Status) -> Any:
    """What the HPARAMS tab reads of how a run ended."""
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
