"""Trains a short stretch under torch's profiler."""

from pathlib import Path
from typing import Annotated

import typer

from palestra.commands.failures import errors, one_line_errors
from palestra.commands.shell import File, Overrides, console, say


def profile(
    file: File,
    overrides: Overrides = None,
    steps: Annotated[int, typer.Option(help="opt steps under the profiler", min=1)] = 200,
    out: Annotated[Path, typer.Option(help="the trace, for chrome://tracing or ui.perfetto.dev")] = Path("trace.json"),
) -> None:
    """Train a short stretch of a config under torch's profiler: where the time goes, by phase and by operator."""
    with one_line_errors():
        from palestra.commands.profiling import profile_config, render_profile
        from palestra.commands.starting import find_config, naming_remedies

        named = find_config(file, overrides or [])
        if named.note is not None:
            say(named.note)
        try:
            with naming_remedies(named):
                found = profile_config(named.source, named.overrides, steps, out)
        except OSError as error:
            errors.print(f"--out: {out} cannot be written: {error.strerror}")
            raise typer.Exit(2) from None
        if isinstance(found, int):
            raise typer.Exit(128 + found)
        console.print(render_profile(found, num_operators=12))
        say(f"trace: {out}")
