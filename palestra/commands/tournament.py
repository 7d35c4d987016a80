"""Plays evaluations of a stored run with bars on a display, and whole tournaments, and shows who won."""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import torch
from rich.console import Console

from palestra.commands.shell import say
from palestra.config import ConfigError, load_yaml, reading_own, trusting
from palestra.config.validation import load_stored_config
from palestra.evaluation.evaluator import Watch
from palestra.recording.display import make_display
from palestra.recording.display.display import Display
from palestra.recording.display.scores import ratings_table, score_table
from palestra.recording.results import Evaluation, Progress, Task
from palestra.runs.evaluating import AnyEvaluations
from palestra.runs.kinds import is_tournament
from palestra.runs.shipped import shipped_tournaments
from palestra.runs.tournament import NAME, Tournament, TournamentConfig, read_tournament
from palestra.storage.disk import Folder, plain_path
from palestra.storage.run_folder import RunFolder

SHOW_INTERVAL_S = 0.25


class Evaluable(Protocol):
    """A stored run that has loaded a checkpoint, or a tournament that has begun."""

    folder: RunFolder
    device: torch.device
    counters: dict[str, int]

    @property
    def evaluations(self) -> AnyEvaluations: ...

    def evaluate(self, name: str, num: int | None, watch: Watch) -> tuple[Path, dict[str, Any]]: ...


class ShownEvaluations:
    """Plays evaluations, each with its bar on the display, which must be open.

    names: of the evaluations. num: of games per pairing; None: as at the end of a run.
    """

    def __init__(self, run: Evaluable, names: Sequence[str], num: int | None, display: Display) -> None:
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

        found = self.run.evaluate(name, self.num, watch)
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
    if record["ratings"] is not None:
        console.print(ratings_table(record["ratings"]))
    path = tournament.folder.path
    num = len(record["pairs"])
    say(f"{num} pairing{'s' * (num != 1)}: {write_report([path], None)}", console)
