"""Writes what a model says of every item of a data set."""

from pathlib import Path
from typing import Annotated

import typer

from palestra.commands.failures import errors, one_line_errors
from palestra.commands.shell import Checkpoint, Run, Trust, Weights, say


def predict(
    run: Run,
    data: Annotated[str, typer.Argument(metavar="SET", help="the key of the run's `data`")],
    out: Annotated[Path, typer.Option(help="the file to write, which ends in .csv, .parquet (extra: frames) or .npz")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="data.SET.key=value, or execution.key=value, in place of the run's own")
    ] = None,
    checkpoint: Checkpoint = "latest",
    weights: Weights = "latest",
    batch_size: Annotated[int, typer.Option(help="items that are computed at once", min=1)] = 256,
    trust: Trust = False,
) -> None:
    """Write what the model of a run says of every item of a data set: index, label if there is one, and its outputs."""
    with one_line_errors():
        from palestra.kinds.data.models import load_model
        from palestra.kinds.data.predictions import write_predictions

        loaded = load_model(run, checkpoint, weights, overrides or (), trust)  # type: ignore[arg-type]
        for line in loaded.warnings:
            errors.print(line)
        num = write_predictions(loaded, data, out, batch_size)
        say(f"{num} items of data.{data} at opt step {loaded.opt_steps}: {out}")
