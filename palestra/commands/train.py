"""Trains the players, or the model, of a config."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from palestra.commands.failures import one_line_errors, silent
from palestra.commands.ranks import begun_before, fit
from palestra.commands.shell import File, Overrides, Quiet, console, mistake, parse_numbers, say

if TYPE_CHECKING:
    from palestra.commands.starting import NamedConfig


def train(
    file: File,
    overrides: Overrides = None,
    run: Annotated[
        Path | None,
        typer.Option(help="the run's folder, new or empty; with --seeds that of all runs, which go on [runs/NAME-N]"),
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
        from palestra.commands.starting import find_config, naming_remedies
        from palestra.training.training import Training

        found, shown = find_config(file, overrides or []), silent if quiet else console
        if (begun := begun_before(run, seeds)) is not None:
            fit(Training.load(begun, console=shown))
            return
        if found.note is not None:
            say(found.note, shown)
        if seeds is None:
            if at is not None:
                raise mistake("--at", "expected it together with --seeds, got it alone")
            fit(_make_trainer(found, run, (), shown))
        else:
            from palestra.commands.side_by_side import train_side_by_side
            from palestra.config import reading_own
            from palestra.run.kinds import read_config

            numbers = parse_numbers(seeds, "--seeds", "seed")
            with naming_remedies(found), reading_own():
                config = read_config(found.source, found.overrides)
            if at is None:
                _train_seeds(found, config, run, numbers, shown)
            else:
                train_side_by_side(config, found.name, run, numbers, at, shown)


def _make_trainer(found: "NamedConfig", run: Path | None, overrides: Sequence[str], shown: Console) -> Any:
    import palestra
    from palestra.commands.starting import naming_remedies

    with naming_remedies(found):
        trainer = palestra.make_trainer(found.source, run=run, overrides=[*found.overrides, *overrides], console=shown)
    trainer.run.name = found.name
    return trainer


def _train_seeds(found: "NamedConfig", config: Any, run: Path | None, seeds: Sequence[int], shown: Console) -> None:
    """Train one run after the other, and print the summary over the seeds.

    config: the one that `found` names. Runs that have begun in the folder `run` go on. Raises RunFolderError for one
    that has another config.
    """
    from palestra.config import load_yaml, render
    from palestra.recording.summary import render_seeds_summary
    from palestra.storage.disk import Folder
    from palestra.sweeps.seed_runs import has_begun
    from palestra.training.training import Training

    evaluations, data = dict[int, Any](), load_yaml(render(config, type(config)))

    def is_begun(seed: int) -> bool:
        return run is not None and has_begun(Folder(run), f"seed-{seed}", config, data | {"seed": seed})

    for seed in seeds:
        is_begun(seed)  # raises before the first one trains for hours
    for seed in seeds:
        folder = None if run is None else run / f"seed-{seed}"
        if folder is not None and is_begun(seed):  # another process may have begun it meanwhile
            trainer = Training.load(folder, console=shown)
        else:
            trainer = _make_trainer(found, folder, [f"seed={seed}"], shown)
        fit(trainer)
        evaluations[seed] = trainer.run.records.evaluations
    render_seeds_summary(shown, evaluations)
