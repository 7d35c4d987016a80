"""Compares the scores of runs."""

from pathlib import Path
from typing import Annotated

import typer

from palestra.commands.failures import errors, one_line_errors
from palestra.commands.shell import console, with_runs_of_sweeps


def compare(
    runs: Annotated[
        list[str], typer.Argument(help="folders of runs, checkpoints, sweeps or their trials, URLs of mirrors")
    ],
    checkpoint: Annotated[
        str | None, typer.Option(help="best, latest, a number, or @ and an opt step [the last evaluation]")
    ] = None,
    games: Annotated[
        int | None, typer.Option(help="play so many games per pairing now, from the same starts for all runs", min=1)
    ] = None,
    json: Annotated[Path | None, typer.Option(help="also write the comparison into this file")] = None,
    csv: Annotated[
        Path | None, typer.Option(help="also write a line for each score of each run into this file")
    ] = None,
    iqm: Annotated[bool, typer.Option("--iqm", help="show interquartile means over seeds in place of means")] = False,
) -> None:
    """Compare runs: scores, as means of those that differ in seed alone; keys that differ; who is likely better."""
    with one_line_errors():
        from palestra.report.comparison import as_data, compare_groups, render_comparison, to_csv
        from palestra.report.groups import group_runs, repeated_seeds
        from palestra.report.reading import play_afresh, read_moments
        from palestra.run.fetching import local_folders
        from palestra.storage.disk import write_file
        from palestra.storage.records_file import plain
        from palestra.storage.stored_files import to_json

        named = with_runs_of_sweeps(runs)
        with local_folders(named) as folders:
            moments = read_moments(folders, checkpoint)
            for line in dict.fromkeys(fault for run, _ in moments for fault in run.faults):
                errors.print(line)
            found = [run for run, _ in moments] if games is None else play_afresh(moments, games, errors.print)
        groups = group_runs(found)
        for line in repeated_seeds(groups):
            errors.print(line)
        comparison = compare_groups(groups)
        render_comparison(console, comparison, iqm)
        if json is not None:
            write_file(json, to_json(plain(as_data(comparison, dict(zip(folders, named, strict=True))))))
        if csv is not None:
            write_file(csv, to_csv(comparison))
