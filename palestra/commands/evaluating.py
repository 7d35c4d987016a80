"""Opens and plays the evaluations of a stored run with bars on a display, and whole tournaments, and shows who won."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from palestra.commands.shell import console, refuse, refuse_others, say
from palestra.config import ConfigError, load_yaml, reading_own, trusting
from palestra.config.validation import load_stored_config
from palestra.evaluation.video import require_extra
from palestra.kinds.games.stored import open_to_play
from palestra.kinds.games.tournament import NAME, Tournament, TournamentConfig, read_tournament
from palestra.recording.display import make_display
from palestra.recording.display.display import Display, evaluation_line
from palestra.recording.display.scores import ratings_table, score_table
from palestra.recording.results import Evaluation, Progress, Task, counted_in, ratings_of
from palestra.run.base import ASKED
from palestra.run.checkpoints import CheckpointError, Checkpoints
from palestra.run.fetching import fetch, fetch_new_checkpoints, is_url, name_of
from palestra.run.kinds import is_tournament
from palestra.run.shipped import is_shipped, shipped_tournaments
from palestra.run.stored import Stored
from palestra.storage.disk import Folder, plain_path
from palestra.storage.records_file import parse_record
from palestra.training.stored_training import StoredRun

LOOK_S = 1.0  # between two searches for a new checkpoint
SHOW_INTERVAL_S = 0.25


class ShownEvaluations:
    """Plays evaluations, each with its bar on the display, which must be open.

    run: a stored run that has loaded a checkpoint, or a tournament that has begun. names: of the evaluations. num: of
    games per pairing; None: as at the end of a run.
    """

    def __init__(self, run: Any, names: Sequence[str], num: int | None, display: Display) -> None:
        self.run, self.num, self.display = run, num, display
        self.tasks: dict[str, Task] = {}
        for name in names:
            each = num or run.evaluations.num(name, is_final=True)
            total = each * len(run.evaluations.pairings(name, with_scripted=True))
            self.tasks[name] = Task(name, 0, total, run.evaluations.counted, run.evaluations.most_rounds(name))
        self._began_s = time.monotonic()
        self._shown_at_s = 0.0

    def play(self, name: str) -> tuple[Path, dict[str, Any]]:
        """Play an evaluation as `StoredRun.evaluate` does, while its bar moves."""
        task = self.tasks[name]

        def watch(num_over: int, num_rounds: int) -> None:
            task.move(num_over, num_rounds)
            self._show()

        found: tuple[Path, dict[str, Any]] = self.run.evaluate(name, self.num, watch)
        task.done = task.total
        self._show(at_once=True)
        return found

    def _show(self, at_once: bool = False) -> None:
        now_s = time.monotonic()
        if at_once or now_s - self._shown_at_s > SHOW_INTERVAL_S:
            self._shown_at_s = now_s
            self.display.update(self.progress())

    def progress(self) -> Progress:
        """Return how far the evaluations are, for the display."""
        tasks, elapsed_s = list(self.tasks.values()), time.monotonic() - self._began_s
        share = sum(task.done for task in tasks) / sum(task.total for task in tasks)
        return Progress(
            name=self.run.folder.path.name,
            run_folder=str(self.run.folder.path),
            device=str(self.run.device),
            fraction=share,
            elapsed_s=elapsed_s,
            remaining_s=elapsed_s * (1.0 - share) / share if share else None,
            counters={"opt_steps": self.run.counters["opt_steps"]},
            tasks=tasks,
            phase=lambda: "finished" if share == 1.0 else "evaluating",
        )


# ---- stored runs ------------------------------------------------------------------------------------------------


def names_of_evaluations(stored: Any, chosen: str | None) -> list[str]:
    """Return the names of all evaluations of a run, or the one that was chosen. Raises ConfigError."""
    known = list(stored.evaluations.configs)
    if not known:
        seats = ",".join(f"{role}={name}" for role, name in (stored.config.pairing() or {}).items())
        remedy = f"; --pairing {seats} plays one" if "--pairing" in stored.config.options else ""
        raise ConfigError.at("evaluations", f"expected at least one in the run's config, got []{remedy}")
    if chosen is not None and chosen not in known:
        raise ConfigError.at("--evaluation", f"expected one of {', '.join(known)}, got {chosen!r}")
    return known if chosen is None else [chosen]


def print_asked(stored: Any, games: int | None) -> None:
    """Say what is played where the run's config has no evaluation, but a pairing is asked for."""
    asked = stored.evaluations.configs.get(ASKED["name"])
    if not stored.config.evaluations and asked is not None:
        limits = f"{games or asked.final_num_games} games (--games)"
        if hasattr(asked, "max_rounds"):
            limits += f", each of at most {asked.max_rounds} rounds (evaluations.0.max_rounds=...)"
        say(f"the run has no evaluations: {limits}")


def open_evaluated(run: str, folder: Path | None, changes: Any, trust: bool, of_games: Mapping[str, Any]) -> Any:
    """Open the run that is evaluated: in its folder, in a copy of its mirror, or a shipped one.

    of_games: the options that mean something only to some kinds of run.
    """
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


def print_watched(run: str, stored: Any, evaluation: str | None, games: int | None) -> None:
    """Evaluate the checkpoints of a run as they come, and print a line for each evaluation."""
    names = names_of_evaluations(stored, evaluation)
    print_asked(stored, games)
    if is_shipped(run):
        raise ConfigError.at("--watch", f"expected a run of your own, got {run}, which trains no more")
    look = partial(fetch_new_checkpoints, run, stored.folder) if is_url(run) else lambda: None
    for number, found in watch(stored, names, games, look):
        line = found if isinstance(found, str) else evaluation_line(Evaluation.from_record(found))
        say(f"checkpoint {number:08d}: {line}")
    say(f"{stored.folder.path} is finished")


def print_evaluations(stored: Any, names: Sequence[str], games: int | None, video: bool) -> None:
    """Evaluate the loaded checkpoint, and print the scores; video: film it, too."""
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
        say(f"a film of episodes with returns {', '.join(f'{value:g}' for value in of_episodes)}: {film}")


def watch(
    run: Stored, names: Sequence[str], num: int | None, look: Callable[[], None] = lambda: None
) -> Iterator[tuple[int, dict[str, Any] | str]]:
    """Evaluate all checkpoints of a run, the oldest first, and new ones as they are written, until the run has ended.

    Gives the number of each checkpoint with a record, or with the reason why there is none.

    names: of the evaluations. num: of games per pairing; None: as at the end of a run. look: called before every
    search, to bring new checkpoints from elsewhere. It takes no lock, and writes only into evaluations/. A checkpoint
    that was evaluated with as many games or items before is not evaluated again.
    """
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


def _filed(run: Stored, name: str, num: int | None) -> dict[str, Any] | None:
    """Return the record of an evaluation of the loaded checkpoint that was made before with as many games.

    None: there is none.
    """
    wanted = [num or run.evaluations.num(name, is_final=True)] * len(run.evaluations.pairings(name, with_scripted=True))
    try:
        record = parse_record(run.results.read(run.file_name(name)))
        played = [pair[counted_in(record)] + pair.get("started_over", 0) for pair in record["pairs"]]
        is_same = run.counters.items() <= record.items() and played == wanted
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None
    return record if is_same else None


# ---- tournaments ------------------------------------------------------------------------------------------------


def tournament_file(argument: str) -> Path | None:
    """Return the config of a tournament that the first argument of a command names, a file or a shipped one.

    None: the argument names something else.
    """
    path = Path(argument)
    if path.is_file():
        return path
    return None if path.exists() else shipped_tournaments().get(argument)


def is_tournament_file(path: Path) -> bool:
    """Return whether a file holds the config of a tournament; False for one that cannot be read."""
    with suppress(ConfigError):
        return is_tournament(load_yaml(path))
    return False


def play_tournament(
    file: Path, overrides: Sequence[str], pairings: Sequence[Mapping[str, str]], run: Path | None, console: Console
) -> None:
    """Play the tournament of a file into a folder of its own, and print scores and ratings.

    Raises ConfigError, RunFolderError, EvaluationFailed.
    """
    with reading_own():
        config = read_tournament(file, overrides, pairings)
    _play(Tournament(config), run, file.stem, console)


def is_tournament_folder(path: Path) -> bool:
    """Return whether a folder holds the config of a tournament; False for one that cannot be read."""
    with suppress(OSError):
        return is_tournament_file(plain_path(Folder(path), "config.yml"))
    return False


def resume_tournament(folder: Path, trust: bool, console: Console) -> None:
    """Play a tournament that was stopped, again from its start.

    Another person may have made the folder. Raises ConfigError, RunFolderError, UntrustedError, EvaluationFailed.
    """
    with trusting(trust):
        config = load_stored_config(folder / "config.yml", TournamentConfig)
    _play(Tournament(config), folder, folder.name, console)


def _play(tournament: Tournament, run: Path | None, name: str, console: Console) -> None:
    from palestra.report.page import write_report  # which imports matplotlib; `palestra resume` of a run needs neither

    tournament.begin(run, name)
    with make_display("auto", console) as display:
        _, record = ShownEvaluations(tournament, [NAME], None, display).play(NAME)
    console.print(score_table([Evaluation.from_record(record)], console.width, 1000))
    if ratings := ratings_of(record):
        console.print(ratings_table(ratings))
    num = len(record["pairs"])
    say(f"{num} pairing{'s' * (num != 1)}: {write_report([tournament.folder.path], None)}", console)
