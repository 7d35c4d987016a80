"""Which class trains a run.

A file names it under `trainer`. A class derived from that one may be given from Python in its place; then no file names
what trains, and the run says so: only the same class goes on with it.
"""

from typing import Any

from palestra.config import ConfigError, ConfigErrorItem, load_class
from palestra.runs.config import BaseRunConfig, TrainerBase
from palestra.storage.disk import RunFolderError
from palestra.storage.run_folder import RunFolder

TRAINERS: dict[str, tuple[type[TrainerBase], ...]] = {}
"""By the name in a file: the class that is built, and others that train in the same way. palestra.training fills it."""


def named_class(config: BaseRunConfig) -> Any:
    """The class that the key `trainer` of a config names."""
    return _named_classes(config)[0]


def _named_classes(config: BaseRunConfig) -> tuple[type[TrainerBase], ...]:
    name = config.trainer.name
    if name in TRAINERS:
        return TRAINERS[name]
    try:
        return (load_class(name, TrainerBase),)
    except ValueError as error:
        raise ConfigError([ConfigErrorItem("trainer.name", str(error))]) from error


def python_class(cls: type[TrainerBase], config: BaseRunConfig) -> str | None:
    """The name of a class that trains in place of the one that the config names and that it is derived from; None: it
    is the one. Raises ConfigError for a class that trains otherwise."""
    named = _named_classes(config)
    if cls in named:
        return None
    if not issubclass(cls, named[0]):
        message = (
            f"expected a trainer that {cls.__qualname__} is derived from, got {config.trainer.name!r}; "
            "palestra.make_trainer(config) builds the class that the config names"
        )
        raise ConfigError([ConfigErrorItem("trainer.name", message)])
    return f"{cls.__module__}:{cls.__qualname__}"


def class_for(cls: type[TrainerBase], config: BaseRunConfig, folder: RunFolder) -> Any:
    """What to build where `cls` is asked for a run: the class that its config names, or what was derived from that.
    The stock trainers stand for any. Raises RunFolderError for a run that another class has trained."""
    named = named_class(config)
    is_stock = any(cls is classes[0] for classes in TRAINERS.values())
    built = named if issubclass(named, cls) or (is_stock and not issubclass(cls, named)) else cls
    before, now = folder.facts().trainer_in_python, python_class(built, config)
    if before is not None and before != now:
        raise folder.other_trainer_needed()
    if before != now:
        raise RunFolderError(
            f"{folder.path} is trained by {config.trainer.name!r}, as its config says; expected palestra.Trainer.load, "
            f"got that of {now}"
        )
    return built
