"""Writes a player or a model as files that run without palestra."""

from typing import Annotated

import typer

from palestra.commands.failures import errors, one_line_errors
from palestra.commands.shell import Checkpoint, Run, Trust, console, refuse_others, terminal


def export(
    run: Run,
    player: Annotated[str | None, typer.Option(help="its name; may be left out if only one player learned")] = None,
    checkpoint: Checkpoint = "latest",
    onnx: Annotated[bool, typer.Option("--onnx", help="write an ONNX file, too (extra: onnx)")] = False,
    role: Annotated[str | None, typer.Option(help="in which it observes, if it sits in several")] = None,
    weights: Annotated[
        str | None, typer.Option(help="of a model: latest, or averaged, by learning.ema [latest]")
    ] = None,
    trust: Trust = False,
) -> None:
    """Write a player or a model as files that run without palestra, to RUN/export/NAME-OPT_STEPS/."""
    with one_line_errors():
        from palestra.run.export_files import ExportError
        from palestra.run.kinds import ExportOptions, Kind, kind_of, kinds
        from palestra.run.stored import config_of
        from palestra.storage.disk import RunFolderError
        from palestra.storage.run_folder import RunFolder

        config = config_of(run, trust)
        RunFolder(run).require_plain()  # export/ may be no link
        kind = kind_of(type(config))
        if type(kind) is Kind:
            known = " or ".join(each.config.in_words for each in kinds())
            raise RunFolderError(f"expected {known}, got {run}, {config.in_words}")
        refuse_others({"--player": player, "--onnx": onnx, "--role": role, "--weights": weights}, run, config)
        try:
            lines = kind.export(run, ExportOptions(player, checkpoint, onnx, role, weights, trust), terminal(errors))
        except (ExportError, NotImplementedError, ValueError) as error:
            errors.print(str(error))
            raise typer.Exit(2) from None
        for line in lines:
            console.print(line, soft_wrap=True, markup=False, highlight=False)
