"""What `palestra evaluate FILE` does: plays a tournament, and shows who won."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from rich.console import Console

from palestra.commands.evaluate import ShownEvaluations
from palestra.commands.shell import say
from palestra.config import ConfigError, load_yaml, reading_own, trusting
from palestra.config.validation import load_stored_config
from palestra.recording.display import make_display
from palestra.recording.display.scores import ratings_table, score_table
from palestra.recording.results import Evaluation
from palestra.runs.kinds import is_tournament
from palestra.runs.shipped_configs import shipped_tournaments
from palestra.runs.tournament import NAME, Tournament, TournamentConfig, read_tournament
from palestra.storage.disk import Folder, plain_path


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
