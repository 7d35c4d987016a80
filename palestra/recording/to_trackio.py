"""A recorder of the rows of a trackio run, on this machine or in a Hugging Face Space."""

import secrets
from collections.abc import Mapping
from importlib import import_module
from typing import Any, Literal

from palestra.config import Config, NonEmptyStr
from palestra.recording.recorders import Recorder, RunCard, RunEnd, numbers_of, stored_run_id
from palestra.recording.values import Histogram, Media, values_of
from palestra.storage.disk import Folder


class TrackioConfig(Config):
    name: Literal["trackio"]
    """trackio (extra: trackio); a token comes from `hf auth login` or HF_TOKEN, never from here"""
    project: NonEmptyStr
    """the project that the run appears in; `trackio show` opens it"""
    group: NonEmptyStr | None
    """runs that belong together, as the seeds of one config; null: none"""
    space_id: NonEmptyStr | None
    """a Hugging Face Space, as user/space; null: on this machine"""

    def build(self) -> "TrackioRecorder":
        return TrackioRecorder(self)


class TrackioRecorder(Recorder):
    """Files the records of a run in trackio. The run is named for its folder and an id that is kept in trackio/run-id.

    A row that is there stays: a resumed run adds what comes after it.
    """

    def __init__(self, config: TrackioConfig) -> None:
        self.config = config
        self._trackio = import_module("trackio")
        self._run: Any = None
        self._last = 0

    def open(self, run: RunCard) -> int:
        if self._run is not None:
            self._run.finish()
        self._folder = run.folder
        number = stored_run_id(Folder(run.folder, "trackio"), lambda: secrets.token_hex(4))
        self._run = self._trackio.init(
            project=self.config.project,
            name=f"{run.name}-{number}",
            group=self.config.group,
            space_id=self.config.space_id,
            config=dict(run.params),
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )
        return int(self._run._next_step)  # nothing public tells

    def write(self, number: int, record: Mapping[str, Any]) -> None:
        others = {name: self._shown(value) for name, value in values_of(record, self._folder)}
        self._run.log(numbers_of(record) | others, step=number)
        self._last = number

    def _shown(self, value: Histogram | Media | str) -> Any:
        match value:
            case Histogram():
                return self._trackio.Histogram(np_histogram=(value.counts, value.edges))
            case Media():
                return self._trackio.Video(value.path) if value.is_video else self._trackio.Image(value.path)
        return self._trackio.Markdown(value)

    def flush(self) -> None:
        """Nothing to do: trackio sends in a thread of its own."""

    def close(self, end: RunEnd) -> None:
        self._run.log({**end.scores, "status": end.status}, step=self._last)
        self._run.finish()
        self._run = None
