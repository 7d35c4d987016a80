"""Lists the trials of a sweep."""

from pathlib import Path
from typing import Annotated

import typer

from palestra.commands.failures import one_line_errors_of_reading
from palestra.commands.shell import Trust, console, mistake


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
        from palestra.sweeps.folder import require_optuna

        require_optuna()
        from palestra.commands.ranked_trials import ranked, to_csv, trial_lines
        from palestra.sweeps.outcomes import STATES, counts_text, state_of
        from palestra.sweeps.stored import StoredSweep

        if state is not None and state not in STATES:
            raise mistake("--state", f"expected one of {', '.join(STATES)}, got {state!r}")
        sweep = StoredSweep.open(folder, trust)
        shown = ranked(sweep, state)[:top]
        console.print(trial_lines(sweep, shown), soft_wrap=True)
        console.print(counts_text(list(map(state_of, sweep.trials))))
        if csv is not None:
            from palestra.storage.disk import write_file

            write_file(csv, to_csv(sweep, shown))
