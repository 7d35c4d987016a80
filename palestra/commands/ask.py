"""Asks the players of a run what they would do."""

from typing import Annotated

import typer

from palestra.commands.failures import load, one_line_errors
from palestra.commands.shell import Checkpoint, Run, Trust, mistake, say


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
        from palestra.kinds.games.match import ask_at_observation, ask_on_board
        from palestra.kinds.games.stored import open_to_play

        stored = open_to_play(run, trust)
        load(stored, checkpoint)
        if board is not None and observation is None:
            lines = ask_on_board(stored, board, move or [], role)
        elif observation is not None and board is None and not move:
            lines = ask_at_observation(stored, observation, role)
        else:
            raise mistake("--board", "expected either --board, perhaps with --move, or --observation alone")
        say("\n".join(lines))
