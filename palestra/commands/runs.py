"""The commands that look at runs, or use what learned there: report, compare, table, plot, verify, export, predict."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from palestra.commands.failures import errors, one_line_errors
from palestra.commands.shell import Checkpoint, Run, Trust, Weights, console, refuse_others, say, with_runs_of_sweeps
from palestra.runtime.console import VisibleFile

commands = typer.Typer()


Runs = Annotated[
    list[str], typer.Argument(help="the folders of one run or more, of a sweep or its trials, or URLs of mirrors")
]


@commands.command()
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
        from palestra.sweeps.extra import require_optuna
        from palestra.sweeps.folder import is_sweep_folder

        if len(runs) == 1 and is_sweep_folder(runs[0]):
            require_optuna()
            from palestra.report.sweep_page import write_sweep_report

            page = write_sweep_report(runs[0], out)
        else:
            found = [Path(run) for run in with_runs_of_sweeps(map(str, runs))]
            page = write_report(found, out or (runs[0] / "report.html" if len(runs) == 1 else None))
        say(str(page))


@commands.command()
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
        from palestra.recording.recorders import plain
        from palestra.report.comparison import as_data, compare_groups
        from palestra.report.comparison_table import render_comparison, to_csv
        from palestra.report.groups import group_runs
        from palestra.report.moments import play_afresh, read_moments
        from palestra.report.page import write_page
        from palestra.storage.facts import to_json
        from palestra.storage.fetching import local_folders

        named = with_runs_of_sweeps(runs)
        with local_folders(named) as folders:
            moments = read_moments(folders, checkpoint)
            for line in dict.fromkeys(fault for run, _ in moments for fault in run.faults):
                errors.print(line)
            found = [run for run, _ in moments] if games is None else play_afresh(moments, games, errors.print)
        comparison = compare_groups(group_runs(found))
        render_comparison(console, comparison, iqm)
        if json is not None:
            write_page(json, to_json(plain(as_data(comparison, dict(zip(folders, named, strict=True))))))
        if csv is not None:
            write_page(csv, to_csv(comparison))


@commands.command()
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
        from palestra.report.page import write_page
        from palestra.runs.tables import chosen_names, rows_of_runs, to_csv, to_parquet, write_csv
        from palestra.storage.fetching import local_folders

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
            write_page(csv, to_csv(found))
        if parquet is not None:
            write_page(parquet, to_parquet(found))


@commands.command()
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
            "[the scores of the players that learn]",
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
        from palestra.config import ConfigError
        from palestra.report.drawn_tables import KINDS, plot_tables
        from palestra.report.page import write_page
        from palestra.report.plots import plot_runs
        from palestra.storage.fetching import local_folders

        if kind not in ("curves", *KINDS):
            raise ConfigError.at("--kind", f"expected curves, {' or '.join(KINDS)}, got {kind!r}")
        if kind == "curves" and checkpoint is not None:
            raise ConfigError.at("--checkpoint", f"expected it with --kind {' or '.join(KINDS)}, got curves")
        if kind != "curves" and (single or iqm or x is not None):
            raise ConfigError.at("--kind", f"expected curves with --single, --iqm or --x, got {kind!r}")
        if single and iqm:
            raise ConfigError.at("--iqm", "expected either --single or --iqm, got both")
        with local_folders(with_runs_of_sweeps(runs)) as folders:
            if kind == "curves":
                drawn = plot_runs(folders, x, out.suffix[1:], metrics or (), single, errors.print, iqm)
            else:
                drawn = plot_tables(folders, kind, out.suffix[1:], checkpoint, errors.print, metrics or ())
        write_page(out, drawn.content)
        say(f"{out}: {drawn.caption}")


@commands.command()
def verify(
    run: Run,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="the number of a checkpoint, @ and its opt step, or beginning [the newest after which something was "
            "recorded]",
        ),
    ] = None,
    trust: Trust = False,
) -> None:
    """Train a stretch of a run again in another folder, and say whether records and state are equal to the bit."""
    with one_line_errors():
        from palestra.commands.verify import verify as verify_run

        verdict = verify_run(run, start, trust)
        for line in verdict.changed:
            say(line)
        for key in verdict.clocked:
            say(f"{key} counts minutes, which follow the clock: what it decides is not compared")
        if verdict.damage is not None:
            errors.print(verdict.damage)
        if verdict.difference is not None:
            errors.print(f"{run}, from {verdict.start}: not reproduced. {verdict.difference}")
            raise typer.Exit(1)
        state = "" if verdict.end is None else f", and the state of checkpoint {verdict.end}"
        say(f"{run}, from {verdict.start}: {verdict.num_records} records{state} reproduced to the bit")
        if verdict.damage is not None:
            raise typer.Exit(1)


@commands.command()
def export(
    run: Run,
    player: Annotated[str | None, typer.Option(help="its name; may be left out if only one player learned")] = None,
    checkpoint: Checkpoint = "latest",
    onnx: Annotated[bool, typer.Option("--onnx", help="write an ONNX file, too (extra: onnx)")] = False,
    role: Annotated[str | None, typer.Option(help="in which it observes, if it sits in several")] = None,
    weights: Annotated[
        str | None, typer.Option(help="of a model: latest, or averaged, by learning.ema [latest]")
    ] = None,
    trust: Trust = False,
) -> None:
    """Write a player or a model as files that run without palestra, to RUN/export/NAME-OPT_STEPS/."""
    with one_line_errors():
        from palestra.commands.export_check import ExportError
        from palestra.runs.base import BaseRunConfig
        from palestra.runs.config import RunConfig
        from palestra.runs.fit import FitConfig
        from palestra.runs.stored import config_of
        from palestra.runs.text import TextConfig
        from palestra.storage.disk import RunFolderError
        from palestra.storage.run_folder import RunFolder

        config = config_of(run, trust)
        RunFolder(run).require_plain()  # export/ may be no link
        ways: dict[type[BaseRunConfig], Callable[[], list[str]]] = {
            RunConfig: lambda: _export_player(run, player, checkpoint, onnx, role, trust),
            FitConfig: lambda: _export_model(run, checkpoint, weights or "latest", onnx, trust),
            TextConfig: lambda: _export_text(run, player, checkpoint, trust),
        }
        if (way := next((way for kind, way in ways.items() if isinstance(config, kind)), None)) is None:
            known = " or ".join(kind.in_words for kind in ways)
            raise RunFolderError(f"expected {known}, got {run}, {config.in_words}")
        refuse_others({"--player": player, "--onnx": onnx, "--role": role, "--weights": weights}, run, config)
        try:
            lines = way()
        except (ExportError, NotImplementedError, ValueError) as error:
            errors.print(str(error))
            raise typer.Exit(2) from None
        for line in lines:
            console.print(line, soft_wrap=True, markup=False, highlight=False)


def _export_player(
    run: Path, player: str | None, checkpoint: str, onnx: bool, role: str | None, trust: bool
) -> list[str]:
    """Export a player; returns lines that say what was written, and how it is used."""
    import palestra
    from palestra.commands.export import export_player, loading_lines

    loaded = palestra.load_player(run, player, checkpoint, trust)
    folder = run / "export" / "-".join([loaded.name, *([role] if role else []), f"{loaded.opt_steps}"])
    checked = export_player(loaded, folder, onnx, say, role)
    told = [f"{folder / name}: acts as the player in {decisions} decisions" for name, decisions in checked.items()]
    return told + [line for name in checked for line in (f"\nto use {name}:", *loading_lines(folder, name))]


def _export_text(run: Path, player: str | None, checkpoint: str, trust: bool) -> list[str]:
    """Export the model of a text player; returns lines that say what was written, and how it is used."""
    from palestra.commands.export_text import export_text_player, load_text_player, loading_lines

    loaded = load_text_player(run, player, checkpoint, trust)
    folder = run / "export" / f"{loaded.name}-{loaded.opt_steps}"
    num = export_text_player(loaded, folder)
    told = f"{folder}: gives {num} tokens of answers the probabilities that the player gives them"
    return [told, "\nto use it:", *loading_lines(folder)]


def _export_model(run: Path, checkpoint: str, weights: str, onnx: bool, trust: bool) -> list[str]:
    """Export a model; returns lines that say what was written, and how it is used."""
    import torch

    from palestra.commands.export_model import export_model, loading_lines
    from palestra.runs.models import load_model

    loaded = load_model(run, checkpoint, weights, (), trust, torch.device("cpu"))  # type: ignore[arg-type]
    for line in loaded.warnings:
        errors.print(line)
    name = "model" if weights == "latest" else "model-averaged"
    folder = run / "export" / f"{name}-{loaded.opt_steps}"
    checked = export_model(loaded, folder, onnx, say)
    told = [f"{folder / file}: gives the model's outputs for {num} items" for file, num in checked.items()]
    return told + [line for file in checked for line in (f"\nto use {file}:", *loading_lines(folder, file))]


@commands.command()
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
        from palestra.commands.predict import predict as write_predictions
        from palestra.runs.models import load_model

        loaded = load_model(run, checkpoint, weights, overrides or (), trust)  # type: ignore[arg-type]
        for line in loaded.warnings:
            errors.print(line)
        num = write_predictions(loaded, data, out, batch_size)
        say(f"{num} items of data.{data} at opt step {loaded.opt_steps}: {out}")


@commands.command()
def serve(
    model: Annotated[Path, typer.Argument(metavar="MODEL|RUN", help="the folder of a model, or of a run of text")],
    player: Annotated[str | None, typer.Option(help="which player of the run [the only one]")] = None,
    checkpoint: Annotated[
        str | None, typer.Option(help="of the run: latest, best, a number, or @ and an opt step [latest]")
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="of a model's weights: float32 or bfloat16 [float32]")] = None,
    host: Annotated[
        str, typer.Option(help="the address; any but a loopback one needs PALESTRA_SERVE_KEY")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0: a free one, which is printed", min=0, max=65535)] = 8000,
    folder: Annotated[
        Path | None, typer.Option(help="for uploaded files, jobs and tuned models [serving/NAME]")
    ] = None,
    exact: Annotated[
        bool, typer.Option("--exact", help="compute each request alone: a seed gives the same answer in any company")
    ] = False,
    trust: Trust = False,
) -> None:
    """Serve a model to clients of OpenAI's API: chat completions, files and fine-tuning jobs.

    A server that is started again on its folder has its files, jobs and models, and goes on with the job it was at.
    """
    with one_line_errors():
        from palestra.commands.serve import serve
        from palestra.config import trusting

        with trusting(trust):
            serve(model, player, checkpoint, dtype, (host, port), folder, exact, say)
