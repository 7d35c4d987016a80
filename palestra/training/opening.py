"""Which class trains a run, and how one is made.

A file names it under `trainer`. From Python, a class derived from the named one may train instead, and networks may be
handed over that no file names.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from torch import nn

from palestra.callbacks import Callback
from palestra.config import ConfigError, load_class, reading_own
from palestra.run import KINDS
from palestra.run.base import BaseRunConfig, TrainingClass
from palestra.run.kinds import kind_named, read_config
from palestra.storage.disk import RunFolderError
from palestra.storage.run_folder import RunFolder

Builder = Callable[[], nn.Module]  # a class is one
Nets = nn.Module | Builder | Mapping[str, nn.Module | Builder | Sequence[nn.Module]]
Models = Nets | Mapping[str, Nets]  # of one player that learns; or by role


def are_made(nets: Nets) -> bool:
    """Whether there are networks among `nets`, and not only builders, which a config can name."""
    return any(map(is_made, nets.values())) if isinstance(nets, Mapping) else is_made(nets)


def is_made(value: Any) -> bool:
    return isinstance(value, nn.Module | Sequence)


def calls_of(models: Mapping[str, Nets]) -> list[str]:
    """The calls of `set_model` that hand these networks over, as run.json has them."""
    return [f"set_model({role!r}, ...)" for role, nets in models.items() if are_made(nets)]


def named_classes(config: BaseRunConfig) -> tuple[Any, ...]:
    """The class that the key `trainer` of a config names, and then those that train in the same way."""
    name = config.trainer.name
    if name in KINDS:
        return kind_named(name).trainers()[name]
    try:
        return (load_class(name, TrainingClass),)
    except ValueError as error:
        raise ConfigError.at("trainer.name", str(error)) from error


def python_class(cls: type[Any], config: BaseRunConfig) -> str | None:
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


def class_for(cls: type[Any], config: BaseRunConfig, folder: RunFolder) -> Any:
    """The class to build when `cls.load` or `cls.branch` is called for a run.

    It is the class that the config names, or `cls` if that is derived from it; for a stock trainer as `cls`, always the
    named one. Raises RunFolderError for a run that another class has trained.
    """
    named = named_classes(config)[0]
    is_stock = any(cls is kind_named(name).trainers()[name][0] for name in KINDS)
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


def make_trainer(
    config: str | Path | dict[str, Any] | BaseRunConfig,
    run: str | Path | RunFolder | None = None,
    overrides: Sequence[str] = (),
    callbacks: Sequence[Callback] = (),
    console: Console | None = None,
) -> Any:
    """A trainer of the class that a config names under `trainer`: a Trainer, or an object of a class of your own.

    The arguments are those of Trainer. Raises ConfigError with every fault of the config at once.
    """
    with reading_own():
        read: BaseRunConfig = read_config(config, overrides)
    trainer: Any = named_classes(read)[0](read, run=run, callbacks=callbacks, console=console)
    if isinstance(config, str | Path):
        trainer.run.name = Path(config).stem
    return trainer
