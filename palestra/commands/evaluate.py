"""Evaluates what checkpoints of runs hold, or plays a tournament."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from palestra.commands.failures import load, one_line_errors
from palestra.commands.shell import Trust, console, read_pairing, refuse, say, with_runs_of_sweeps


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
        from palestra.commands import evaluating
        from palestra.run.changes import Changes
        from palestra.run.checkpoints import CheckpointError
        from palestra.run.run import default_folder
        from palestra.run.shipped import find_run, is_shipped

        changes = Changes(overrides or [], [read_pairing([text]) for text in pairing or []])
        of_games = {"--pairing": pairing and pairing[0], "--games": games, "--video": video, "--rollouts": rollouts}
        opened = partial(evaluating.open_evaluated, changes=changes, trust=trust, of_games=of_games)
        if (inside := with_runs_of_sweeps([run])) != [run]:
            refuse({"--watch": watch, "--run": folder}, f"{run} has several runs")
            for each in inside:
                console.print(each, style="bold", soft_wrap=True)
                stored = opened(each, None)
                try:
                    load(stored, checkpoint or "latest")
                except CheckpointError as error:  # as of a trial that failed early
                    say(f"not evaluated: {error}")
                    continue
                evaluating.print_evaluations(stored, evaluating.names_of_evaluations(stored, evaluation), games, video)
        elif (file := evaluating.tournament_file(run)) is not None:
            refused = {"--checkpoint": checkpoint, "--evaluation": evaluation, "--video": video, "--watch": watch}
            refuse(refused | {"--rollouts": rollouts}, f"{run} is a tournament")
            count = [] if games is None else [f"num_games={games}"]
            evaluating.play_tournament(file, [*changes.overrides, *count], changes.pairings, folder, console)
        elif watch:
            refuse({"--checkpoint": checkpoint, "--video": video}, "--watch evaluates every checkpoint as it comes")
            evaluating.print_watched(run, opened(run, folder), evaluation, games)
        else:
            stored = opened(run, folder)
            names = evaluating.names_of_evaluations(stored, evaluation)
            evaluating.print_asked(stored, games)
            load(stored, checkpoint or "latest")
            if is_shipped(run):
                stored.file_into(default_folder(folder, f"palestra-{find_run(run).folder.name}"))
            evaluating.print_evaluations(stored, names, games, video)
