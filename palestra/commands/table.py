"""Writes the records of runs as a table."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from palestra.commands.failures import errors, one_line_errors
from palestra.commands.shell import Runs, with_runs_of_sweeps
from palestra.runtime.console import VisibleFile


def table(
    runs: Runs,
    csv: Annotated[Path | None, typer.Option(help="the file to write [standard output]")] = None,
    parquet: Annotated[Path | None, typer.Option(help="write this file, as parquet (extra: frames)")] = None,
    metrics: Annotated[
        list[str] | None, typer.Option(help="only these: a name, or its end; * stands for any text; may be repeated")
    ] = None,
) -> None:
    """Write the records of runs as a tidy table: run, seed, counters such as opt_steps, name, value."""
    with one_line_errors():
        from palestra.run.fetching import local_folders
        from palestra.run.tables import chosen_names, rows_of_runs, to_csv, to_parquet, write_csv
        from palestra.storage.disk import write_file

        with local_folders(with_runs_of_sweeps(runs)) as folders:
            found = rows_of_runs(folders, errors.print)
            if metrics:
                rows = list(found.rows)
                names = {*chosen_names(list(dict.fromkeys(row.name for row in rows)), metrics)}
                found = found._replace(rows=[row for row in rows if row.name in names])
            if csv is None and parquet is None:
                write_csv(found, VisibleFile(sys.stdout) if sys.stdout.isatty() else sys.stdout)
                return
            found = found._replace(rows=list(found.rows))
        if csv is not None:
            write_file(csv, to_csv(found))
        if parquet is not None:
            write_file(parquet, to_parquet(found))
