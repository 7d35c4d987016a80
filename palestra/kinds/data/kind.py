"""What commands, sweeps and reports ask of runs in which a model learns from data."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from palestra.kinds.data.config import FitConfig
from palestra.run.base import BaseRunConfig
from palestra.run.kinds import ExportOptions, Kind, Terminal


class Data(Kind):
    config = FitConfig
    parts = (
        ("trainers", "palestra.kinds.data.config", "AnyFitTrainerConfig"),
        ("models (fit)", "palestra.kinds.data.config", "AnyModelConfig"),
        ("data (fit)", "palestra.kinds.data.config", "AnyDataConfig"),
        ("orders (fit)", "palestra.data.order", "AnyOrderConfig"),
    )

    def trainers(self) -> Mapping[str, tuple[type[Any], ...]]:
        from palestra.kinds.data.trainer import FitTrainer

        return {"fit": (FitTrainer,)}

    def first_words(self) -> Sequence[str]:
        return ("fit",)

    def starting_config(self, name: str, words: Sequence[str], shipped: Mapping[str, Path]) -> BaseRunConfig:
        from palestra.kinds.data.starting import named_fit

        return named_fit(words)

    def export(self, run: Path, options: ExportOptions, person: Terminal) -> list[str]:
        import torch

        from palestra.kinds.data.export import export_model, loading_lines
        from palestra.kinds.data.models import load_model

        weights: Any = options.weights or "latest"
        loaded = load_model(run, options.checkpoint, weights, (), options.trust, torch.device("cpu"))
        for line in loaded.warnings:
            person.warn(line)
        name = "model" if weights == "latest" else "model-averaged"
        folder = run / "export" / f"{name}-{loaded.opt_steps}"
        checked = export_model(loaded, folder, options.onnx, person.say)
        told = [f"{folder / file}: gives the model's outputs for {num} items" for file, num in checked.items()]
        return told + [line for file in checked for line in (f"\nto use {file}:", *loading_lines(folder, file))]

    def sections(self, groups: Sequence[Any], figures: Any) -> list[Any]:
        from palestra.kinds.data.report import judged_items_section

        return judged_items_section(groups, figures)
