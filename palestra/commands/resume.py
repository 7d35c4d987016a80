"""Goes on with a run, a sweep, runs side by side or a tournament."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from palestra.commands.failures import one_line_errors, silent
from palestra.commands.ranks import fit
from palestra.commands.shell import Quiet, Trust, console, mistake


def resume(
    run: Annotated[
        str,
        typer.Argument(
            help="the folder of a run, a sweep, several seeds or a tournament, or the URL of a run's mirror"
        ),
    ],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="of a run: keys that change no bit, as execution.loading.num_workers=0")
    ] = None,
    into: Annotated[
        Path | None, typer.Option("--run", help="for a mirror: the new folder of the run [runs/NAME]")
    ] = None,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="of a sweep: also run the trials again that have failed")
    ] = False,
    job: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ID",
            help="of a run whose server cannot list its jobs: the id of the one that it was given, or none; with "
            "several, KEY=ID; repeatable",
        ),
    ] = None,
    trust: Trust = False,
    quiet: Quiet = False,
) -> None:
    """Go on with a run from its last checkpoint, to the same bits as if it had never stopped.

    Or go on with a sweep, or with the runs of `train --seeds --at`; or play a tournament again that was stopped.
    """
    with one_line_errors(quiet):
        import palestra
        from palestra.commands.evaluating import is_tournament_folder, resume_tournament
        from palestra.storage.disk import RunFolderError
        from palestra.sweeps.folder import is_folder_of_seeds, is_sweep_folder, runs_in

        shown, path = silent if quiet else console, Path(run)
        if retry_failed and not is_sweep_folder(path):
            raise mistake("--retry-failed", f"expected the folder of a sweep, got {run}")
        if overrides and runs_in(path) != [path]:
            raise mistake(
                overrides[0], f"expected overrides with the folder of one run (of a sweep: palestra sweep), got {run}"
            )
        if job:  # somebody has found them at the server
            from palestra.storage.run_folder import RunFolder
            from palestra.text.servers.job_lines import adopt_by_hand

            folder = RunFolder.open(path)
            with folder.lock():
                adopt_by_hand(folder.root, folder.facts().id, job)
        if is_sweep_folder(path):
            from palestra.commands.sweeping import open_sweep, work_on

            work_on(open_sweep(run, [], into, None, None, trust, shown), shown, retry_failed)
        elif is_folder_of_seeds(path) and into is None:
            from palestra.commands.side_by_side import resume_side_by_side

            resume_side_by_side(path, trust, shown)
        elif is_tournament_folder(path) and into is None:
            resume_tournament(path, trust, shown)
        elif (inside := runs_in(path)) != [path]:
            raise RunFolderError(_ways_on(path, inside))
        else:
            fit(palestra.Trainer.load(run, console=shown, into=into, trust=trust, overrides=overrides or []))


def _ways_on(path: Path, runs: Sequence[Path]) -> str:
    """Say what a folder of several runs is, and by which commands what was stopped there goes on."""
    from palestra.report.reading import RunData
    from palestra.storage.run_folder import RunFolder
    from palestra.sweeps.folder import sweep_of

    if (sweep := sweep_of(path / "seed-0")) is not None:
        return f"{path} is a trial of a sweep; to go on with the sweep: palestra resume {shlex.quote(str(sweep))}"
    stopped = [run for run in runs if RunData.read(run).state.startswith("stopped")]
    ways = " && ".join(way for run in stopped if (way := RunFolder(run).ways_on().to_resume()))
    none = ", those that were stopped have saved nothing" if stopped else ", none of which was stopped"
    on = f"; to go on with what was stopped: {ways}" if ways else none
    new = f"palestra train {shlex.quote(str(runs[0] / 'config.yml'))} --seeds SEED --run {shlex.quote(str(path))}"
    return f"{path} holds {len(runs)} run{'s' * (len(runs) != 1)}{on}; to begin a seed that has no run: {new}"
