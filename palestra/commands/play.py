"""Plays one game, or holds one dialogue, in the terminal."""

import sys
from collections.abc import Iterator
from functools import partial
from io import TextIOWrapper
from typing import Annotated, Any

import typer

from palestra.commands.failures import load, one_line_errors
from palestra.commands.shell import Checkpoint, Run, Trust, refuse, say


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

        from palestra.commands import play_board, play_text
        from palestra.runs.stored import config_of, open_to_play
        from palestra.runs.text import TextConfig
        from palestra.training.stored_training import StoredRun

        others = play_board.read_pairing(pairing or [])
        number = secrets.randbelow(10**6) if seed is None else seed
        prompt = partial(say, end="")
        if isinstance(config_of(run, trust), TextConfig):
            refuse({"--board": board}, f"{run} is {TextConfig.in_words}")
            stored: Any = StoredRun.open(run)
            writers = play_text.choose_seats(stored.training, person, against, others)
            load(stored, checkpoint)
            you = None if person is None else (person, play_text.Person(stored.training.game, _typed(), say, prompt))
            if seed is None:
                say(f"for the same question again: --seed {number}")
            play_text.play_dialogue(stored, writers, you, number, say)
            return
        stored = open_to_play(run, trust)
        load(stored, checkpoint)
        names = play_board.choose_seats(stored, person, against, others)
        seats: dict[str, Any] = {role: play_board.seat(stored, name, role) for role, name in names.items()}
        match = play_board.new_match(stored, board, number)
        if person is not None:
            seats[person] = play_board.Person(match, stored, _typed(), say, prompt)
        if seed is None:
            say(f"for the same game again: --seed {number}")
        play_board.play(match, seats, say)


def _typed() -> Iterator[str]:
    """The lines that somebody types; bytes that are no UTF-8 are replaced."""
    if isinstance(sys.stdin, TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")
    return iter(sys.stdin.readline, "")
