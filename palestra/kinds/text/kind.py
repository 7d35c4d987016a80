"""What commands, sweeps and reports ask of runs in which players talk in words."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from palestra.kinds.text.config import TextConfig
from palestra.run.base import BaseRunConfig
from palestra.run.kinds import ExportOptions, Kind, PlayOptions, Terminal


class Text(Kind):
    config = TextConfig
    parts = (
        ("trainers", "palestra.kinds.text.config", "AnyTextTrainerConfig"),
        ("algorithms (text)", "palestra.text.algorithms", "AnyTextAlgorithm"),
        ("models (text)", "palestra.text.players", "AnyTextModelConfig"),
        ("losses (text)", "palestra.text.models.losses", "AnyTextLoss"),
        ("players (text)", "palestra.text.scripts", "SCRIPTS"),
        ("scenarios (text_dialogue)", "palestra.text.game", "AnyTextScenarioConfig"),
        ("prompts (text_dialogue)", "palestra.text.templates", "AnyPromptsConfig"),
        ("analyses (text)", "palestra.text.analyses", "AnyAnalysisConfig"),
    )

    def trainers(self) -> Mapping[str, tuple[type[Any], ...]]:
        from palestra.kinds.text.trainer import TextTrainer

        return {"text": (TextTrainer,)}

    def first_words(self) -> Sequence[str]:
        from palestra.kinds.text.starting import text_algorithms

        return text_algorithms()

    def begins(self, own: Any) -> bool:
        from palestra.text.algorithms.algorithm import TextAlgorithm

        return isinstance(own, type) and issubclass(own, TextAlgorithm)

    def starting_config(self, name: str, words: Sequence[str], shipped: Mapping[str, Path]) -> BaseRunConfig:
        from palestra.kinds.text.starting import named_text

        return named_text(name, words, shipped)

    def export(self, run: Path, options: ExportOptions, person: Terminal) -> list[str]:
        from palestra.kinds.text.export import export_text_player, load_text_player, loading_lines
        from palestra.storage.stored_files import quoted_name

        loaded = load_text_player(run, options.player, options.checkpoint, options.trust)
        folder = run / "export" / quoted_name(f"{loaded.name}-{loaded.opt_steps}")
        num = export_text_player(loaded, folder)
        told = f"{folder}: gives {num} tokens of answers the probabilities that the player gives them"
        return [told, "\nto use it:", *loading_lines(folder)]

    def play(self, run: Path, options: PlayOptions, person: Terminal) -> None:
        from palestra.kinds.text import play
        from palestra.training.stored_training import StoredRun

        stored, you, seed = StoredRun.open(run, options.trust), options.person, options.seed
        writers = play.choose_seats(stored.training, you, options.against, options.pairing)
        stored.load(options.checkpoint)
        for line in stored.warnings:
            person.warn(line)
        sitter = None if you is None else (you, play.Person(stored.training.game, person.lines, person.say, person.ask))
        if options.is_drawn:
            person.say(f"for the same question again: --seed {seed}")
        play.play_dialogue(stored, writers, sitter, seed, person.say)

    def sections(self, groups: Sequence[Any], figures: Any) -> list[Any]:
        from palestra.kinds.text.report import analyses_section, dialogues_section, servers_section

        return [*dialogues_section(groups, figures), *analyses_section(groups, figures), *servers_section(groups)]
