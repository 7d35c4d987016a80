"""A recorder of metrics of an MLflow run, at the env step or opt step; what is no number becomes an artifact."""

import re
import time
from collections.abc import Mapping
from importlib import import_module
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator

from palestra.config import Config, NonEmptyStr
from palestra.recording.artifacts import files_of_checkpoints
from palestra.recording.recorders import Recorder, RunCard, RunEnd, numbers_of, stored_run_id
from palestra.recording.values import Histogram, Media, values_of
from palestra.storage.disk import Folder
from palestra.storage.secrets import MAY_HOLD, may_hold_secret

MAX_METRICS, MAX_PARAMS, MAX_LENGTH = 1000, 100, 6000  # of one request, and of a param
STATUS = {"complete": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}
COUNT = "records"


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
        self._mlflow = import_module("mlflow")
        self._entities = import_module("mlflow.entities")

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
        for name, value in values_of(record, self._folder):
            self._log_artifact(f"{name}-{number}", value)

    def _log_artifact(self, name: str, value: Histogram | Media | str) -> None:
        """File a value as an artifact. One that is filed twice has the same name, so it stands there once."""
        match value:
            case Histogram():
                self._client.log_dict(self._id, {"edges": value.edges, "counts": value.counts}, f"{name}.json")
            case Media():
                self._client.log_artifact(self._id, str(value.path), str(PurePosixPath(value.name).parent))
            case str():
                self._client.log_text(self._id, value, f"{name}.txt")

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
        now = int(time.time() * 1000)
        return [self._entities.Metric(_name(name), value, now, step) for name, value in numbers.items()]


def _name(text: str) -> str:
    """Replace the characters in a name that MLflow does not take."""
    return re.sub(r"[^\w\-. /]", "_", text)
