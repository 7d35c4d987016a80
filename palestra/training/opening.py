"""Makes trainings of stored runs, and of new ones that branch off them; which class trains a run.

A file names it under `trainer`. From Python, a class derived from the named one may train instead.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from rich.console import Console

from palestra.callbacks import Callback
from palestra.config import ConfigError, list_of_overrides, load_class, trusting
from palestra.runs.base import BaseRunConfig, TrainingClass
from palestra.runs.branching import branched_config, change_bitless, run_of, seat_overrides
from palestra.runs.kinds import read_stored_config
from palestra.runs.user_nets import Models, Nets, calls_of
from palestra.runtime.console import VisibleConsole
from palestra.storage.disk import RunFolderError
from palestra.storage.fetching import fetch, is_url
from palestra.storage.loaded_checkpoint import checkpoint_folder
from palestra.storage.run_folder import RunFolder


def load(
    cls: Any,
    run: str | Path,
    callbacks: Sequence[Callback],
    console: Console | None,
    into: str | Path | None,
    trust: bool,
    models: Models | None,
    overrides: Sequence[str],
) -> Any:
    """See `palestra.training.training.Training.load`."""
    if is_url(run):
        folder, warnings = fetch(str(run), None if into is None else Path(into))
        for line in warnings:
            (console or VisibleConsole()).print(line, soft_wrap=True)
    elif into is not None:
        raise RunFolderError(f"--run: expected none, because the run goes on in its folder {run}, got {into}")
    else:
        folder = RunFolder.open(Path(run))
        folder.require_plain()
    with trusting(trust):
        if overrides:
            change_bitless(folder, overrides)
        config = read_stored_config(folder.config)
        training = class_for(cls, config, folder)(config, run=folder, callbacks=callbacks, console=console)
    return _with_models(training, training.by_role(config, models), folder.path.name)


def branch(
    cls: Any,
    checkpoint: str | Path,
    overrides: Sequence[str],
    run: str | Path | None,
    callbacks: Sequence[Callback],
    console: Console | None,
    trust: bool,
    freeze: Sequence[str],
    replace: Mapping[str, str] | None,
    models: Models | None,
) -> Any:
    """See `palestra.training.training.Training.branch`."""
    source = run_of(Path(checkpoint))  # raises if there is no run
    origin = checkpoint_folder(Path(checkpoint))
    with trusting(trust):
        stored = read_stored_config(source.config)
        nets_of = named_classes(stored)[0].by_role(stored, models)
        seats = seat_overrides(origin, freeze, replace or {})
        config = branched_config(origin, [*seats, *list_of_overrides(overrides)], calls_of(nets_of))
        built = class_for(cls, config, source)
        training = built(config, run=run, callbacks=callbacks, console=console, origin=origin)
    return _with_models(training, nets_of, f"{source.path.name}-branch")


def _with_models(training: Any, nets_of: Mapping[str, Nets], name: str) -> Any:
    """Give a training the networks with which its run began, and its name."""
    for role, nets in nets_of.items():
        training.set_model(role, deepcopy(nets))
    training.run.name = name
    return training


TRAINERS: dict[str, tuple[type[Any], ...]] = {}
"""The classes by their name in a file: first the one that is built, then others that train in the same way.
palestra.training fills this table."""


def named_classes(config: BaseRunConfig) -> tuple[Any, ...]:
    """The class that the key `trainer` of a config names, and then those that train in the same way."""
    name = config.trainer.name
    if name in TRAINERS:
        return TRAINERS[name]
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
