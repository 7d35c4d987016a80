"""The commands that judge a run, and in which its players act: evaluate, analyse, ask, play."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any

import typer

from palestra.commands.failures import errors, one_line_errors
from palestra.commands.shell import Checkpoint, Run, Trust, console, refuse, refuse_others, say, with_runs_of_sweeps

commands = typer.Typer()


@commands.command()
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
        from palestra.commands.play import read_pairing
        from palestra.commands.tournament import play_tournament, tournament_file
        from palestra.runs.changed_evaluations import Changes

        changes = Changes(overrides or [], [read_pairing([text]) for text in pairing or []])
        of_games = {"--pairing": pairing and pairing[0], "--games": games, "--video": video, "--rollouts": rollouts}
        opened = partial(_open, changes=changes, trust=trust, of_games=of_games)
        if (inside := with_runs_of_sweeps([run])) != [run]:
            refuse({"--watch": watch, "--run": folder}, f"{run} has several runs")
            _evaluate_several(inside, opened, checkpoint, evaluation, games, video)
        elif (file := tournament_file(run)) is not None:
            refused = {"--checkpoint": checkpoint, "--evaluation": evaluation, "--video": video, "--watch": watch}
            refuse(refused | {"--rollouts": rollouts}, f"{run} is a tournament")
            count = [] if games is None else [f"num_games={games}"]
            play_tournament(file, [*changes.overrides, *count], changes.pairings, folder, console)
        elif watch:
            refuse({"--checkpoint": checkpoint, "--video": video}, "--watch evaluates every checkpoint as it comes")
            _watch(run, opened(run, folder), evaluation, games)
        else:
            _evaluate_run(run, opened(run, folder), folder, checkpoint, evaluation, games, video)


def _load(stored: Any, checkpoint: str) -> None:
    """Load a checkpoint, and say which damaged ones were skipped."""
    stored.load(checkpoint)
    for line in stored.warnings:
        errors.print(line)


def _evaluate_several(
    runs: Sequence[str],
    opened: Callable[[str, None], Any],
    checkpoint: str | None,
    evaluation: str | None,
    games: int | None,
    video: bool,
) -> None:
    """Evaluate the runs of a sweep; one without the checkpoint, as of a trial that failed early, is named."""
    from palestra.storage.checkpoints import CheckpointError

    for run in runs:
        console.print(run, style="bold", soft_wrap=True)
        stored = opened(run, None)
        try:
            _load(stored, checkpoint or "latest")
        except CheckpointError as error:
            say(f"not evaluated: {error}")
            continue
        _evaluate(stored, _names_of_evaluations(stored, evaluation), games, video)


def _evaluate_run(
    run: str,
    stored: Any,
    folder: Path | None,
    checkpoint: str | None,
    evaluation: str | None,
    games: int | None,
    video: bool,
) -> None:
    from palestra.runs.run import default_folder
    from palestra.runs.shipped_runs import find_run, is_shipped

    names = _names_of_evaluations(stored, evaluation)
    _print_asked(stored, games)
    _load(stored, checkpoint or "latest")
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
    from palestra.runs.shipped_runs import is_shipped
    from palestra.runs.stored import open_to_play
    from palestra.storage.fetching import fetch, is_url, name_of
    from palestra.training.stored_training import open_stored

    if is_shipped(run):
        stored: Any = open_to_play(run, trust)
    elif is_url(run):
        copy, damaged = fetch(run, folder or Path("runs") / f"{name_of(run)}-copy", with_rows=False)
        for line in damaged:
            say(line)
        stored = open_stored(copy.path, trust)
    else:
        refuse({"--run": folder}, f"the results of {run} go into its own folder")
        stored = open_stored(run, trust)
    refuse_others(of_games, run, stored.config)
    stored.with_rollouts = bool(of_games["--rollouts"])
    if changes.overrides or changes.pairings:
        stored.change_evaluations(changes)
    return stored


def _watch(run: str, stored: Any, evaluation: str | None, games: int | None) -> None:
    from palestra.commands.watch import watch
    from palestra.config import ConfigError
    from palestra.recording.display.plain import evaluation_line
    from palestra.recording.results import Evaluation
    from palestra.runs.shipped_runs import is_shipped
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
    from palestra.commands.evaluate import ShownEvaluations
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


@commands.command()
def analyse(
    run: Run,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="reward, keeps_to_role, follows_up, quotes_what_is_there, or a class of your own as "
            "package.module:Class; "
            "without a name the means of stored analyses are shown",
        ),
    ] = None,
    keys: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE", help="keys of the analysis, such as model.name=folder model.path=models/judge"
        ),
    ] = None,
    of: Annotated[
        list[str] | None, typer.Option(help="training, or the name of an evaluation; may be repeated [all]")
    ] = None,
    epochs: Annotated[str | None, typer.Option(help="of these epochs alone: 0..9, or 0,5,9 [all]")] = None,
    anew: Annotated[
        bool, typer.Option("--anew", help="forget what was judged before, as with other keys or another model")
    ] = False,
    show: Annotated[
        int | None, typer.Option(min=1, help="list so many decisions with the largest and the smallest values instead")
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="list these alone: role=verifier, words=reject, label=1; may be repeated")
    ] = None,
    trust: Trust = False,
) -> None:
    """Let a model, or a rule, judge the stored dialogues of a run of text; results go to RUN/analyses/.

    What is judged already is not judged again. The run may train meanwhile.
    """
    with one_line_errors():
        from palestra.commands.analyse import Wanted, listed, open_run, read_analysis, shown
        from palestra.commands.analyse import analyse as judge

        folder, config = open_run(run, trust)
        wanted = Wanted.read(of or [], epochs)
        if name is not None:
            judge(folder, config, read_analysis(name, keys or []), wanted, anew, say)
        found = shown(folder, name) if name is None or not show else listed(folder, name, wanted, show, only or [])
        for each in found:
            console.print(each)
        if not found:
            say(f"{run} has no analyses yet")


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
        from palestra.config import ConfigError
        from palestra.runs.stored import open_to_play

        stored = open_to_play(run, trust)
        _load(stored, checkpoint)
        if board is not None and observation is None:
            lines = ask_on_board(stored, board, move or [], role)
        elif observation is not None and board is None and not move:
            lines = ask_at_observation(stored, observation, role)
        else:
            raise ConfigError.at("--board", "expected either --board, perhaps with --move, or --observation alone")
        say("\n".join(lines))


@commands.command()
def play(
    run: Run,
    person: Annotated[
        str | None, typer.Option("--as", "--role", help="the role in which you sit [none: you watch]")
    ] = None,
    against: Annotated[
        str | None, typer.Option(help="who sits in the other roles: a player of the run, or a scripted one")
    ] = None,
    pairing: Annotated[
        list[str] | None, typer.Option(help="the same by role: host=zeillinger,agent=agent; may be repeated")
    ] = None,
    board: Annotated[str | None, typer.Option(help="the first board, as in ask [drawn by the seed]")] = None,
    seed: Annotated[
        int | None, typer.Option(help="of the board or question, and of players that draw [another each time]")
    ] = None,
    checkpoint: Checkpoint = "latest",
    trust: Trust = False,
) -> None:
    """Play one game in the terminal against the players of a run, or watch them play.

    In a run of text: one dialogue on a held-out question.
    """
    with one_line_errors():
        import secrets

        from palestra.commands.play import read_pairing
        from palestra.runs.stored import config_of
        from palestra.runs.text import TextConfig

        others = read_pairing(pairing or [])
        number = secrets.randbelow(10**6) if seed is None else seed
        if isinstance(config_of(run, trust), TextConfig):
            refuse({"--board": board}, f"{run} is {TextConfig.in_words}")
            _play_dialogue(run, checkpoint, person, against, others, number, is_drawn=seed is None)
        else:
            _play_game(run, checkpoint, person, against, others, board, number, trust, is_drawn=seed is None)


def _play_game(
    run: Path,
    checkpoint: str,
    person: str | None,
    against: str | None,
    others: Mapping[str, str],
    board: str | None,
    seed: int,
    trust: bool,
    is_drawn: bool,
) -> None:
    from palestra.commands.play import Person, choose_seats, new_match, play, seat
    from palestra.runs.stored import open_to_play

    stored = open_to_play(run, trust)
    _load(stored, checkpoint)
    names = choose_seats(stored, person, against, others)
    seats: dict[str, Any] = {role: seat(stored, name, role) for role, name in names.items()}
    match = new_match(stored, board, seed)
    if person is not None:
        seats[person] = Person(match, stored, _typed(), say, partial(say, end=""))
    if is_drawn:
        say(f"for the same game again: --seed {seed}")
    play(match, seats, say)


def _play_dialogue(
    run: Path,
    checkpoint: str,
    person: str | None,
    against: str | None,
    others: Mapping[str, str],
    seed: int,
    is_drawn: bool,
) -> None:
    from palestra.commands.play_text import Person, choose_seats, play_dialogue
    from palestra.training.stored_training import open_stored

    stored: Any = open_stored(run)
    seats = choose_seats(stored.training, person, against, others)
    _load(stored, checkpoint)
    you = None if person is None else (person, Person(stored.training.game, _typed(), say, partial(say, end="")))
    if is_drawn:
        say(f"for the same question again: --seed {seed}")
    play_dialogue(stored, seats, you, seed, say)


def _typed() -> Iterator[str]:
    """The lines that somebody types; bytes that are no UTF-8 are replaced."""
    import sys

    if isinstance(sys.stdin, TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")
    return iter(sys.stdin.readline, "")
