"""Writes a page of HTML on runs, or on a sweep."""

from pathlib import Path
from typing import Annotated

import typer

from palestra.commands.failures import one_line_errors
from palestra.commands.shell import say, with_runs_of_sweeps


def report(
    runs: Annotated[list[Path], typer.Argument(help="the folders of one run or more, or of a sweep")],
    out: Annotated[
        Path | None, typer.Option(help="the page [RUN/report.html, SWEEP/report.html; of several: ./report.html]")
    ] = None,
) -> None:
    """Write one page of HTML on runs, or on a sweep. The runs may go on meanwhile.

    Of runs it shows curves, evaluations, time, checkpoints and configs; of a sweep its trials, and which keys matter.
    """
    with one_line_errors():
        from palestra.report.page import write_report
        from palestra.sweeps.folder import is_sweep_folder, require_optuna

        if len(runs) == 1 and is_sweep_folder(runs[0]):
            require_optuna()
            from palestra.report.sweep_page import write_sweep_report

            page = write_sweep_report(runs[0], out)
        else:
            found = [Path(run) for run in with_runs_of_sweeps(map(str, runs))]
            page = write_report(found, out or (runs[0] / "report.html" if len(runs) == 1 else None))
        say(str(page))
