"""Makes all checks that `train` makes before it makes the run's folder.

No environment is made, and no extra is imported. What only this machine lacks is told, and is no fault of the config.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from palestra.commands.failures import one_line_errors
from palestra.commands.shell import File, Overrides, say

if TYPE_CHECKING:
    from palestra.run.base import BaseRunConfig


def check(
    file: File,
    overrides: Overrides = None,
    prompts: Annotated[
        bool, typer.Option("--prompts", help="say what each role reads in one dialogue, of players that talk in words")
    ] = False,
) -> None:
    """Check a config: all that is wrong with it, at once; and say what the run would do.

    What only this machine lacks, such as a device, is told and is no error. Nothing is run, and no environment is made;
    classes that the file names are imported, and with them their modules run.
    """
    with one_line_errors():
        from palestra.commands.evaluating import is_tournament_file, tournament_file
        from palestra.commands.starting import find_config, naming_remedies

        title, tournament = file, tournament_file(file)
        if tournament is not None and is_tournament_file(tournament):
            checked = dry_tournament(tournament, overrides or [])
        else:
            named = find_config(file, overrides or [])
            if named.note is not None:
                say(named.note)
            with naming_remedies(named):
                title, checked = named.title, dry_run(named.source, named.overrides, prompts)
        for line in (f"{title}: complete and consistent", *checked.plan):
            say(line)
        if checked.lacks:
            say(f"only this machine lacks, so that train refuses it here: {'; '.join(checked.lacks)}")
        if checked.unchecked:
            say(f"not checked: {'; '.join(checked.unchecked)}")


class Checked(NamedTuple):
    """What `check` says of a config that is right.

    plan: lines that say what the run does, and who acts when in its game. lacks: what only this machine lacks, so that
    `train` refuses the config here. unchecked: phrases that name what was not checked.
    """

    plan: list[str]
    lacks: list[str]
    unchecked: list[str]


def dry_run(config: "str | Path | BaseRunConfig", overrides: Sequence[str], with_prompts: bool = False) -> Checked:
    """Raise ConfigError for everything that `train` would refuse on a machine that has what the config asks for.

    with_prompts: whether the plan says what each role reads in one dialogue.
    """
    from palestra.config import ConfigError, checking
    from palestra.data.sets import keeping_last_sets
    from palestra.recording import make_recorders
    from palestra.recording.results import stage_text
    from palestra.run.kinds import read_config
    from palestra.training.opening import named_classes
    from palestra.training.trainable import apart_from_this_machine, check_trainable, lacks_of_this_machine

    with checking():
        read = read_config(config, tuple(overrides))
        prompts = read.prompts() if with_prompts else []
        lacks = list(map(str, lacks_of_this_machine(read)))
        tried = apart_from_this_machine(read) if lacks else read
        needs: list[Callable[[], object]] = [partial(make_recorders, read.output.recorders)]  # extras
        if read.output.mirror is not None:
            needs.append(read.output.mirror.require_backend)
        for need in needs:
            try:
                need()
            except ConfigError as error:
                lacks += map(str, error.errors)
        with keeping_last_sets():  # which the plan knows, too
            unchecked = check_trainable(tried)
            trainer = named_classes(read)[0]
            stages = stage_text("train", trainer.train_stage(read)), stage_text("test", trainer.test_stage(read))
            plan = [*stages, *read.plan(), *trainer.bounds(read), *read.notes()]
        fit = ", and whether actions, networks, wrappers, callbacks and players of other runs fit it"
        lacks += map(str, unchecked.missing)
        beside = ["all beside the file, which needs what is lacking"] if unchecked.missing else []
        of_environments = f", which is not made here{fit if unchecked.fit else ''}"
        unmade = [f"the environment {env_id}{of_environments}" for env_id in read.environments()]
        return Checked([*plan, *prompts], lacks, [*unmade, *beside])


def dry_tournament(file: Path, overrides: Sequence[str]) -> Checked:
    """Check the config of a tournament, as `dry_run` does that of a run."""
    from palestra.config import ConfigError, checking, replaced
    from palestra.kinds.games.tournament import Tournament, read_tournament
    from palestra.runtime.device import find_device

    with checking():
        config = read_tournament(file, overrides)
        environment = config.game.environment_id()
        lacks = []
        try:
            find_device(config.execution.device)
        except ConfigError as error:
            lacks = list(map(str, error.errors))
            config = replaced(config, "execution.device", "cpu")
        if environment is not None:
            unmade = f"the environment {environment}, which is not made here, and whether the players fit it"
            return Checked([], lacks, [unmade])
        Tournament(config)
        return Checked(config.game.describe_turns(), lacks, [])
