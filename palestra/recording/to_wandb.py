"""A recorder of the history of a Weights & Biases run: one row for each record, over env steps or opt steps."""

import re
import secrets
import shutil
from collections.abc import Mapping
from importlib import import_module
from typing import Any, Literal

from palestra.config import Config, NonEmptyStr
from palestra.recording.artifacts import files_of_checkpoints
from palestra.recording.recorders import Recorder, RunCard, RunEnd, numbers_of, stored_run_id
from palestra.recording.values import Histogram, Media, values_of
from palestra.storage.disk import Folder


class WandbConfig(Config):
    name: Literal["wandb"]
    """Weights & Biases (extra: wandb); its key comes from `wandb login` or WANDB_API_KEY, never from here"""
    mode: Literal["online", "offline", "disabled"]
    """online: to the server; offline: to the run's wandb/, for `wandb sync`; disabled: nowhere"""
    project: NonEmptyStr
    """the project that the run appears in"""
    entity: NonEmptyStr | None
    """user or team; null: your default one"""
    group: NonEmptyStr | None
    """runs that belong together, as the seeds of one config; null: none"""
    run_name: NonEmptyStr | None
    """what the run is called; null: as its folder"""
    tags: list[NonEmptyStr]
    """the run's tags, besides running, complete, failed or interrupted"""
    notes: NonEmptyStr | None
    """a longer text on the run; null: none"""
    checkpoints: bool
    """file the latest and the best checkpoint as an artifact when training ends or pauses; without replay rows"""

    def build(self) -> "WandbRecorder":
        return WandbRecorder(self)


class WandbRecorder(Recorder):
    """Files the records of a run in Weights & Biases. The run's id is kept in wandb/run-id.

    A row that is on the server stays: a resumed run adds what comes after it. What has only been written offline is
    written anew when the run goes on.
    """

    def __init__(self, config: WandbConfig) -> None:
        self.config = config
        self._wandb = import_module("wandb")
        self._run: Any = None

    def open(self, run: RunCard) -> int:
        config, self._folder = self.config, run.folder
        if self._run is not None:
            self._run.finish(exit_code=1)
            self._run = None
        folder = Folder(run.folder, "wandb")
        run_id = stored_run_id(folder, lambda: secrets.token_hex(8))
        if config.mode == "offline":
            earlier = re.compile(rf"offline-run-[0-9]+_[0-9]+-{re.escape(run_id)}")  # this run's own, and no links
            for name in folder.names():
                if earlier.fullmatch(name) and folder.kind(name) == "folder":
                    shutil.rmtree(folder.path / name)
        quiet = self._wandb.Settings(console="off", silent=True)  # the screen is the display's
        self._wandb.setup(settings=quiet)  # before it asks for a key there
        self._run = self._wandb.init(
            mode=config.mode,
            project=config.project,
            entity=config.entity,
            group=config.group,
            name=config.run_name or run.name,
            tags=[*config.tags, "running"],
            notes=config.notes,
            id=run_id,
            resume="allow" if config.mode == "online" else None,
            dir=run.folder,
            config=dict(run.params),
            allow_val_change=True,  # a run may have been extended
            reinit="create_new",
            settings=quiet,
        )
        self._run.define_metric("*", step_metric=run.axis)
        return int(self._run.starting_step)

    def write(self, number: int, record: Mapping[str, Any]) -> None:
        others = {name: self._shown(value) for name, value in values_of(record, self._folder)}
        self._run.log(numbers_of(record) | others, step=number, commit=True)

    def _shown(self, value: Histogram | Media | str) -> Any:
        match value:
            case Histogram():
                return self._wandb.Histogram(np_histogram=(value.counts, value.edges))
            case Media():
                return self._wandb.Video(str(value.path)) if value.is_video else self._wandb.Image(str(value.path))
        return value

    def flush(self) -> None:
        """Nothing to do: wandb sends in a process of its own."""

    def close(self, end: RunEnd) -> None:
        self._run.summary.update(dict(end.scores))
        self._run.tags = (*self.config.tags, end.status)
        if self.config.checkpoints:
            artifact = self._wandb.Artifact(f"run-{self._run.id}", type="run")
            for path, name in files_of_checkpoints(self._folder):
                artifact.add_file(str(path), name)
            self._run.log_artifact(artifact)
        self._run.finish(exit_code=0 if end.status == "complete" else 1)
        self._run = None
