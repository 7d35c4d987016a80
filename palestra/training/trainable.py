"""Checks a config for everything that `train` would refuse, without making an environment or importing an extra."""

import tempfile
from typing import Any, NamedTuple, TypeVar

from palestra.algorithms.algorithm import Seat
from palestra.config import ConfigError, ConfigErrorItem, MissingExtra, checking, replaced
from palestra.games.config import NotDeclared, without_environments
from palestra.players import FromRunConfig
from palestra.players.seated_models import SeatedModelConfig
from palestra.players.torch_modules import TorchModuleConfig
from palestra.runs.base import BaseRunConfig
from palestra.runs.config import RunConfig
from palestra.runs.parts import check_seat
from palestra.runtime.device import find_device
from palestra.training import make_trainer
from palestra.training.checks import check_checkpoint_folder, check_scratch_folders, scratch_folders

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
    with checking(), without_environments():
        try:
            if isinstance(config, RunConfig) and not _needs_no_environment(config):
                raise NotDeclared
            make_trainer(config).require_ready()
        except NotDeclared:
            _check_apart_from_environment(config)
            return Unchecked(True, [])
        except MissingExtra as error:
            _check_apart_from_environment(config)
            return Unchecked(False, list(error.errors))
    return Unchecked(False, [])


def lacks_of_this_machine(config: BaseRunConfig) -> list[ConfigErrorItem]:
    """List what a config asks for and this machine lacks, although another one may have it.

    These are its device, and folders that can be written to. `train` refuses them here, but the config has no fault.
    """
    lacks = []
    for require in (_require_device, check_checkpoint_folder, check_scratch_folders):
        try:
            require(config)
        except ConfigError as error:
            lacks += error.errors
    return lacks


def _require_device(config: BaseRunConfig) -> None:
    find_device(config.execution.device)


def apart_from_this_machine(config: C) -> C:
    """The config that is tried in place of another: on the CPU, with folders that exist here, and without output."""
    execution = config.execution.model_copy(update={"device": "cpu"})
    output = config.output.model_copy(update={"display": "quiet", "checkpoint_folder": None})
    config = config.model_copy(update={"execution": execution, "output": output})
    for name, _ in scratch_folders(config):
        place = f"players.{name}.algorithm.replay_buffer.scratch_folder"
        config = replaced(config, place, tempfile.gettempdir())
    return config


def _needs_no_environment(config: RunConfig) -> bool:
    """Whether a config can be checked without its environment, whose exact actions networks of other runs need."""
    players: list[Any] = list(config.players.values())
    fixed = FromRunConfig | TorchModuleConfig | SeatedModelConfig
    has_nets = any(isinstance(player, fixed) or getattr(player, "warm_start", None) for player in players)
    return config.game.declares_actions() or not has_nets


def _check_apart_from_environment(config: BaseRunConfig) -> None:
    """Make the checks of a training that need no spaces."""
    find_device(config.execution.device)
    if isinstance(config, RunConfig):
        for name in config.learners():  # a lone agent's environment has one move
            check_seat(config.players[name].algorithm, name, Seat(config.worlds_of(name), 1, 1))  # type: ignore[union-attr]
    check_scratch_folders(config)
    check_checkpoint_folder(config)
