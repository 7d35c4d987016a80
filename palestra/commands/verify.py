"""Trains a stretch of a run again, and compares."""

from typing import Annotated

import typer

from palestra.commands.failures import errors, one_line_errors
from palestra.commands.shell import Run, Trust, say


def verify(
    run: Run,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="the number of a checkpoint, @ and its opt step, or beginning [the newest after which something was "
            "recorded]",
        ),
    ] = None,
    trust: Trust = False,
) -> None:
    """Train a stretch of a run again in another folder, and say whether records and state are equal to the bit."""
    with one_line_errors():
        from palestra.commands.replay import verify as verify_run

        verdict = verify_run(run, start, trust)
        for line in verdict.changed:
            say(line)
        for key in verdict.clocked:
            say(f"{key} counts minutes, which follow the clock: what it decides is not compared")
        if verdict.damage is not None:
            errors.print(verdict.damage)
        if verdict.difference is not None:
            errors.print(f"{run}, from {verdict.start}: not reproduced. {verdict.difference}")
            raise typer.Exit(1)
        state = "" if verdict.end is None else f", and the state of checkpoint {verdict.end}"
        say(f"{run}, from {verdict.start}: {verdict.num_records} records{state} reproduced to the bit")
        if verdict.damage is not None:
            raise typer.Exit(1)
