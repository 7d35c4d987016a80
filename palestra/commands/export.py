"""Writes a player or a model as files that run without palestra."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from palestra.commands.failures import errors, one_line_errors
from palestra.commands.shell import Checkpoint, Run, Trust, console, refuse_others, say


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
        from palestra.commands.export_files import ExportError
        from palestra.runs.base import BaseRunConfig
        from palestra.runs.config import RunConfig
        from palestra.runs.fit import FitConfig
        from palestra.runs.stored import config_of
        from palestra.runs.text import TextConfig
        from palestra.storage.disk import RunFolderError
        from palestra.storage.run_folder import RunFolder

        config = config_of(run, trust)
        RunFolder(run).require_plain()  # export/ may be no link
        ways: dict[type[BaseRunConfig], Callable[[], list[str]]] = {
            RunConfig: lambda: _export_player(run, player, checkpoint, onnx, role, trust),
            FitConfig: lambda: _export_model(run, checkpoint, weights or "latest", onnx, trust),
            TextConfig: lambda: _export_text(run, player, checkpoint, trust),
        }
        if (way := next((way for kind, way in ways.items() if isinstance(config, kind)), None)) is None:
            known = " or ".join(kind.in_words for kind in ways)
            raise RunFolderError(f"expected {known}, got {run}, {config.in_words}")
        refuse_others({"--player": player, "--onnx": onnx, "--role": role, "--weights": weights}, run, config)
        try:
            lines = way()
        except (ExportError, NotImplementedError, ValueError) as error:
            errors.print(str(error))
            raise typer.Exit(2) from None
        for line in lines:
            console.print(line, soft_wrap=True, markup=False, highlight=False)


def _export_player(
    run: Path, player: str | None, checkpoint: str, onnx: bool, role: str | None, trust: bool
) -> list[str]:
    """Export a player; returns lines that say what was written, and how it is used."""
    import palestra
    from palestra.commands.export_player import export_player, loading_lines

    loaded = palestra.load_player(run, player, checkpoint, trust)
    folder = run / "export" / "-".join([loaded.name, *([role] if role else []), f"{loaded.opt_steps}"])
    checked = export_player(loaded, folder, onnx, say, role)
    told = [f"{folder / name}: acts as the player in {decisions} decisions" for name, decisions in checked.items()]
    return told + [line for name in checked for line in (f"\nto use {name}:", *loading_lines(folder, name))]


def _export_text(run: Path, player: str | None, checkpoint: str, trust: bool) -> list[str]:
    """Export the model of a text player; returns lines that say what was written, and how it is used."""
    from palestra.commands.export_text import export_text_player, load_text_player, loading_lines

    loaded = load_text_player(run, player, checkpoint, trust)
    folder = run / "export" / f"{loaded.name}-{loaded.opt_steps}"
    num = export_text_player(loaded, folder)
    told = f"{folder}: gives {num} tokens of answers the probabilities that the player gives them"
    return [told, "\nto use it:", *loading_lines(folder)]


def _export_model(run: Path, checkpoint: str, weights: str, onnx: bool, trust: bool) -> list[str]:
    """Export a model; returns lines that say what was written, and how it is used."""
    import torch

    from palestra.commands.export_model import export_model, loading_lines
    from palestra.runs.models import load_model

    loaded = load_model(run, checkpoint, weights, (), trust, torch.device("cpu"))  # type: ignore[arg-type]
    for line in loaded.warnings:
        errors.print(line)
    name = "model" if weights == "latest" else "model-averaged"
    folder = run / "export" / f"{name}-{loaded.opt_steps}"
    checked = export_model(loaded, folder, onnx, say)
    told = [f"{folder / file}: gives the model's outputs for {num} items" for file, num in checked.items()]
    return told + [line for file in checked for line in (f"\nto use {file}:", *loading_lines(folder, file))]
