"""Draws figures of runs."""

from pathlib import Path
from typing import Annotated

import typer

from palestra.commands.failures import errors, one_line_errors
from palestra.commands.shell import Runs, mistake, say, with_runs_of_sweeps


def plot(
    runs: Runs,
    out: Annotated[Path, typer.Option(help="the file, which ends in .pdf, .svg or .png")] = Path("fig.pdf"),
    x: Annotated[
        str | None, typer.Option("--x", help="a counter of the runs, as opt_steps [env_steps, else opt_steps]")
    ] = None,
    metrics: Annotated[
        list[str] | None,
        typer.Option(
            help="a name of `palestra table`, or its end; * stands for any text; may be repeated; of tables: a score "
            "[the scores of the players that learn]"
        ),
    ] = None,
    single: Annotated[bool, typer.Option("--single", help="draw each run as a line of its own")] = False,
    iqm: Annotated[
        bool, typer.Option("--iqm", help="draw interquartile means over seeds with bootstrapped 95% intervals")
    ] = False,
    kind: Annotated[str, typer.Option(help="curves, learning-table or cross-table")] = "curves",
    checkpoint: Annotated[
        str | None, typer.Option(help="of tables: best, latest, a number, or @ and an opt step [the last one]")
    ] = None,
) -> None:
    """Draw a figure for a paper: curves, a table of scores, or a coloured table of who meets whom.

    Curves are means over seeds with 95% t intervals, as in reports, with a panel per metric or pairing. The table of
    scores is by environment and algorithm.
    """
    with one_line_errors():
        from palestra.report.drawn_tables import KINDS, plot_tables
        from palestra.report.plots import plot_runs
        from palestra.run.fetching import local_folders
        from palestra.storage.disk import write_file

        if kind not in ("curves", *KINDS):
            raise mistake("--kind", f"expected curves, {' or '.join(KINDS)}, got {kind!r}")
        if kind == "curves" and checkpoint is not None:
            raise mistake("--checkpoint", f"expected it with --kind {' or '.join(KINDS)}, got curves")
        if kind != "curves" and (single or iqm or x is not None):
            raise mistake("--kind", f"expected curves with --single, --iqm or --x, got {kind!r}")
        if single and iqm:
            raise mistake("--iqm", "expected either --single or --iqm, got both")
        with local_folders(with_runs_of_sweeps(runs)) as folders:
            if kind == "curves":
                drawn = plot_runs(folders, x, out.suffix[1:], metrics or (), single, errors.print, iqm)
            else:
                drawn = plot_tables(folders, kind, out.suffix[1:], checkpoint, errors.print, metrics or ())
        write_file(out, drawn.content)
        say(f"{out}: {drawn.caption}")
