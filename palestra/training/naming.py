"""Which class trains a run.

A file names it under `trainer`. From Python, a class derived from the named one may train instead. Then no file names
the class that trains, run.json says so, and only the same class can go on with the run.
"""

from typing import Any

from palestra.config import ConfigError, load_class
from palestra.runs.base import BaseRunConfig, TrainerBase
from palestra.storage.disk import RunFolderError
from palestra.storage.run_folder import RunFolder

TRAINERS: dict[str, tuple[type[TrainerBase], ...]] = {}
"""The classes by their name in a file: first the one that is built, then others that train in the same way.
palestra.training fills this table."""


def named_classes(config: BaseRunConfig) -> tuple[Any, ...]:
    """The class that the key `trainer` of a config names, and then those that train in the same way."""
    name = config.trainer.name
    if name in TRAINERS:
        return TRAINERS[name]
    try:
        return (load_class(name, TrainerBase),)
    except ValueError as error:
        raise ConfigError.at("trainer.name", str(error)) from error


def python_class(cls: type[TrainerBase], config: BaseRunConfig) -> str | None:
    """The name of a class that trains in place of the one that the config names; None if it is the named one.

    Raises ConfigError for a class that is not derived from the named one.
    """
    named = named_classes(config)
    if cls in named:
        return None
    if not issubclass(cls, named[0]):
        message = (
            f"expected a trainer that {cls.__qualname__} is derived from, got {config.trainer.name!r}; "
            "palestra.make_trainer(config) builds the class that the config names"
        )
        raise ConfigError.at("trainer.name", message)
    return f"{cls.__module__}:{cls.__qualname__}"


def class_for(cls: type[TrainerBase], config: BaseRunConfig, folder: RunFolder) -> Any:
    """The class to build when `cls.load` or `cls.branch` is called for a run.

    It is the class that the config names, or `cls` if that is derived from it; for a stock trainer as `cls`, always the
    named one. Raises RunFolderError for a run that another class has trained.
    """
    named = named_classes(config)[0]
    is_stock = any(cls is classes[0] for classes in TRAINERS.values())
    built = named if issubclass(named, cls) or (is_stock and not issubclass(cls, named)) else cls
    before, now = folder.facts().trainer_in_python, python_class(built, config)
    if before is not None and before != now:
        raise folder.other_trainer_needed()
    if before != now:
        raise RunFolderError(
            f"{folder.path}: expected palestra.Trainer.load or palestra.Trainer.branch, because its config names the "
            f"trainer {config.trainer.name!r}, got those of {now}"
        )
    return built
