"""The commands that look at runs: evaluate, ask, play, report, compare, table, plot, verify, export."""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from palestra.commands.failures import errors, one_line_errors
from palestra.commands.shell import Run, Trust, console, with_runs_of_sweeps

commands = typer.Typer()


@commands.command()
def evaluate(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN|URL|FILE",
            help="the folder of a run, its mirror, palestra:polyhedra, or the config of a tournament",
            show_default=False,
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="dotted.key=value in place of what a run says of evaluations and game, or a file of all"),
    ] = None,
    pairing: Annotated[
        list[str] | None,
        typer.Option(
            help="play this one in place of those of the config: host=zeillinger,agent=agent; may be repeated"
        ),
    ] = None,
    checkpoint: Annotated[str | None, typer.Option(help="latest, best, or a number [latest]")] = None,
    evaluation: Annotated[str | None, typer.Option(help="the name of one of the run's evaluations [all]")] = None,
    games: Annotated[int | None, typer.Option(help="games per pairing [evaluation.final_num_games]", min=1)] = None,
    video: Annotated[bool, typer.Option("--video", help="film three episodes of a Gymnasium environment")] = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="evaluate every checkpoint as it is written, until the run ends")
    ] = False,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--run",
            help="of a tournament or a shipped run: the new folder for its results [runs/NAME-N]; "
            "of a mirror: that for a copy of its players, and the results [runs/NAME-copy]",
        ),
    ] = None,
    trust: Trust = False,
) -> None:
    """Play the evaluations of a run's config with the players of a checkpoint; results go to RUN/evaluations/.

    Or play a tournament, a config in which nobody learns; results go to a folder of its own, as those of a run that
    comes with palestra."""
    with one_line_errors():
        from palestra.commands.match import mistake
        from palestra.commands.play import read_pairing
        from palestra.commands.tournament import play_tournament, tournament_file
        from palestra.runs.changed_evaluations import Changes
        from palestra.runs.output import default_folder
        from palestra.runs.shipped_runs import find_run, is_shipped
        from palestra.storage.fetching import fetch_new_checkpoints, is_url

        pairings, file = [read_pairing([text]) for text in pairing or []], tournament_file(run)
        if file is not None:
            if checkpoint is not None or evaluation is not None or video or watch:
                raise mistake("--checkpoint, --evaluation, --video, --watch", "expected none for a tournament, got one")
            count = [] if games is None else [f"num_games={games}"]
            play_tournament(file, [*(overrides or []), *count], pairings, folder, console)
            return
        if folder is not None and not (is_shipped(run) or is_url(run)):
            place = f"{run}, whose folder takes the results"
            raise mistake("--run", f"expected it for a tournament, a mirror or a shipped run alone, got it for {place}")
        stored = _open(run, folder, trust)
        changes = Changes(overrides or [], pairings)
        if changes.overrides or changes.pairings:
            stored.change_evaluations(changes)
        names = _names_of_evaluations(stored, evaluation)
        _print_asked(stored, games)
        if watch:
            if checkpoint is not None or video:
                raise mistake(
                    "--watch", "expected no --checkpoint and no --video together with --watch, got one of them"
                )
            if is_shipped(run):
                raise mistake("--watch", f"expected a run of your own, got {run}, which trains no more")
            look = partial(fetch_new_checkpoints, run, stored.folder) if is_url(run) else lambda: None
            _watch(stored, names, games, look)
            return
        stored.load(checkpoint or "latest")
        if is_shipped(run):
            stored.file_into(default_folder(folder, f"palestra-{find_run(run).folder.name}"))
        for name, path in _evaluate(stored, names, games).items():
            if video:
                _film(stored, name, path)


def _names_of_evaluations(stored: Any, chosen: str | None) -> list[str]:
    from palestra.commands.match import mistake

    known = list(stored.evaluations.configs)
    if not known:
        remedy = f"--pairing {','.join(f'{role}={name}' for role, name in stored.config.roles.items())} plays one"
        raise mistake("evaluations", f"expected at least one in the run's config, got []; {remedy}")
    if chosen is not None and chosen not in known:
        raise mistake("--evaluation", f"expected one of {', '.join(known)}, got {chosen!r}")
    return known if chosen is None else [chosen]


def _print_asked(stored: Any, games: int | None) -> None:
    """What is played where the run's config has no evaluation, but a pairing is asked for."""
    from palestra.runs.changed_evaluations import ASKED

    asked = stored.evaluations.configs.get(ASKED["name"])
    if not stored.config.evaluations and asked is not None:
        limits = f"{games or asked.final_num_games} games (--games), each of at most {asked.max_rounds} rounds"
        console.print(f"the run has no evaluations: {limits} (evaluations.0.max_rounds=...)", soft_wrap=True)


def _open(run: str, folder: Path | None, trust: bool) -> Any:
    """The run that is evaluated: in its folder, in a copy of its mirror, or a shipped one."""
    from palestra.runs.shipped_runs import is_shipped
    from palestra.runs.stored import StoredRun, open_to_play
    from palestra.storage.fetching import fetch, is_url, name_of

    if is_shipped(run):
        return open_to_play(run, trust)
    if not is_url(run):
        return StoredRun.open(run, trust=trust)
    copy, damaged = fetch(run, folder or Path("runs") / f"{name_of(run)}-copy", with_rows=False)
    for line in damaged:
        console.print(line, soft_wrap=True)
    return StoredRun.open(copy.path, trust=trust)


def _film(stored: Any, name: str, path: Path) -> None:
    console.print("filming; without a graphics card this may take minutes")
    film, found = stored.film(name, path.with_suffix(".mp4").name)
    returns = ", ".join(f"{value:g}" for value in found)
    console.print(f"a film of episodes with returns {returns}: {film}", soft_wrap=True)


def _watch(stored: Any, names: Sequence[str], games: int | None, look: Callable[[], None]) -> None:
    from palestra.commands.watch import watch
    from palestra.recording.display.plain import evaluation_line
    from palestra.recording.results import Evaluation

    for number, found in watch(stored, names, games, look):
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
        num = len(record["pairs"])
        where = f"evaluation {name}, {num} pairing{'s' * (num != 1)} at opt step {record['opt_steps']}"
        console.print(f"{where}: {path}", soft_wrap=True)
    return {name: path for name, (path, _) in found.items()}


Runs = Annotated[
    list[str],
    typer.Argument(
        help="the folders of one run or more, of a sweep or its trials, or URLs of mirrors", show_default=False
    ),
]
Checkpoint = Annotated[str, typer.Option(help="latest, best, or a number")]


@commands.command()
def ask(
    run: Run,
    board: Annotated[
        str | None, typer.Option(help="a board of the game: '[[0,3],[2,2]]' in polyhedra, '[1,2,3]' in Nim")
    ] = None,
    observation: Annotated[str | None, typer.Option(help="in place of a board, as JSON: '[0.1,0,0,0]'")] = None,
    move: Annotated[
        list[str] | None, typer.Option(help="what is played on the board first: 'x1 x2'; may be repeated")
    ] = None,
    role: Annotated[str | None, typer.Option(help="ask this role alone [all]")] = None,
    checkpoint: Checkpoint = "latest",
    trust: Trust = False,
) -> None:
    """Ask the players what they would do on a board: each role's choice, the values of all, and scripted players'."""
    with one_line_errors():
        from palestra.commands.ask import ask_at_observation, ask_on_board
        from palestra.commands.match import mistake
        from palestra.runs.stored import open_to_play

        stored = open_to_play(run, trust)
        stored.load(checkpoint)
        if board is not None and observation is None:
            lines = ask_on_board(stored, board, move or [], role)
        elif observation is not None and board is None and not move:
            lines = ask_at_observation(stored, observation, role)
        else:
            raise mistake("--board", "expected either --board, perhaps with --move, or --observation alone")
        _say("\n".join(lines))


@commands.command()
def play(
    run: Run,
    person: Annotated[str | None, typer.Option("--as", help="the role in which you sit [none: you watch]")] = None,
    against: Annotated[
        str | None, typer.Option(help="who sits in the other roles: a player of the run, or a scripted one")
    ] = None,
    pairing: Annotated[
        list[str] | None, typer.Option(help="the same by role: host=zeillinger,agent=agent; may be repeated")
    ] = None,
    board: Annotated[str | None, typer.Option(help="the first board, as in ask [drawn by the seed]")] = None,
    seed: Annotated[int | None, typer.Option(help="of the board and of players that draw [another each time]")] = None,
    checkpoint: Checkpoint = "latest",
    trust: Trust = False,
) -> None:
    """Play one game in the terminal against the players of a run, or watch them play."""
    with one_line_errors():
        import secrets
        import sys

        from palestra.commands.play import Person, choose_seats, new_match, read_pairing, seat
        from palestra.commands.play import play as play_match
        from palestra.runs.stored import open_to_play

        stored = open_to_play(run, trust)
        stored.load(checkpoint)
        names = choose_seats(stored, person, against, read_pairing(pairing or []))
        seats: dict[str, Any] = {role: seat(stored, name, role) for role, name in names.items()}
        number = secrets.randbelow(10**6) if seed is None else seed
        match = new_match(stored, board, number)
        if person is not None:
            answers = iter(sys.stdin.readline, "")
            seats[person] = Person(match.game, stored, answers, _say, lambda text: _say(text, end=""))
        if seed is None:
            _say(f"for the same game again: --seed {number}")
        play_match(match, seats, _say)


def _say(text: str, end: str = "\n") -> None:
    console.print(text, end=end, markup=False, soft_wrap=True)


@commands.command()
def report(
    runs: Annotated[
        list[Path], typer.Argument(help="the folders of one run or more, or of a sweep", show_default=False)
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="the page [RUN/report.html, SWEEP/report.html; of several: ./report.html]", show_default=False
        ),
    ] = None,
    connect: Annotated[
        bool, typer.Option("--connect", help="of a sweep whose study lies in a database: connect to it")
    ] = False,
) -> None:
    """Write one page of HTML on runs: curves, evaluations, time, checkpoints, configs; or on a sweep: its trials, and
    which keys matter. What it is about may go on meanwhile."""
    with one_line_errors():
        from palestra.report.page import write_report
        from palestra.sweeps.folder import is_sweep_folder
        from palestra.sweeps.storages import require_optuna

        if len(runs) == 1 and is_sweep_folder(runs[0]):
            require_optuna()
            from palestra.report.sweep_page import write_sweep_report

            page = write_sweep_report(runs[0], out, connect)
        else:
            found = [Path(run) for run in with_runs_of_sweeps(map(str, runs))]
            page = write_report(found, out or (runs[0] / "report.html" if len(runs) == 1 else None))
        console.print(str(page), soft_wrap=True)


@commands.command()
def compare(
    runs: Annotated[
        list[str],
        typer.Argument(
            help="folders of runs, checkpoints, sweeps or their trials, URLs of mirrors", show_default=False
        ),
    ],
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
        from palestra.storage.fetching import local_folders

        with local_folders(with_runs_of_sweeps(runs)) as folders:
            moments = read_moments(folders, checkpoint)
            found = [run for run, _ in moments] if games is None else play_afresh(moments, games, errors.print)
        comparison = compare_groups(group_runs(found))
        render_comparison(console, comparison)
        if json is not None:
            write_page(
                json, to_json(plain(as_data(comparison, dict(zip(folders, with_runs_of_sweeps(runs), strict=True)))))
            )
        if csv is not None:
            write_page(csv, to_csv(comparison))


@commands.command()
def table(
    runs: Runs,
    csv: Annotated[Path | None, typer.Option(help="the file to write [standard output]", show_default=False)] = None,
    parquet: Annotated[
        Path | None, typer.Option(help="write this file, as parquet (extra: frames)", show_default=False)
    ] = None,
) -> None:
    """Write the records of runs as a tidy table: run, seed, env_steps, opt_steps, name, value."""
    with one_line_errors():
        from palestra.report.page import write_page
        from palestra.runs.frames import rows_of_runs, to_csv, to_parquet, write_csv
        from palestra.storage.fetching import local_folders

        with local_folders(with_runs_of_sweeps(runs)) as folders:
            rows = rows_of_runs(folders, errors.print)
            if csv is None and parquet is None:
                write_csv(rows, sys.stdout)
                return
            found = list(rows)
        if csv is not None:
            write_page(csv, to_csv(found))
        if parquet is not None:
            write_page(parquet, to_parquet(found))


@commands.command()
def plot(
    runs: Runs,
    out: Annotated[Path, typer.Option(help="the file, which ends in .pdf, .svg or .png")] = Path("fig.pdf"),
    x: Annotated[str, typer.Option("--x", help="env_steps or opt_steps")] = "env_steps",
    metrics: Annotated[
        list[str] | None,
        typer.Option(
            help="a name of `palestra table`, or its last parts; * stands for any text; may be repeated "
            "[the scores of the players that learn]",
            show_default=False,
        ),
    ] = None,
    single: Annotated[bool, typer.Option("--single", help="draw each run as a line of its own")] = False,
    kind: Annotated[str, typer.Option(help="curves, learning-table or cross-table")] = "curves",
    checkpoint: Annotated[
        str | None,
        typer.Option(help="of tables: best, latest or a number [the last evaluation]", show_default=False),
    ] = None,
) -> None:
    """Draw a figure for a paper: curves (interquartile means over seeds with 90% intervals, a panel per metric or
    pairing), a table of scores by environment and algorithm, or a coloured table of who meets whom."""
    with one_line_errors():
        from palestra.commands.match import mistake
        from palestra.report.drawn_tables import KINDS, plot_tables
        from palestra.report.page import write_page
        from palestra.report.plots import plot_runs
        from palestra.storage.fetching import local_folders

        if kind not in ("curves", *KINDS):
            raise mistake("--kind", f"expected curves, {' or '.join(KINDS)}, got {kind!r}")
        if kind == "curves" and checkpoint is not None:
            raise mistake("--checkpoint", f"expected it with --kind {' or '.join(KINDS)}, got curves")
        if kind != "curves" and (metrics or single or x != "env_steps"):
            raise mistake("--kind", f"expected curves with --metrics, --single or --x, got {kind!r}")
        with local_folders(with_runs_of_sweeps(runs)) as folders:
            if kind == "curves":
                drawn = plot_runs(folders, x, out.suffix[1:], metrics or (), single, errors.print)
            else:
                drawn = plot_tables(folders, kind, out.suffix[1:], checkpoint, errors.print)
        write_page(out, drawn.content)
        console.print(f"{out}: {drawn.caption}", soft_wrap=True)


@commands.command()
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


@commands.command()
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
        from palestra.commands.export import ExportError, export_player, loading_lines

        try:
            loaded = palestra.load_player(run, player, checkpoint, trust)
            folder = run / "export" / f"{loaded.name}-{loaded.opt_steps}"
            checked = export_player(loaded, folder, onnx, lambda line: console.print(line, soft_wrap=True))
        except (ExportError, NotImplementedError, ValueError) as error:
            errors.print(str(error))
            raise typer.Exit(2) from None
        for name, decisions in checked.items():
            console.print(f"{folder / name}: acts as the player in {decisions} decisions", soft_wrap=True)
        for name in checked:
            console.print(f"\nto use {name}:")
            for line in loading_lines(folder, name):
                console.print(line, soft_wrap=True, markup=False, highlight=False)
