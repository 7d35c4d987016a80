"""Checks a config for everything that `train` would refuse, without making an environment or importing an extra."""

import tempfile
from typing import NamedTuple, TypeVar

from palestra.config import ConfigError, ConfigErrorItem, MissingExtra, checking, replaced
from palestra.games.config import NotDeclared, without_environments
from palestra.run.base import BaseRunConfig
from palestra.runtime.device import find_device
from palestra.training.checks import check_checkpoint_folder, check_scratch_folders
from palestra.training.opening import named_classes

C = TypeVar("C", bound=BaseRunConfig)


class Unchecked(NamedTuple):
    """The questions that a check has left open.

    fit: whether actions, networks, wrappers, callbacks and players of other runs fit the environment. missing: the
    extras without which only the file was checked.
    """

    fit: bool
    missing: list[ConfigErrorItem]


def check_trainable(config: BaseRunConfig) -> Unchecked:
    """Raise ConfigError for everything that `train` would refuse, and say what could not be checked."""
    trainer = named_classes(config)[0]
    with checking(), without_environments():
        try:
            trainer.check(config)
        except NotDeclared:
            trainer.check_keys(config)
            return Unchecked(True, [])
        except MissingExtra as error:
            trainer.check_keys(config)
            return Unchecked(False, list(error.errors))
    return Unchecked(False, [])


def lacks_of_this_machine(config: BaseRunConfig) -> list[ConfigErrorItem]:
    """List what a config asks for and this machine lacks, although another one may have it.

    These are its device, and folders that can be written to. `train` refuses them here, but the config has no fault.
    """
    lacks = []
    for require in (lambda each: find_device(each.execution.device), check_checkpoint_folder, check_scratch_folders):
        try:
            require(config)
        except ConfigError as error:
            lacks += error.errors
    return lacks


def apart_from_this_machine(config: C) -> C:
    """The config that is tried in place of another: on the CPU, with folders that exist here, and without output."""
    execution = config.execution.model_copy(update={"device": "cpu"})
    output = config.output.model_copy(update={"display": "quiet", "checkpoint_folder": None})
    config = config.model_copy(update={"execution": execution, "output": output})
    for key in config.scratch_folders():
        config = replaced(config, key, tempfile.gettempdir())
    return config
