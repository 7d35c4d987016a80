"""The command line. Exit codes: 0 done, 1 the run failed, 2 bad input, 128 + n stopped by signal n.

Heavy imports stand inside the commands, so that `palestra --help` answers at once.
"""

import atexit
import gc
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from palestra.commands.failures import errors, one_line_errors, silent
from palestra.runtime.signals import exiting_on_signals

app = typer.Typer(
    help="palestra: one reinforcement-learning trainer for players of every kind.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
console = Console(highlight=False)

File = Annotated[Path, typer.Argument(help="the config, a YAML file", show_default=False)]
Run = Annotated[Path, typer.Argument(help="the folder of a run", show_default=False)]
Quiet = Annotated[bool, typer.Option("--quiet", help="show only errors")]
Trust = Annotated[bool, typer.Option("--trust", help="trust the modules that the run names, from now on")]
Overrides = Annotated[list[str] | None, typer.Argument(help="dotted.key=value in place of what the file says")]


@app.command()
def train(
    file: File,
    overrides: Overrides = None,
    run: Annotated[Path | None, typer.Option(help="the run's folder, which must not exist [runs/NAME-N]")] = None,
    seeds: Annotated[str | None, typer.Option(help="several runs, one per seed: 0..4 or 0,3,7")] = None,
    quiet: Quiet = False,
) -> None:
    """Train the players of a config."""
    with one_line_errors(quiet):
        import palestra

        shown = silent if quiet else console
        if seeds is None:
            _fit(palestra.make_trainer(file, run=run, overrides=overrides or [], console=shown))
        else:
            _train_seeds(file, overrides or [], run, _parse_seeds(seeds), shown)


def _train_seeds(file: Path, overrides: list[str], run: Path | None, seeds: list[int], shown: Console) -> None:
    import palestra
    from palestra.recording.summary import render_seeds_summary

    evaluations: dict[int, Any] = {}
    for seed in seeds:
        folder = None if run is None else run / f"seed-{seed}"
        trainer = palestra.make_trainer(file, run=folder, overrides=[*overrides, f"seed={seed}"], console=shown)
        _fit(trainer)
        assert trainer.output is not None
        evaluations[seed] = trainer.output.evaluations
    render_seeds_summary(shown, evaluations)


@app.command()
def resume(
    run: Annotated[str, typer.Argument(help="the folder of a run, or the URL of its mirror", show_default=False)],
    into: Annotated[
        Path | None, typer.Option("--run", help="for a mirror: the new folder of the run [runs/NAME]")
    ] = None,
    trust: Trust = False,
    quiet: Quiet = False,
) -> None:
    """Go on with a run from its last checkpoint, to the same bits as if it had never stopped."""
    with one_line_errors(quiet):
        import palestra

        _fit(palestra.Trainer.load(run, console=silent if quiet else console, into=into, trust=trust))


@app.command()
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


@app.command()
def branch(
    checkpoint: Annotated[
        Path, typer.Argument(help="such as runs/NAME-N/checkpoints/00000003, or .../latest, .../best")
    ],
    overrides: Overrides = None,
    run: Annotated[Path | None, typer.Option(help="the new run's folder, which must not exist [runs/NAME-N]")] = None,
    trust: Trust = False,
    quiet: Quiet = False,
) -> None:
    """Begin a new run with the state of a checkpoint and changed hyperparameters."""
    with one_line_errors(quiet):
        import palestra

        shown = silent if quiet else console
        _fit(palestra.Trainer.branch(checkpoint, overrides or [], run=run, console=shown, trust=trust))


@app.command()
def evaluate(
    run: Run,
    checkpoint: Annotated[str | None, typer.Option(help="latest, best, or a number [latest]")] = None,
    evaluation: Annotated[str | None, typer.Option(help="the name of one of the run's evaluations [all]")] = None,
    games: Annotated[int | None, typer.Option(help="games per pairing [evaluation.final_num_games]", min=1)] = None,
    video: Annotated[bool, typer.Option("--video", help="film three episodes of a Gymnasium environment")] = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="evaluate every checkpoint as it is written, until the run ends")
    ] = False,
    trust: Trust = False,
) -> None:
    """Play the evaluations of a run's config with the players of a checkpoint; results go to RUN/evaluations/."""
    with one_line_errors():
        from palestra.config import ConfigError, ConfigErrorItem
        from palestra.runs.stored import StoredRun

        stored = StoredRun.open(run, trust=trust)
        if not stored.config.evaluations:
            raise ConfigError([ConfigErrorItem("evaluations", "expected at least one in the run's config, got []")])
        known = list(stored.evaluations.configs)
        if evaluation is not None and evaluation not in known:
            message = f"expected one of {', '.join(known)}, got {evaluation!r}"
            raise ConfigError([ConfigErrorItem("--evaluation", message)])
        names = known if evaluation is None else [evaluation]
        if watch:
            if checkpoint is not None or video:
                raise ConfigError(
                    [
                        ConfigErrorItem(
                            "--watch", "expected no --checkpoint and no --video together with --watch, got one of them"
                        )
                    ]
                )
            _watch(stored, names, games)
            return
        stored.load(checkpoint or "latest")
        for name, path in _evaluate(stored, names, games).items():
            if video:
                console.print("filming; without a graphics card this may take minutes")
                film, found = stored.film(name, path.with_suffix(".mp4").name)
                returns = ", ".join(f"{value:g}" for value in found)
                console.print(f"a film of episodes with returns {returns}: {film}", soft_wrap=True)


def _watch(stored: Any, names: Sequence[str], games: int | None) -> None:
    from palestra.commands.watch import watch
    from palestra.recording.display.plain import evaluation_line
    from palestra.recording.results import Evaluation

    for number, found in watch(stored, names, games):
        line = found if isinstance(found, str) else evaluation_line(Evaluation.from_record(found))
        console.print(f"checkpoint {number:08d}: {line}", soft_wrap=True)
    console.print(f"{stored.folder.path} is finished", soft_wrap=True)


def _evaluate(stored: Any, names: Sequence[str], games: int | None) -> dict[str, Path]:
    from palestra.commands.evaluate import ShownEvaluations
    from palestra.recording.display import make_display
    from palestra.recording.display.scores import score_table
    from palestra.recording.results import Evaluation

    with make_display("auto", console) as display:
        shown = ShownEvaluations(stored, names, games, display)
        found = {name: shown.play(name) for name in names}
    for name, (path, record) in found.items():
        console.print(score_table([Evaluation.from_record(record)], console.width, 1000))
        where = f"evaluation {name}, {len(record['pairs'])} pairings at opt step {record['opt_steps']}"
        console.print(f"{where}: {path}", soft_wrap=True)
    return {name: path for name, (path, _) in found.items()}


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="the folders of one run or more", show_default=False)],
    out: Annotated[
        Path | None, typer.Option(help="the page [RUN/report.html; of several runs: ./report.html]", show_default=False)
    ] = None,
) -> None:
    """Write one page of HTML on runs: curves, evaluations, time, checkpoints, configs. A run may train meanwhile."""
    with one_line_errors():
        from palestra.report.page import write_report

        console.print(str(write_report(runs, out)), soft_wrap=True)


@app.command()
def compare(
    runs: Annotated[list[Path], typer.Argument(help="folders of runs, or of checkpoints", show_default=False)],
    checkpoint: Annotated[
        str | None, typer.Option(help="best, latest or a number [the last evaluation]", show_default=False)
    ] = None,
    games: Annotated[
        int | None, typer.Option(help="play so many games per pairing now, from the same starts for all runs", min=1)
    ] = None,
    json: Annotated[Path | None, typer.Option(help="also write the comparison into this file")] = None,
    csv: Annotated[
        Path | None, typer.Option(help="also write a line for each score of each run into this file")
    ] = None,
) -> None:
    """Compare runs: scores, as means of those that differ in seed alone; keys that differ; who is likely better."""
    with one_line_errors():
        from palestra.recording.recorders import plain
        from palestra.report.comparison import as_data, compare_groups
        from palestra.report.comparison_table import render_comparison, to_csv
        from palestra.report.groups import group_runs
        from palestra.report.moments import play_afresh, read_moments
        from palestra.report.page import write_page
        from palestra.storage.facts import to_json

        moments = read_moments(runs, checkpoint)
        found = [run for run, _ in moments] if games is None else play_afresh(moments, games, errors.print)
        comparison = compare_groups(group_runs(found))
        render_comparison(console, comparison)
        if json is not None:
            write_page(json, to_json(plain(as_data(comparison))))
        if csv is not None:
            write_page(csv, to_csv(comparison))


@app.command()
def verify(
    run: Run,
    start: Annotated[
        str | None,
        typer.Option(
            "--from", help="the number of a checkpoint, or beginning [the newest after which anything was recorded]"
        ),
    ] = None,
    trust: Trust = False,
) -> None:
    """Train a part of a run again in another folder, and say whether records and state are equal to the bit."""
    with one_line_errors():
        from palestra.commands.verify import verify as verify_run

        verdict = verify_run(run, start, trust)
        for line in verdict.changed:
            console.print(line, soft_wrap=True)
        for key in verdict.clocked:
            console.print(
                f"{key} counts minutes, which follow the clock: what it decides is not compared", soft_wrap=True
            )
        if verdict.damage is not None:
            errors.print(verdict.damage)
        if verdict.difference is not None:
            errors.print(f"{run}, from {verdict.start}: not reproduced. {verdict.difference}")
            raise typer.Exit(1)
        state = "" if verdict.end is None else f", and the state of checkpoint {verdict.end}"
        console.print(
            f"{run}, from {verdict.start}: {verdict.num_records} records{state} reproduced to the bit", soft_wrap=True
        )
        if verdict.damage is not None:
            raise typer.Exit(1)


@app.command()
def profile(
    file: File,
    overrides: Overrides = None,
    steps: Annotated[int, typer.Option(help="opt steps under the profiler", min=1)] = 200,
    out: Annotated[Path, typer.Option(help="the trace, for chrome://tracing or ui.perfetto.dev")] = Path("trace.json"),
) -> None:
    """Train a short stretch of a config under torch's profiler: where the time goes, by phase and by operator."""
    with one_line_errors():
        from palestra.commands.profile import profile_config, render_profile

        try:
            found = profile_config(file, overrides or [], steps, out)
        except OSError as error:
            errors.print(f"--out: {out} cannot be written: {error.strerror}")
            raise typer.Exit(2) from None
        if isinstance(found, int):
            raise typer.Exit(128 + found)
        console.print(render_profile(found, num_operators=12))
        console.print(f"trace: {out}", soft_wrap=True)


@app.command()
def export(
    run: Run,
    player: Annotated[str | None, typer.Option(help="its name; may be left out if only one player learned")] = None,
    checkpoint: Annotated[str, typer.Option(help="latest, best, or a number")] = "latest",
    onnx: Annotated[bool, typer.Option("--onnx", help="write policy.onnx too (extra: onnx)")] = False,
    trust: Trust = False,
) -> None:
    """Write a player as files that run without palestra, to RUN/export/PLAYER-OPT_STEPS/."""
    with one_line_errors():
        import palestra
        from palestra.commands.export import ExportError, export_player

        try:
            loaded = palestra.load_player(run, player, checkpoint, trust)
            folder = run / "export" / f"{loaded.name}-{loaded.opt_steps}"
            checked = export_player(loaded, folder, onnx)
        except (ExportError, NotImplementedError, FileExistsError, ValueError) as error:
            errors.print(str(error))
            raise typer.Exit(2) from None
        for name, decisions in checked.items():
            console.print(f"{folder / name}: acts as the player in {decisions} decisions", soft_wrap=True)


@app.command()
def check(file: File, overrides: Overrides = None) -> None:
    """Check a config: all that `train` would refuse, at once. Nothing is run, and no environment is made; classes
    that the file names are imported, and with them their modules run."""
    with one_line_errors():
        from palestra.commands.check import dry_run

        unchecked = dry_run(file, overrides or [])
        console.print(f"{file}: complete and consistent", soft_wrap=True, markup=False)
        if unchecked:
            console.print(f"not checked: {'; '.join(unchecked)}", soft_wrap=True, markup=False)


@app.command()
def config(
    name: Annotated[str, typer.Argument(help="an algorithm, such as dqn", show_default=False)],
    game: Annotated[
        str | None, typer.Argument(help="a game, such as polyhedra, or a Gymnasium environment, such as LunarLander-v3")
    ] = None,
) -> None:
    """Print a complete config, each key with its comment; for any Gymnasium environment, with networks that fit it."""
    with one_line_errors():
        from palestra.commands.suggest_config import suggested_config
        from palestra.config import render
        from palestra.runs.config import RunConfig

        print(render(suggested_config(name, game), RunConfig), end="")


@app.command(name="list")
def list_parts() -> None:
    """List games, algorithms, trainers, nets, players, schedules, rewards and optimizers, one line each."""
    with one_line_errors():
        from palestra.commands.catalogue import catalogue

        for kind, entries in catalogue().items():
            table = Table(box=None, show_header=False, pad_edge=False)
            for name, line in entries.items():
                table.add_row(f"  {name}", line)
            console.print(f"[bold]{kind}[/bold]")
            console.print(table)


# ---- what several commands do ----------------------------------------------------------------------------


def _fit(trainer: Any) -> None:
    """Train; leave the process with 128 + n if signal n stopped the run."""
    trainer.fit()
    if trainer.signals.received is not None:
        raise typer.Exit(128 + trainer.signals.received)


def _parse_seeds(text: str) -> list[int]:
    from palestra.config import ConfigError, ConfigErrorItem

    if match := re.fullmatch(r"(\d+)\.\.(\d+)", text):
        first, last = int(match[1]), int(match[2])
        if first <= last:
            return list(range(first, last + 1))
    elif re.fullmatch(r"\d+(,\d+)*", text):
        return [int(seed) for seed in text.split(",")]
    raise ConfigError([ConfigErrorItem("--seeds", f"expected seeds as 0..4 or 0,3,7, got {text!r}")])


def main(arguments: Sequence[str] | None = None) -> None:
    """The console script."""
    # else the interpreter looks at all objects of torch before it ends, which takes a second
    atexit.register(gc.freeze)
    with exiting_on_signals():
        app(args=arguments, prog_name="palestra")
