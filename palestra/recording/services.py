"""Recorders that hand records to other systems, over env steps or opt steps: Weights & Biases, trackio and MLflow.

Weights & Biases and trackio get one row for each record, on a server or on this machine. MLflow gets metrics; what is
no number becomes an artifact.
"""

import logging
import re
import secrets
import shutil
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator

from palestra.config import Config, NonEmptyStr
from palestra.recording.recorders import Recorder, RunCard, RunEnd, files_of_checkpoints, numbers_of, stored_run_id
from palestra.recording.values import Histogram, Media, values_of
from palestra.storage.disk import Folder
from palestra.storage.secrets import MAY_HOLD, may_hold_secret

MAX_METRICS, MAX_PARAMS, MAX_LENGTH = 1000, 100, 6000  # of one request to MLflow, and of a param
STATUS = {"complete": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}
COUNT = "records"

# ---- Weights & Biases, and trackio ---------------------------------------------------------------------


def _row(library: Any, record: Mapping[str, Any], folder: Path, text: Callable[[str], Any]) -> dict[str, Any]:
    """Return a record as a row: its numbers, and other values as a library shows them. text: makes what shows texts."""
    row: dict[str, Any] = numbers_of(record)
    for name, value in values_of(record, folder):
        match value:
            case Histogram():
                row[name] = library.Histogram(np_histogram=(value.counts, value.edges))
            case Media():
                row[name] = (library.Video if value.is_video else library.Image)(str(value.path))
            case str():
                row[name] = text(value)
    return row


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
        self.config, self._wandb = config, import_module("wandb")
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
        self._run.log(_row(self._wandb, record, self._folder, str), step=number, commit=True)

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


def _note(*parts: object, **options: object) -> None:
    logging.getLogger("trackio").info("%s", " ".join(map(str, parts)))


class TrackioRecorder(Recorder):
    """Files the records of a run in trackio. The run is named for its folder and an id that is kept in trackio/run-id.

    A row that is there stays: a resumed run adds what comes after it.
    """

    def __init__(self, config: TrackioConfig) -> None:
        self.config, self._trackio = config, import_module("trackio")
        self._run: Any = None
        self._last = 0
        for module in map(import_module, ("trackio", "trackio.run", "trackio.utils")):
            vars(module)["print"] = _note  # the screen is the display's

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
        self._run.log(_row(self._trackio, record, self._folder, self._trackio.Markdown), step=number)
        self._last = number

    def flush(self) -> None:
        """Nothing to do: trackio sends in a thread of its own."""

    def close(self, end: RunEnd) -> None:
        self._run.log({**end.scores, "status": end.status}, step=self._last)
        self._run.finish()
        self._run = None


# ---- MLflow --------------------------------------------------------------------------------------------


def _without_secret(uri: str) -> str:
    if may_hold_secret(uri):
        raise ValueError(
            f"{MAY_HOLD}; expected users and secrets in the environment: MLFLOW_TRACKING_USERNAME and "
            "MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN; of a database where its own client looks, as PGUSER "
            "and ~/.pgpass"
        )
    return uri


class MlflowConfig(Config):
    name: Literal["mlflow"]
    """MLflow (extra: mlflow); user and password come from MLFLOW_TRACKING_USERNAME and _PASSWORD, never from here"""
    tracking_uri: Annotated[NonEmptyStr, AfterValidator(_without_secret)]
    """a server (https://...) or a database (sqlite:///mlflow.db)"""
    experiment: NonEmptyStr
    """the experiment that the run appears in; made where there is none of that name"""
    run_name: NonEmptyStr | None
    """what the run is called; null: as its folder"""
    tags: dict[str, str]
    """tags of the run, besides `status`: running, complete, failed or interrupted"""
    checkpoints: bool
    """file the latest and the best checkpoint as artifacts when training ends or pauses; without replay rows"""

    def build(self) -> "MlflowRecorder":
        return MlflowRecorder(self)


class MlflowRecorder(Recorder):
    """Files the records of a run in MLflow. The run's id is kept in mlflow/run-id.

    The metric `records` tells how many records are filed; it goes with the last of them in one request. What is filed
    stays: a resumed run adds what comes after it.
    """

    def __init__(self, config: MlflowConfig) -> None:
        self.config = config
        self._mlflow, self._entities = import_module("mlflow"), import_module("mlflow.entities")
        logging.getLogger("mlflow").setLevel(logging.WARNING)  # the screen is the display's
        self._now = 0

    def open(self, run: RunCard) -> int:
        self._waiting: list[Any] = []
        self._folder, self._axis = run.folder, run.axis
        self._client = self._mlflow.MlflowClient(tracking_uri=self.config.tracking_uri)
        self._id = stored_run_id(Folder(run.folder, "mlflow"), lambda: self._create(run))
        found = self._client.get_run(self._id)
        params = {_name(key): "null" if value is None else str(value) for key, value in run.params.items()}
        new = [
            self._entities.Param(key, value[:MAX_LENGTH])
            for key, value in params.items()
            if key not in found.data.params  # a param cannot be changed
        ]
        for i in range(0, len(new), MAX_PARAMS):
            self._client.log_batch(self._id, params=new[i : i + MAX_PARAMS])
        self._client.update_run(self._id, status="RUNNING")
        self._client.set_tag(self._id, "status", "running")
        return int(found.data.metrics.get(COUNT, 0))

    def _create(self, run: RunCard) -> str:
        found = self._client.get_experiment_by_name(self.config.experiment)
        experiment = found.experiment_id if found else self._client.create_experiment(self.config.experiment)
        made = self._client.create_run(experiment, run_name=self.config.run_name or run.name, tags=self.config.tags)
        return str(made.info.run_id)

    def write(self, number: int, record: Mapping[str, Any]) -> None:
        metrics = self._metrics({**numbers_of(record), COUNT: number + 1}, record[self._axis])
        if len(self._waiting) + len(metrics) > MAX_METRICS:
            self.flush()
        self._waiting += metrics
        for name, value in values_of(record, self._folder):  # what is filed twice has the same name, so it stands once
            match value:
                case Histogram():
                    content = {"edges": value.edges, "counts": value.counts}
                    self._client.log_dict(self._id, content, f"{name}-{number}.json")
                case Media():
                    self._client.log_artifact(self._id, str(value.path), str(PurePosixPath(value.name).parent))
                case str():
                    self._client.log_text(self._id, value, f"{name}-{number}.txt")

    def flush(self) -> None:
        for i in range(0, len(self._waiting), MAX_METRICS):
            self._client.log_batch(self._id, metrics=self._waiting[i : i + MAX_METRICS])
        self._waiting = []

    def close(self, end: RunEnd) -> None:
        self._waiting += self._metrics(end.scores, end.step)
        self.flush()
        if self.config.checkpoints:
            for path, name in files_of_checkpoints(self._folder):
                self._client.log_artifact(self._id, str(path), str(PurePosixPath("run", name).parent))
        self._client.set_tag(self._id, "status", end.status)
        self._client.set_terminated(self._id, STATUS[end.status])

    def _metrics(self, numbers: Mapping[str, float], step: int) -> list[Any]:
        self._now = max(int(time.time() * 1000), self._now + 1)  # MLflow orders records of one step by it
        return [self._entities.Metric(_name(name), value, self._now, step) for name, value in numbers.items()]


def _name(text: str) -> str:
    """Replace the characters in a name that MLflow does not take."""
    return re.sub(r"[^\w\-. /]", "_", text)
