"""The commands that train: train, resume, extend, branch."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from palestra.commands.failures import one_line_errors, silent
from palestra.commands.shell import File, Overrides, Quiet, Run, Trust, console, say

if TYPE_CHECKING:
    from palestra.commands.named_configs import NamedConfig

commands = typer.Typer()


@commands.command()
def train(
    file: File,
    overrides: Overrides = None,
    run: Annotated[
        Path | None,
        typer.Option(help="the run's folder, which must not exist; with --seeds that of all runs [runs/NAME-N]"),
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="several runs, one per seed: 0..4 or 0,3,7")] = None,
    at: Annotated[
        int | None,
        typer.Option(help="with --seeds: so many at a time, each in a process of its own [one after the other]", min=1),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Train the players, or the model, of a config."""
    with one_line_errors(quiet):
        from palestra.commands.named_configs import find_config
        from palestra.commands.ranks import begun_before
        from palestra.training.trainer import Trainer

        found, shown = find_config(file, overrides or []), silent if quiet else console
        if (begun := begun_before(run, seeds)) is not None:
            _fit(Trainer.load(begun, console=shown))
            return
        if found.note is not None:
            say(found.note, shown)
        if seeds is None:
            if at is not None:
                from palestra.config import ConfigError

                raise ConfigError.at("--at", "expected it together with --seeds, got it alone")
            _fit(_make_trainer(found, run, (), shown))
            return
        from palestra.commands.seeds import parse_seeds

        if at is None:
            _train_seeds(found, run, parse_seeds(seeds), shown)
        else:
            _train_side_by_side(found, run, parse_seeds(seeds), at, shown)


def _make_trainer(found: "NamedConfig", run: Path | None, overrides: Sequence[str], shown: Console) -> Any:
    import palestra
    from palestra.commands.named_configs import naming_remedies

    changes = [*found.overrides, *overrides]
    with naming_remedies(found):
        trainer = palestra.make_trainer(found.source, run=run, overrides=changes, console=shown)
    trainer.run.name = found.name
    return trainer


def _train_seeds(found: "NamedConfig", run: Path | None, seeds: Sequence[int], shown: Console) -> None:
    from palestra.recording.summary import render_seeds_summary

    evaluations: dict[int, Any] = {}
    for seed in seeds:
        folder = None if run is None else run / f"seed-{seed}"
        trainer = _make_trainer(found, folder, [f"seed={seed}"], shown)
        _fit(trainer)
        evaluations[seed] = trainer.run.records.evaluations
    render_seeds_summary(shown, evaluations)


def _train_side_by_side(found: "NamedConfig", run: Path | None, seeds: Sequence[int], at: int, shown: Console) -> None:
    from palestra.commands.named_configs import naming_remedies
    from palestra.commands.side_by_side import train_side_by_side
    from palestra.config import reading_own
    from palestra.runs.kinds import read_config

    with naming_remedies(found), reading_own():
        config = read_config(found.source, found.overrides)
    train_side_by_side(config, found.name, run, seeds, at, shown)


@commands.command()
def resume(
    run: Annotated[
        str,
        typer.Argument(
            help="the folder of a run, a sweep, several seeds or a tournament, or the URL of a run's mirror",
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="of a run: keys that change no bit, as execution.loading.num_workers=0"),
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
        from palestra.commands.tournament import is_tournament_folder, resume_tournament
        from palestra.storage.disk import RunFolderError
        from palestra.sweeps.folder import is_folder_of_seeds, is_sweep_folder, runs_in

        shown, path = silent if quiet else console, Path(run)
        _require_place_of_options(run, retry_failed, overrides or [])
        if job:
            _adopt_jobs(path, job)
        if is_sweep_folder(path):
            from palestra.commands.sweep_work import open_sweep, work_on

            work_on(open_sweep(run, [], into, None, None, trust, shown), shown, retry_failed)
        elif is_folder_of_seeds(path) and into is None:
            from palestra.commands.side_by_side import resume_side_by_side

            resume_side_by_side(path, trust, shown)
        elif is_tournament_folder(path) and into is None:
            resume_tournament(path, trust, shown)
        elif (inside := runs_in(path)) != [path]:
            raise RunFolderError(_ways_on(path, inside))
        else:
            _fit(palestra.Trainer.load(run, console=shown, into=into, trust=trust, overrides=overrides or []))


def _require_place_of_options(run: str, retry_failed: bool, overrides: Sequence[str]) -> None:
    """Raise ConfigError for options of `resume` that mean nothing to what lies there."""
    from palestra.config import ConfigError
    from palestra.sweeps.folder import is_sweep_folder, runs_in

    path = Path(run)
    if retry_failed and not is_sweep_folder(path):
        raise ConfigError.at("--retry-failed", f"expected the folder of a sweep, got {run}")
    if overrides and runs_in(path) != [path]:
        raise ConfigError.at(overrides[0], f"expected overrides with the folder of one run, got {run}")


def _adopt_jobs(run: Path, jobs: Sequence[str]) -> None:
    """Let a run go on with jobs that somebody has found at the server."""
    from palestra.storage.run_folder import RunFolder
    from palestra.text.servers.job_lines import adopt_by_hand

    folder = RunFolder.open(run)
    with folder.lock():
        adopt_by_hand(folder.root, folder.facts().id, jobs)


@commands.command()
def extend(run: Run, overrides: Overrides = None, trust: Trust = False, quiet: Quiet = False) -> None:
    """Give a run another end, such as stop.after=100000, and go on."""
    with one_line_errors(quiet):
        import palestra
        from palestra.config import trusting
        from palestra.runs.branching import extend as extend_run
        from palestra.storage.run_folder import RunFolder

        RunFolder.open(run).require_named_trainer()
        with trusting(trust):
            extend_run(run, overrides or [])
            trainer = palestra.Trainer.load(run, console=silent if quiet else console)
        _fit(trainer)


@commands.command()
def branch(
    checkpoint: Annotated[
        Path, typer.Argument(help="such as runs/NAME-N/checkpoints/00000003, or .../latest, .../best, .../@2100")
    ],
    overrides: Overrides = None,
    freeze: Annotated[
        list[str] | None, typer.Option(metavar="PLAYER", help="a player that learns no more; may be given repeatedly")
    ] = None,
    replace: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PLAYER=SCRIPTED",
            help="a scripted player (by name, or as mine:Agent) in a player's place; repeatable",
        ),
    ] = None,
    run: Annotated[Path | None, typer.Option(help="the new run's folder, which must not exist [runs/NAME-N]")] = None,
    trust: Trust = False,
    quiet: Quiet = False,
) -> None:
    """Begin a new run with the state of a checkpoint and changed hyperparameters or opponents."""
    with one_line_errors(quiet):
        import palestra

        seats: dict[str, Any] = {"freeze": freeze or [], "replace": _parse_replacements(replace or [])}
        shown = silent if quiet else console
        _fit(palestra.Trainer.branch(checkpoint, overrides or [], run=run, console=shown, trust=trust, **seats))


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


def _fit(trainer: Any) -> None:
    """Train, in as many processes as the config asks for; leave with 128 + n if signal n stopped the run."""
    from palestra.scaling.ranks import Ranks

    if trainer.config.count_processes() > 1 and Ranks.here().num == 1:
        from palestra.commands.ranks import launch

        if code := launch(trainer, quiet=trainer.run.console.quiet):
            raise typer.Exit(code)
        return
    trainer.fit()
    if trainer.run.signals.received is not None:
        raise typer.Exit(128 + trainer.run.signals.received)


def _parse_replacements(options: Sequence[str]) -> dict[str, str]:
    from palestra.config import ConfigError

    for option in options:
        if not all(option.partition("=")):
            raise ConfigError.at("--replace", f"expected PLAYER=SCRIPTED, got {option!r}")
    return {name: script for name, _, script in (option.partition("=") for option in options)}
