"""The commands for sweeps: sweep, trials."""

from pathlib import Path
from typing import Annotated

import typer

from palestra.commands.failures import one_line_errors, one_line_errors_of_reading, silent
from palestra.commands.shell import Quiet, Trust, console, say

commands = typer.Typer()


@commands.command()
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
        from palestra.commands.sweep_work import open_sweep, work_on

        if dry_run:
            _dry_run(file, overrides or [], seeds, at)
            return
        shown = silent if quiet else console
        work_on(open_sweep(file, overrides or [], run, seeds, at, trust, shown), shown)


def _dry_run(file: str, overrides: list[str], seeds: str | None, at: int | None) -> None:
    from palestra.commands.dry_sweep import dry_run
    from palestra.commands.sweep_work import read_new
    from palestra.config import ConfigError, checking
    from palestra.config.own_modules import reading_file
    from palestra.sweeps.folder import is_sweep_folder

    if is_sweep_folder(Path(file)):
        message = f"expected a sweep's file or a config, got {file}, a sweep that has begun"
        raise ConfigError.at("--dry-run", message)
    with checking(), reading_file(Path(file)):
        config, bases, _ = read_new(file, overrides, seeds, at)
        for line in dry_run(config, bases):
            say(line)


@commands.command()
def trials(
    folder: Annotated[Path, typer.Argument(metavar="SWEEP", help="the folder of a sweep")],
    state: Annotated[
        str | None, typer.Option(help="only succeeded, failed, pruned, skipped or running ones [all]")
    ] = None,
    top: Annotated[int | None, typer.Option(help="so many lines [all]", min=1)] = None,
    csv: Annotated[Path | None, typer.Option(help="also write them into this file")] = None,
    trust: Trust = False,
) -> None:
    """List the trials of a sweep, the best first: state, value, point, and why one failed."""
    with one_line_errors_of_reading():
        from palestra.config import ConfigError
        from palestra.sweeps.extra import require_optuna

        require_optuna()
        from palestra.commands.trials import ranked, to_csv, trial_lines
        from palestra.sweeps.outcomes import STATES, counts_text, state_of
        from palestra.sweeps.stored import StoredSweep

        if state is not None and state not in STATES:
            raise ConfigError.at("--state", f"expected one of {', '.join(STATES)}, got {state!r}")
        sweep = StoredSweep.open(folder, trust)
        shown = ranked(sweep, state)[:top]
        console.print(trial_lines(sweep, shown), soft_wrap=True)
        console.print(counts_text(list(map(state_of, sweep.trials))))
        if csv is not None:
            from palestra.report.page import write_page

            write_page(csv, to_csv(sweep, shown))
