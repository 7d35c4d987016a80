"""The commands for configs: profile, check, config, list."""

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from palestra.commands.failures import errors, one_line_errors
from palestra.commands.shell import File, Overrides, console, say

if TYPE_CHECKING:
    from palestra.commands.check import Checked

commands = typer.Typer()


@commands.command()
def profile(
    file: File,
    overrides: Overrides = None,
    steps: Annotated[int, typer.Option(help="opt steps under the profiler", min=1)] = 200,
    out: Annotated[Path, typer.Option(help="the trace, for chrome://tracing or ui.perfetto.dev")] = Path("trace.json"),
) -> None:
    """Train a short stretch of a config under torch's profiler: where the time goes, by phase and by operator."""
    with one_line_errors():
        from palestra.commands.named_configs import find_config, naming_remedies
        from palestra.commands.profile import profile_config, render_profile

        named = find_config(file, overrides or [])
        if named.note is not None:
            say(named.note)
        try:
            with naming_remedies(named):
                found = profile_config(named.source, named.overrides, steps, out)
        except OSError as error:
            errors.print(f"--out: {out} cannot be written: {error.strerror}")
            raise typer.Exit(2) from None
        if isinstance(found, int):
            raise typer.Exit(128 + found)
        console.print(render_profile(found, num_operators=12))
        say(f"trace: {out}")


@commands.command()
def check(
    file: File,
    overrides: Overrides = None,
    prompts: Annotated[
        bool, typer.Option("--prompts", help="say what each role reads in one dialogue, of players that talk in words")
    ] = False,
) -> None:
    """Check a config: all that is wrong with it, at once; and say what the run would do.

    What only this machine lacks, such as a device, is told and is no error. Nothing is run, and no environment is made;
    classes that the file names are imported, and with them their modules run.
    """
    with one_line_errors():
        from palestra.commands.check import dry_run, dry_tournament
        from palestra.commands.named_configs import find_config, naming_remedies
        from palestra.commands.tournament import is_tournament_file, tournament_file

        tournament = tournament_file(file)
        if tournament is not None and is_tournament_file(tournament):
            _print_checked(file, dry_tournament(tournament, overrides or []))
            return
        named = find_config(file, overrides or [])
        if named.note is not None:
            say(named.note)
        with naming_remedies(named):
            checked = dry_run(named.source, named.overrides, prompts)
        _print_checked(named.title, checked)


def _print_checked(title: str, checked: "Checked") -> None:
    for line in (f"{title}: complete and consistent", *checked.plan):
        say(line)
    if checked.lacks:
        say(f"only this machine lacks, so that train refuses it here: {'; '.join(checked.lacks)}")
    if checked.unchecked:
        say(f"not checked: {'; '.join(checked.unchecked)}")


@commands.command()
def config(
    name: Annotated[
        str, typer.Argument(help="a shipped config, such as ppo-cartpole, an algorithm, such as ppo, fit, or sweep")
    ],
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[GAME] [KEY=VALUE]...",
            help="a game: polyhedra, a Gymnasium environment such as LunarLander-v3, or package.module:Class; or a "
            "protocol and a scenario, such as nip witness, or nip claims of players that write; of fit a model and "
            "data; of a sweep its configs; overrides",
        ),
    ] = None,
) -> None:
    """Print a complete config, each key with its comment.

    It is a shipped one, or one for an algorithm and a game, with networks that fit it, or for a model and its data.
    """
    with one_line_errors():
        from palestra.config import checking

        with redirect_stdout(sys.stderr), checking():  # what the user's modules print is no part of the file
            text = _rendered(name, words or [])
        print(text, end="")


def _rendered(name: str, words: list[str]) -> str:
    from palestra.commands.check import dry_tournament, require_printable
    from palestra.commands.starting import starting_config
    from palestra.config import render
    from palestra.games.dialogue.turns import sights_in_words
    from palestra.runs.shipped_configs import shipped_tournaments
    from palestra.runs.tournament import TournamentConfig, read_tournament

    if name == "sweep":
        from palestra.sweeps.config import SweepConfig
        from palestra.sweeps.starting import starting_sweep

        return render(starting_sweep(words), SweepConfig)
    if (tournament := shipped_tournaments().get(name)) is not None:
        dry_tournament(tournament, words)
        return render(read_tournament(tournament, words), TournamentConfig)
    suggested = starting_config(name, words)
    require_printable(suggested)
    if (note := suggested.limit_note()) is not None:
        say(note, errors)
    for line in sights_in_words(getattr(getattr(suggested, "game", None), "scenario", None)):
        say(line.strip(), errors)
    return render(suggested, type(suggested))


@commands.command(name="list")
def list_parts() -> None:
    """List the parts that a config may name, by kind, one line each."""
    with one_line_errors():
        from palestra.commands.catalogue import catalogue

        for kind, entries in catalogue().items():
            console.print(kind, style="bold")
            width = max(map(len, entries))
            for name, line in entries.items():
                say(f"  {name:{width}}  {' '.join(line.split())}")
