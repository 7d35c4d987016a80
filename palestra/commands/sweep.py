"""Works on a sweep, or says how large it is."""

from pathlib import Path
from typing import Annotated

import typer

from palestra.commands.failures import one_line_errors, silent
from palestra.commands.shell import Quiet, Trust, console


def sweep(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE|SWEEP|CONFIG",
            help="a sweep's file, the folder of a sweep to work on, or a config and key=a,b,c for a grid of its runs",
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="dotted.key=value in place of what the sweep's file says; of a config: key=a,b,c"),
    ] = None,
    run: Annotated[Path | None, typer.Option(help="the sweep's folder [runs/NAME-N]")] = None,
    seeds: Annotated[
        str | None, typer.Option(help="of a grid by hand: the seeds of each point, as 0..4 or 0,3,7")
    ] = None,
    at: Annotated[int | None, typer.Option(help="of a grid by hand: so many runs at a time [the cores]", min=1)] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="only say how many runs it is, and about how long, from a short run")
    ] = False,
    trust: Trust = False,
    quiet: Quiet = False,
) -> None:
    """Search for better hyperparameters: many runs of a config, chosen by Optuna."""
    with one_line_errors(quiet):
        from palestra.commands.sweeping import open_sweep, print_dry_run, work_on

        shown = silent if quiet else console
        if dry_run:
            print_dry_run(file, overrides or [], seeds, at)
        else:
            work_on(open_sweep(file, overrides or [], run, seeds, at, trust, shown), shown)
