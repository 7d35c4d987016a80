"""Records play, and shows what recorded play holds."""

from pathlib import Path
from typing import Annotated

import typer

from palestra.commands.failures import load, one_line_errors
from palestra.commands.shell import Checkpoint, Trust, mistake, read_pairing, say


def collect(
    run: Annotated[str, typer.Argument(metavar="RUN|URL", help="the folder of a run, a mirror, or palestra:polyhedra")],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="the .npz file to write")],
    rows: Annotated[
        int, typer.Option(help="decisions, and those after them up to the end of the episode", min=1)
    ] = 10_000,
    checkpoint: Checkpoint = "latest",
    pairing: Annotated[
        list[str] | None,
        typer.Option(help="who plays, in place of the run's players: host=zeillinger,agent=agent; may be repeated"),
    ] = None,
    role: Annotated[
        str | None, typer.Option(help="the role whose decisions are kept [the game's, if it has one]")
    ] = None,
    explore: Annotated[bool, typer.Option("--explore", help="players that learn explore, as in training")] = False,
    seed: Annotated[int | None, typer.Option(help="determines the play [the run's]", min=0)] = None,
    trust: Trust = False,
) -> None:
    """Let the players of a checkpoint play, and write what a role decided, and what came of it, to a file.

    Observations and rewards are those of the game, before they are normalised and clipped.
    """
    with one_line_errors():
        from palestra.commands.evaluating import open_evaluated
        from palestra.kinds.games.collecting import collect_play, write_columns
        from palestra.kinds.games.config import RunConfig
        from palestra.run.changes import Changes
        from palestra.run.kinds import require_kind

        if file.suffix != ".npz" or not file.absolute().parent.is_dir():
            raise mistake("FILE", f"expected a file that ends in .npz, in a folder that exists, got {file}")
        seats = read_pairing(pairing or [])
        stored = open_evaluated(run, None, Changes((), ()), trust, {"--rollouts": False})
        require_kind(stored.config, RunConfig, stored.folder.path)
        stored.explores = explore
        load(stored, checkpoint)
        if (note := stored.config.limit_note()) is not None:
            say(note)
        columns = collect_play(stored, seats, role, rows, seed)
        write_columns(file, columns)
        num, num_episodes = len(columns["episode"]), int(columns["episode"][-1]) + 1
        say(f"{num:,} rows of {num_episodes:,} episodes at opt step {stored.counters['opt_steps']}: {file}")


def show(
    file: Annotated[
        str, typer.Argument(help="recorded play: a .npz, .parquet, .csv or .jsonl file, minari:ID, palestra:NAME")
    ],
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="columns, as replay_buffer.columns.reward=NAME")
    ] = None,
) -> None:
    """Show what recorded play holds: rows, episodes, lengths, returns, rows left out, columns, SHA-256."""
    with one_line_errors():
        from palestra.kinds.games.collecting import describe_play

        say("\n".join(describe_play(file, words or [])))
