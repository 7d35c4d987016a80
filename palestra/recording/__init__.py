"""What a run shows and records: recorders by name, the display, summaries and plots."""

from collections.abc import Sequence
from typing import Annotated

from palestra.config import ByName, ConfigError, ConfigErrorItem
from palestra.recording.recorders import Recorder
from palestra.recording.to_csv import CsvConfig, CsvRecorder
from palestra.recording.to_mlflow import MlflowConfig, MlflowRecorder
from palestra.recording.to_tensorboard import TensorBoardConfig, TensorBoardRecorder
from palestra.recording.to_trackio import TrackioConfig, TrackioRecorder
from palestra.recording.to_wandb import WandbConfig, WandbRecorder
from palestra.recording.values import Image as Image
from palestra.recording.values import Video as Video

AnyRecorder = TensorBoardConfig | CsvConfig | WandbConfig | MlflowConfig | TrackioConfig
RecorderConfig = Annotated[AnyRecorder, ByName()]


def make_recorder(config: AnyRecorder) -> Recorder:
    """Raises ImportError where an extra is missing."""
    match config:
        case TensorBoardConfig():
            return TensorBoardRecorder(config)
        case CsvConfig():
            return CsvRecorder(config)
        case WandbConfig():
            return WandbRecorder(config)
        case MlflowConfig():
            return MlflowRecorder(config)
        case TrackioConfig():
            return TrackioRecorder(config)


def make_recorders(configs: Sequence[AnyRecorder]) -> dict[str, Recorder]:
    """The recorders by name. Raises ConfigError, with the extra to install, where a library is missing."""
    recorders: dict[str, Recorder] = {}
    faults = []
    for index, config in enumerate(configs):
        try:
            recorders[config.name] = make_recorder(config)
        except ImportError as error:
            message = f"{error}; it needs an extra: pip install 'palestra[{config.name}]'"
            faults.append(ConfigErrorItem(f"output.recorders.{index}", message))
    if faults:
        raise ConfigError(faults)
    return recorders


def check_recorders(configs: Sequence[AnyRecorder]) -> Sequence[AnyRecorder]:
    """Refuse two of one kind: they would write the same files."""
    names = [config.name for config in configs]
    faults = [
        ConfigErrorItem(f"{index}.name", f"{name!r} stands there twice; expected each recorder once")
        for index, name in enumerate(names)
        if name in names[:index]
    ]
    if faults:
        raise ConfigError(faults)
    return configs
