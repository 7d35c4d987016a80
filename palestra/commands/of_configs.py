"""The commands for configs: profile, check, config, list."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from palestra.commands.failures import errors, one_line_errors
from palestra.commands.shell import File, Overrides, console

commands = typer.Typer()


@commands.command()
def profile(
    file: File,
    overrides: Overrides = None,
    steps: Annotated[int, typer.Option(help="opt steps under the profiler", min=1)] = 200,
    out: Annotated[Path, typer.Option(help="the trace, for chrome://tracing or ui.perfetto.dev")] = Path("trace.json"),
) -> None:
    """Train a short stretch of a config under torch's profiler: where the time goes, by phase and by operator."""
    with one_line_errors():
        from palestra.commands.profile import profile_config, render_profile

        try:
            found = profile_config(file, overrides or [], steps, out)
        except OSError as error:
            errors.print(f"--out: {out} cannot be written: {error.strerror}")
            raise typer.Exit(2) from None
        if isinstance(found, int):
            raise typer.Exit(128 + found)
        console.print(render_profile(found, num_operators=12))
        console.print(f"trace: {out}", soft_wrap=True)


@commands.command()
def check(file: File, overrides: Overrides = None) -> None:
    """Check a config: all that `train` would refuse, at once. Nothing is run, and no environment is made; classes
    that the file names are imported, and with them their modules run."""
    with one_line_errors():
        from palestra.commands.check import dry_run

        unchecked = dry_run(file, overrides or [])
        console.print(f"{file}: complete and consistent", soft_wrap=True, markup=False)
        if unchecked:
            console.print(f"not checked: {'; '.join(unchecked)}", soft_wrap=True, markup=False)


@commands.command()
def config(
    name: Annotated[str, typer.Argument(help="an algorithm, such as dqn", show_default=False)],
    game: Annotated[
        str | None, typer.Argument(help="a game, such as polyhedra, or a Gymnasium environment, such as LunarLander-v3")
    ] = None,
) -> None:
    """Print a complete config, each key with its comment; for any Gymnasium environment, with networks that fit it."""
    with one_line_errors():
        from palestra.commands.suggest_config import suggested_config
        from palestra.config import render
        from palestra.runs.config import RunConfig

        print(render(suggested_config(name, game), RunConfig), end="")


@commands.command(name="list")
def list_parts() -> None:
    """List games, algorithms, trainers, nets, players, schedules, rewards and optimizers, one line each."""
    with one_line_errors():
        from palestra.commands.catalogue import catalogue

        for kind, entries in catalogue().items():
            table = Table(box=None, show_header=False, pad_edge=False)
            for name, line in entries.items():
                table.add_row(f"  {name}", line)
            console.print(f"[bold]{kind}[/bold]")
            console.print(table)
