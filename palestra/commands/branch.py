"""Begins a new run with the state of a checkpoint."""

from pathlib import Path
from typing import Annotated

import typer

from palestra.commands.failures import one_line_errors, silent
from palestra.commands.ranks import fit
from palestra.commands.shell import Overrides, Quiet, Trust, console, mistake


def branch(
    checkpoint: Annotated[
        Path, typer.Argument(help="such as runs/NAME-N/checkpoints/00000003, or .../latest, .../best, .../@2100")
    ],
    overrides: Overrides = None,
    freeze: Annotated[
        list[str] | None, typer.Option(metavar="PLAYER", help="a player that learns no more; may be given repeatedly")
    ] = None,
    replace: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PLAYER=SCRIPTED",
            help="a scripted player (by name, or as mine:Agent) in a player's place; repeatable",
        ),
    ] = None,
    run: Annotated[Path | None, typer.Option(help="the new run's folder, new or empty [runs/NAME-N]")] = None,
    trust: Trust = False,
    quiet: Quiet = False,
) -> None:
    """Begin a new run with the state of a checkpoint and changed hyperparameters or opponents."""
    with one_line_errors(quiet):
        import palestra

        for each in replace or []:
            if not all(each.partition("=")):
                raise mistake("--replace", f"expected PLAYER=SCRIPTED, got {each!r}")
        trainer = palestra.Trainer.branch(
            checkpoint,
            overrides or [],
            freeze=freeze or [],
            replace={name: script for name, _, script in (each.partition("=") for each in replace or [])},
            run=run,
            console=silent if quiet else console,
            trust=trust,
        )
        fit(trainer)
