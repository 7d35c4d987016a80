"""What `palestra check` does: all checks that `train` makes before it makes the run's folder, but without making an
environment or importing an extra."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from palestra.algorithms.algorithm import Seat
from palestra.config import ConfigError, MissingExtra, checking
from palestra.games.config import GameConfig, NotDeclared, without_environments
from palestra.players import FromRunConfig
from palestra.players.torch_modules import TorchModuleConfig
from palestra.recording import make_recorders
from palestra.recording.results import stage_text
from palestra.runs.config import BaseRunConfig, RunConfig, read_config
from palestra.runs.parts import check_seat
from palestra.runs.tournament import Tournament, read_tournament
from palestra.runtime.device import find_device
from palestra.training import make_trainer
from palestra.training.checks import check_checkpoint_folder, check_scratch_folders
from palestra.training.naming import named_class


class Checked(NamedTuple):
    """A config that `train` would accept. plan: lines that say what the run does, and who acts when in its game.
    unchecked: phrases that name what was not checked."""

    plan: list[str]
    unchecked: list[str]


def dry_run(config: str | Path | BaseRunConfig, overrides: Sequence[str]) -> Checked:
    """Raise ConfigError for everything that `train` would refuse."""
    read = read_config(config, tuple(overrides))
    if not isinstance(read, RunConfig):  # nothing is played
        with checking():
            make_trainer(read).require_ready()
        return Checked(_plan(read), [*_missing_extras(read)])
    fit, missing = "", []
    with checking(), without_environments():
        try:
            if not _needs_no_environment(read):
                raise NotDeclared
            make_trainer(read).require_ready()
        except NotDeclared:
            _check_apart_from_environment(read)
            fit = ", and whether actions, networks, wrappers, callbacks and players of other runs fit it"
        except MissingExtra as error:
            _check_apart_from_environment(read)
            missing = [f"{each}, so that nothing was checked beside the file" for each in error.errors]
    return Checked(_plan(read), [*_unmade_environments(read, fit), *_missing_extras(read), *missing])


def _plan(config: BaseRunConfig) -> list[str]:
    trainer = named_class(config)
    stages = {"train": trainer.train_stage(config), "test": trainer.test_stage(config)}
    turns = config.game.describe_turns() if isinstance(config, RunConfig) else []
    return [*(stage_text(name, stage) for name, stage in stages.items()), *turns]


def dry_tournament(file: Path, overrides: Sequence[str]) -> Checked:
    """As `dry_run`, for the config of a tournament."""
    config = read_tournament(file, overrides)
    environment = config.game.environment_id()
    if environment is not None:
        return Checked([], [f"the environment {environment}, which is not made here, and whether the players fit it"])
    with checking():
        Tournament(config)
    return Checked(config.game.describe_turns(), [])


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


def _unmade_environments(config: RunConfig, fit: str) -> Iterator[str]:
    games: list[GameConfig | None] = [config.game, *(evaluation.game for evaluation in config.evaluations)]
    for env_id in dict.fromkeys(game.environment_id() for game in games if game is not None):
        if env_id is not None:
            yield f"the environment {env_id}, which is not made here{fit}"


def _missing_extras(config: BaseRunConfig) -> Iterator[str]:
    """A phrase for each missing extra, with the package to install."""
    try:
        make_recorders(config.output.recorders)
    except ConfigError as error:
        yield from map(str, error.errors)
    try:
        if config.output.mirror is not None:
            config.output.mirror.require_backend()
    except ConfigError as error:
        yield from map(str, error.errors)
