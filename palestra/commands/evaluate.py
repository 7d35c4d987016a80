"""Evaluates what checkpoints of runs hold, or plays a tournament."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from palestra.commands.failures import load, one_line_errors
from palestra.commands.shell import Trust, console, refuse, refuse_others, say, with_runs_of_sweeps

if TYPE_CHECKING:
    from palestra.runs.stored import Stored

LOOK_S = 1.0  # between two searches for a new checkpoint


def evaluate(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN|URL|FILE",
            help="the folder of a run or a sweep, a mirror, palestra:polyhedra, or the config of a tournament",
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
    checkpoint: Annotated[
        str | None, typer.Option(help="latest, best, a number, or @ and an opt step, as @2100 [latest]")
    ] = None,
    evaluation: Annotated[str | None, typer.Option(help="the name of one of the run's evaluations [all]")] = None,
    games: Annotated[int | None, typer.Option(help="games per pairing [evaluation.final_num_games]", min=1)] = None,
    video: Annotated[bool, typer.Option("--video", help="film three episodes of a Gymnasium environment")] = False,
    rollouts: Annotated[
        bool, typer.Option("--rollouts", help="of a run of text: keep the dialogues beside the results")
    ] = False,
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
    """Evaluate what a checkpoint holds by the evaluations of its run; results go to RUN/evaluations/.

    Or play a tournament, a config in which nobody learns. The results of a tournament, and those of a run that comes
    with palestra, go to a new folder.
    """
    with one_line_errors():
        from palestra.commands.play_board import read_pairing
        from palestra.commands.tournament import play_tournament, tournament_file
        from palestra.runs.changed_evaluations import Changes
        from palestra.runs.run import default_folder
        from palestra.runs.shipped import find_run, is_shipped
        from palestra.storage.checkpoints import CheckpointError

        changes = Changes(overrides or [], [read_pairing([text]) for text in pairing or []])
        of_games = {"--pairing": pairing and pairing[0], "--games": games, "--video": video, "--rollouts": rollouts}
        opened = partial(_open, changes=changes, trust=trust, of_games=of_games)
        if (inside := with_runs_of_sweeps([run])) != [run]:
            refuse({"--watch": watch, "--run": folder}, f"{run} has several runs")
            for each in inside:
                console.print(each, style="bold", soft_wrap=True)
                stored = opened(each, None)
                try:
                    load(stored, checkpoint or "latest")
                except CheckpointError as error:  # as of a trial that failed early
                    say(f"not evaluated: {error}")
                    continue
                _evaluate(stored, _names_of_evaluations(stored, evaluation), games, video)
        elif (file := tournament_file(run)) is not None:
            refused = {"--checkpoint": checkpoint, "--evaluation": evaluation, "--video": video, "--watch": watch}
            refuse(refused | {"--rollouts": rollouts}, f"{run} is a tournament")
            count = [] if games is None else [f"num_games={games}"]
            play_tournament(file, [*changes.overrides, *count], changes.pairings, folder, console)
        elif watch:
            refuse({"--checkpoint": checkpoint, "--video": video}, "--watch evaluates every checkpoint as it comes")
            _watch(run, opened(run, folder), evaluation, games)
        else:
            stored = opened(run, folder)
            names = _names_of_evaluations(stored, evaluation)
            _print_asked(stored, games)
            load(stored, checkpoint or "latest")
            if is_shipped(run):
                stored.file_into(default_folder(folder, f"palestra-{find_run(run).folder.name}"))
            _evaluate(stored, names, games, video)


def _names_of_evaluations(stored: Any, chosen: str | None) -> list[str]:
    from palestra.config import ConfigError

    known = list(stored.evaluations.configs)
    if not known:
        seats = ",".join(f"{role}={name}" for role, name in (stored.config.pairing() or {}).items())
        remedy = f"; --pairing {seats} plays one" if "--pairing" in stored.config.options else ""
        raise ConfigError.at("evaluations", f"expected at least one in the run's config, got []{remedy}")
    if chosen is not None and chosen not in known:
        raise ConfigError.at("--evaluation", f"expected one of {', '.join(known)}, got {chosen!r}")
    return known if chosen is None else [chosen]


def _print_asked(stored: Any, games: int | None) -> None:
    """What is played where the run's config has no evaluation, but a pairing is asked for."""
    from palestra.runs.base import ASKED

    asked = stored.evaluations.configs.get(ASKED["name"])
    if not stored.config.evaluations and asked is not None:
        limits = f"{games or asked.final_num_games} games (--games)"
        if hasattr(asked, "max_rounds"):
            limits += f", each of at most {asked.max_rounds} rounds (evaluations.0.max_rounds=...)"
        say(f"the run has no evaluations: {limits}")


def _open(run: str, folder: Path | None, changes: Any, trust: bool, of_games: Mapping[str, Any]) -> Any:
    """Open the run that is evaluated: in its folder, in a copy of its mirror, or a shipped one.

    of_games: the options that mean something only to some kinds of run.
    """
    from palestra.runs.shipped import is_shipped
    from palestra.runs.stored import open_to_play
    from palestra.storage.fetching import fetch, is_url, name_of
    from palestra.training.stored_training import StoredRun

    if is_shipped(run):
        stored: Any = open_to_play(run, trust)
    elif is_url(run):
        copy, damaged = fetch(run, folder or Path("runs") / f"{name_of(run)}-copy", with_rows=False)
        for line in damaged:
            say(line)
        stored = StoredRun.open(copy.path, trust)
    else:
        refuse({"--run": folder}, f"the results of {run} go into its own folder")
        stored = StoredRun.open(run, trust)
    refuse_others(of_games, run, stored.config)
    stored.with_rollouts = bool(of_games["--rollouts"])
    if changes.overrides or changes.pairings:
        stored.change_evaluations(changes)
    return stored


def _watch(run: str, stored: Any, evaluation: str | None, games: int | None) -> None:
    from palestra.config import ConfigError
    from palestra.recording.display.display import evaluation_line
    from palestra.recording.results import Evaluation
    from palestra.runs.shipped import is_shipped
    from palestra.storage.fetching import fetch_new_checkpoints, is_url

    names = _names_of_evaluations(stored, evaluation)
    _print_asked(stored, games)
    if is_shipped(run):
        raise ConfigError.at("--watch", f"expected a run of your own, got {run}, which trains no more")
    look = partial(fetch_new_checkpoints, run, stored.folder) if is_url(run) else lambda: None
    for number, found in watch(stored, names, games, look):
        line = found if isinstance(found, str) else evaluation_line(Evaluation.from_record(found))
        say(f"checkpoint {number:08d}: {line}")
    say(f"{stored.folder.path} is finished")


def _evaluate(stored: Any, names: Sequence[str], games: int | None, video: bool) -> None:
    from palestra.commands.tournament import ShownEvaluations
    from palestra.evaluation.video import require_extra
    from palestra.recording.display import make_display
    from palestra.recording.display.scores import score_table
    from palestra.recording.results import Evaluation

    if video:  # before the games
        require_extra()
    with make_display("auto", console) as display:
        shown = ShownEvaluations(stored, names, games, display)
        found = {name: shown.play(name) for name in names}
    for name, (path, record) in found.items():
        console.print(score_table([Evaluation.from_record(record)], console.width, 1000))
        num, what = len(record["pairs"]), "pairing"
        if record.get("counted") == "items":
            num, what = record["pairs"][0]["items"], "item"
        say(f"evaluation {name}, {num} {what}{'s' * (num != 1)} at opt step {record['opt_steps']}: {path}")
        if stored.with_rollouts:
            say(f"its dialogues: {path.with_suffix('.parquet')}")
    for name, (path, _) in found.items() if video else ():
        say("filming; without a graphics card this may take minutes")
        film, of_episodes = stored.film(name, path.with_suffix(".mp4").name)
        returns = ", ".join(f"{value:g}" for value in of_episodes)
        say(f"a film of episodes with returns {returns}: {film}")


def watch(
    run: "Stored", names: Sequence[str], num: int | None, look: Callable[[], None] = lambda: None
) -> Iterator[tuple[int, dict[str, Any] | str]]:
    """Evaluate all checkpoints of a run, the oldest first, and new ones as they are written, until the run has ended.

    Gives the number of each checkpoint with a record, or with the reason why there is none.

    names: of the evaluations. num: of games per pairing; None: as at the end of a run. look: called before every
    search, to bring new checkpoints from elsewhere. It takes no lock, and writes only into evaluations/. A checkpoint
    that was evaluated with as many games or items before is not evaluated again.
    """
    from palestra.storage.checkpoints import CheckpointError, Checkpoints

    checkpoints, evaluated = Checkpoints(run.folder, keep_last=1, keep_every=None), set[tuple[int, int]]()
    while True:
        look()
        for number in checkpoints.numbers():
            try:  # a number comes again if the run was resumed from an earlier checkpoint
                written = (checkpoints.folder.path / f"{number:08d}" / "manifest.json").lstat().st_mtime_ns
                if (number, written) in evaluated:
                    continue
                evaluated.add((number, written))
                run.load(str(number))
            except (CheckpointError, FileNotFoundError) as error:
                is_there = number in checkpoints.numbers()
                yield number, str(error) if is_there else "it was deleted meanwhile, because the run keeps others"
                continue
            for name in names:
                record = _filed(run, name, num)
                yield number, run.evaluate(name, num)[1] if record is None else record
        if run.is_over:
            return
        time.sleep(LOOK_S)


def _filed(run: "Stored", name: str, num: int | None) -> dict[str, Any] | None:
    """Return the record of an evaluation of the loaded checkpoint that was made before with as many games.

    None: there is none.
    """
    from palestra.recording.results import counted_in
    from palestra.storage.records_file import parse_record

    wanted = [num or run.evaluations.num(name, is_final=True)] * len(run.evaluations.pairings(name, with_scripted=True))
    try:
        record = parse_record(run.results.read(run.file_name(name)))
        played = [pair[counted_in(record)] + pair.get("started_over", 0) for pair in record["pairs"]]
        is_same = run.counters.items() <= record.items() and played == wanted
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None
    return record if is_same else None
