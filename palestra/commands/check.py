"""What `palestra check` does: all checks that `train` makes before it makes the run's folder.

No environment is made, and no extra is imported. What only this machine lacks is told, and is no fault of the config.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from palestra.config import ConfigError, checking, replaced
from palestra.data.sets import keeping_last_sets
from palestra.recording import make_recorders
from palestra.recording.results import stage_text
from palestra.runs.base import BaseRunConfig
from palestra.runs.kinds import read_config
from palestra.runs.tournament import Tournament, read_tournament
from palestra.runtime.device import find_device
from palestra.training.naming import named_classes
from palestra.training.trainable import apart_from_this_machine, check_trainable, lacks_of_this_machine


class Checked(NamedTuple):
    """What `check` says of a config that is right.

    plan: lines that say what the run does, and who acts when in its game. lacks: what only this machine lacks, so that
    `train` refuses the config here. unchecked: phrases that name what was not checked.
    """

    plan: list[str]
    lacks: list[str]
    unchecked: list[str]


@checking()
def dry_run(config: str | Path | BaseRunConfig, overrides: Sequence[str], with_prompts: bool = False) -> Checked:
    """Raise ConfigError for everything that `train` would refuse on a machine that has what the config asks for.

    with_prompts: whether the plan says what each role reads in one dialogue.
    """
    read = read_config(config, tuple(overrides))
    prompts = read.prompts() if with_prompts else []
    lacks = list(map(str, lacks_of_this_machine(read)))
    tried = apart_from_this_machine(read) if lacks else read
    lacks += _missing_extras(read)
    with keeping_last_sets():  # which the plan knows, too
        unchecked = check_trainable(tried)
        plan = _plan(read)
    fit = (
        ", and whether actions, networks, wrappers, callbacks and players of other runs fit it" if unchecked.fit else ""
    )
    lacks += map(str, unchecked.missing)
    beside = ["all beside the file, which needs what is lacking"] if unchecked.missing else []
    unmade = [f"the environment {env_id}, which is not made here{fit}" for env_id in read.environments()]
    return Checked([*plan, *prompts], lacks, [*unmade, *beside])


def require_printable(config: BaseRunConfig) -> None:
    """Raise ConfigError for a config that `check` would refuse."""
    dry_run(apart_from_this_machine(config), ())


def _plan(config: BaseRunConfig) -> list[str]:
    trainer = named_classes(config)[0]
    stages = {"train": trainer.train_stage(config), "test": trainer.test_stage(config)}
    lines = [*(stage_text(name, stage) for name, stage in stages.items()), *config.plan(), *trainer.bounds(config)]
    return lines + config.notes()


@checking()
def dry_tournament(file: Path, overrides: Sequence[str]) -> Checked:
    """Check the config of a tournament, as `dry_run` does that of a run."""
    config = read_tournament(file, overrides)
    environment = config.game.environment_id()
    lacks = []
    try:
        find_device(config.execution.device)
    except ConfigError as error:
        lacks = list(map(str, error.errors))
        config = replaced(config, "execution.device", "cpu")
    if environment is not None:
        return Checked(
            [], lacks, [f"the environment {environment}, which is not made here, and whether the players fit it"]
        )
    Tournament(config)
    return Checked(config.game.describe_turns(), lacks, [])


def _missing_extras(config: BaseRunConfig) -> Iterator[str]:
    """Yield a phrase for each missing extra, with the package to install."""
    needs: list[Callable[[], object]] = [partial(make_recorders, config.output.recorders)]
    if config.output.mirror is not None:
        needs.append(config.output.mirror.require_backend)
    for need in needs:
        try:
            need()
        except ConfigError as error:
            yield from map(str, error.errors)
