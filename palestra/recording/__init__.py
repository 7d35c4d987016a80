"""Records of a run and where they go: recorders by name, the display, the summary and plots."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from palestra.config import ByName, Config, ConfigError, ConfigErrorItem, UserConfig, check, failure
from palestra.recording.files import CsvConfig, TensorBoardConfig
from palestra.recording.recorders import Recorder as Recorder
from palestra.recording.recorders import RunCard as RunCard
from palestra.recording.recorders import RunEnd as RunEnd
from palestra.recording.services import MlflowConfig, TrackioConfig, WandbConfig
from palestra.recording.values import Image as Image
from palestra.recording.values import Video as Video

AnyRecorder = TensorBoardConfig | CsvConfig | WandbConfig | MlflowConfig | TrackioConfig | UserConfig
RecorderConfig = Annotated[AnyRecorder, ByName(user_class=Recorder)]


class _Holder(Config):
    recorder: RecorderConfig
    """one recorder"""


class Logger:
    """An entry of `output.recorders`, made in Python: `trainer.set_logger(Logger({"name": "csv"}))`.

    config: its keys. Raises ConfigError.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        data = dict(config) if isinstance(config, Mapping) else config
        try:
            self.config: AnyRecorder = check({"recorder": data}, _Holder).recorder
        except ConfigError as error:
            items = [ConfigErrorItem(each.path.replace("recorder", "Logger", 1), each.message) for each in error.errors]
            raise ConfigError(items) from None


def make_recorders(configs: Sequence[AnyRecorder]) -> dict[str, Recorder]:
    """Make the recorders that a config names; returns them by name.

    Raises ConfigError if a library is missing, with the extra to install, and if a user's own recorder cannot be made.
    """
    recorders: dict[str, Recorder] = {}
    faults = []
    for index, config in enumerate(configs):
        try:
            recorders[config.name] = config.build()
        except Exception as error:
            if isinstance(config, UserConfig):
                message = f"{config.name!r} cannot be made: {failure(error)}"
            elif isinstance(error, ImportError):
                message = f"{error}; it needs an extra: pip install 'palestra[{config.name}]'"
            else:
                raise
            faults.append(ConfigErrorItem(f"output.recorders.{index}", message))
    ConfigError.require_none(faults)
    return recorders


def check_recorders(configs: Sequence[AnyRecorder]) -> Sequence[AnyRecorder]:
    """Raise ConfigError if two recorders have the same name, because they would write the same files."""
    names = [config.name for config in configs]
    ConfigError.require_none(
        ConfigErrorItem(f"{index}.name", f"expected each recorder once, got {name!r} twice")
        for index, name in enumerate(names)
        if name in names[:index]
    )
    return configs
