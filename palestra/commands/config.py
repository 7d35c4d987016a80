"""Prints a complete config."""

import sys
from contextlib import redirect_stdout
from typing import Annotated

import typer

from palestra.commands.failures import errors, one_line_errors, one_line_errors_of_reading
from palestra.commands.shell import say


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
    from palestra.run.shipped import shipped_configs

    if not words and (shipped := shipped_configs().get(name)) is not None:
        with one_line_errors_of_reading():
            print(shipped.read_text("utf-8"), end="")  # which is complete, with its comments
        return
    with one_line_errors():
        from palestra.config import checking

        with redirect_stdout(sys.stderr), checking():  # what the user's modules print is no part of the file
            text = _rendered(name, words or [])
        print(text, end="")


def _rendered(name: str, words: list[str]) -> str:
    from palestra.commands.check import dry_run, dry_tournament
    from palestra.commands.starting import starting_config
    from palestra.config import render
    from palestra.kinds.games.tournament import TournamentConfig, read_tournament
    from palestra.run.shipped import shipped_tournaments
    from palestra.training.trainable import apart_from_this_machine

    if name == "sweep":
        from palestra.sweeps.config import SweepConfig
        from palestra.sweeps.plan import starting_sweep

        return render(starting_sweep(words), SweepConfig)
    if (tournament := shipped_tournaments().get(name)) is not None:
        dry_tournament(tournament, words)
        return render(read_tournament(tournament, words), TournamentConfig)
    suggested = starting_config(name, words)
    checked = dry_run(apart_from_this_machine(suggested), ())  # what `check` would refuse is not printed
    if (note := suggested.limit_note()) is not None:
        say(note, errors)
    for line in checked.plan:
        if line.startswith("  of "):  # it says who sees what of the data
            say(line.strip(), errors)
    return render(suggested, type(suggested))
