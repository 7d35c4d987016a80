"""Plays one game, or holds one dialogue, in the terminal."""

from typing import Annotated

import typer

from palestra.commands.failures import errors, one_line_errors
from palestra.commands.shell import Checkpoint, Run, Trust, read_pairing, refuse_others, terminal


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

        from palestra.run.kinds import Kind, PlayOptions, kind_named, kind_of
        from palestra.run.stored import config_of
        from palestra.storage.disk import RunFolderError

        others = read_pairing(pairing or [])
        number = secrets.randbelow(10**6) if seed is None else seed
        config = config_of(run, trust)
        kind = kind_of(type(config))
        if type(kind).play is Kind.play:
            expected = kind_named("in_turn").config.in_words
            raise RunFolderError(f"expected {expected}, got {run}, {config.in_words}")
        refuse_others({"--board": board}, run, config)
        options = PlayOptions(person, against, others, board, number, seed is None, checkpoint, trust)
        kind.play(run, options, terminal(errors))
