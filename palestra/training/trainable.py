"""All that `train` would refuse of a config, without making an environment or importing an extra."""

from typing import Any, NamedTuple

from palestra.algorithms.algorithm import Seat
from palestra.config import ConfigErrorItem, MissingExtra, checking
from palestra.games.config import NotDeclared, without_environments
from palestra.players import FromRunConfig
from palestra.players.torch_modules import TorchModuleConfig
from palestra.runs.config import RunConfig
from palestra.runs.parts import check_seat
from palestra.runtime.device import find_device
from palestra.training import make_trainer
from palestra.training.checks import check_checkpoint_folder, check_scratch_folders


class Unchecked(NamedTuple):
    """fit: whether it was left open that actions, networks, wrappers, callbacks and players of other runs fit the
    environment. missing: extras without which nothing was checked beside the file."""

    fit: bool
    missing: list[ConfigErrorItem]


def check_trainable(config: RunConfig) -> Unchecked:
    """Raise ConfigError for everything that `train` would refuse, and say what could not be checked."""
    with checking(), without_environments():
        try:
            if not _needs_no_environment(config):
                raise NotDeclared
            make_trainer(config).require_ready()
        except NotDeclared:
            _check_apart_from_environment(config)
            return Unchecked(True, [])
        except MissingExtra as error:
            _check_apart_from_environment(config)
            return Unchecked(False, list(error.errors))
    return Unchecked(False, [])


def apart_from_this_machine(config: RunConfig) -> RunConfig:
    """A config to be tried in its place: on the CPU, for another machine may have its device, and without a word."""
    execution, output = (
        config.execution.model_copy(update={"device": "cpu"}),
        config.output.model_copy(update={"display": "quiet"}),
    )
    return config.model_copy(update={"execution": execution, "output": output})


def _needs_no_environment(config: RunConfig) -> bool:
    """Whether the config can be checked without its environment. Networks of other runs need its exact actions."""
    players: list[Any] = list(config.players.values())
    fixed = FromRunConfig | TorchModuleConfig
    has_nets = any(isinstance(player, fixed) or getattr(player, "warm_start", None) for player in players)
    return config.game.declares_actions() or not has_nets


def _check_apart_from_environment(config: RunConfig) -> None:
    """Make those checks of a Trainer that need no spaces."""
    find_device(config.execution.device)
    for name in config.learners():  # a lone agent's environment has one move
        check_seat(config.players[name].algorithm, name, Seat(config.worlds_of(name), 1, 1))  # type: ignore[union-attr]
    check_scratch_folders(config)
    check_checkpoint_folder(config)
