"""What commands, sweeps and reports ask of runs in which players learn in games."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from palestra.kinds.games.config import RunConfig
from palestra.run.base import BaseRunConfig
from palestra.run.kinds import ExportOptions, Kind, PlayOptions, Terminal


class Games(Kind):
    config = RunConfig
    parts = (
        ("games", "palestra.games", "AnyGameConfig"),
        ("algorithms", "palestra.kinds.games.config", "AnyAlgorithm"),
        ("trainers", "palestra.kinds.games.config", "AnyTrainerConfig"),
        ("losses (on_policy)", "palestra.algorithms.on_policy", "AnyOnPolicyLoss"),
        ("losses (off_policy)", "palestra.algorithms.off_policy", "AnyOffPolicyLoss"),
        ("estimators (on_policy)", "palestra.algorithms.parts.estimators", "AnyEstimatorConfig"),
        ("nets", "palestra.nets", "AnyNetConfig"),
        ("players", "palestra.players", "SCRIPTED"),
        ("protocols (dialogue)", "palestra.games.dialogue.protocols", "AnyProtocolConfig"),
        ("scenarios (dialogue)", "palestra.games.dialogue.game", "AnyScenarioConfig"),
        ("schedules", "palestra.schedules", "ScheduleConfig"),
        ("rewards (polyhedra)", "palestra.games.polyhedra.rewards", "RewardConfig"),
        ("optimizers", "palestra.optimizers", "OptimizerConfig"),
        ("values (dqn)", "palestra.algorithms.parts.return_distributions", "ValueConfig"),
        ("transitions (dqn)", "palestra.rollouts.n_step", "AnyTransitionsConfig"),
        ("exploration (dqn)", "palestra.algorithms.parts.exploration", "ExplorationConfig"),
        ("evaluations (played_by)", "palestra.evaluation.config", "AnyPlayedByConfig"),
        ("callbacks", "palestra.callbacks", "AnyCallbackConfig"),
        ("recorders", "palestra.recording", "RecorderConfig"),
    )

    def trainers(self) -> Mapping[str, tuple[type[Any], ...]]:
        from palestra.kinds.games import trainer as of
        from palestra.kinds.games.together import Together

        stock = (of.Trainer, of.DQNTrainer, of.PPOTrainer, of.SACTrainer, of.TD3Trainer, of.LossTrainer)
        return {"in_turn": stock, "together": (Together,)}

    def first_words(self) -> Sequence[str]:
        from palestra.kinds.games.starting import known_algorithms, known_losses

        return [*known_algorithms(), *known_losses()]

    def begins(self, own: Any) -> bool:
        return True

    def starting_config(self, name: str, words: Sequence[str], shipped: Mapping[str, Path]) -> BaseRunConfig:
        from palestra.kinds.games.starting import named_game

        return named_game(name, words, shipped)

    def following(self, data: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
        from palestra.kinds.games.starting import following

        return following(data, overrides)

    def export(self, run: Path, options: ExportOptions, person: Terminal) -> list[str]:
        from palestra.kinds.games.export import export_player, loading_lines
        from palestra.kinds.games.stored import load_player
        from palestra.storage.stored_files import quoted_name

        loaded = load_player(run, options.player, options.checkpoint, options.trust)
        parts = (loaded.name, options.role, f"{loaded.opt_steps}")
        folder = run / "export" / quoted_name("-".join(filter(None, parts)))
        checked = export_player(loaded, folder, options.onnx, person.say, options.role)
        told = [f"{folder / name}: acts as the player in {decisions} decisions" for name, decisions in checked.items()]
        return told + [line for name in checked for line in (f"\nto use {name}:", *loading_lines(folder, name))]

    def play(self, run: Path, options: PlayOptions, person: Terminal) -> None:
        from palestra.kinds.games import play
        from palestra.kinds.games.stored import open_to_play

        stored, you, seed = open_to_play(run, options.trust), options.person, options.seed
        stored.load(options.checkpoint)
        for line in stored.warnings:
            person.warn(line)
        names = play.choose_seats(stored, you, options.against, options.pairing)
        seats: dict[str, Any] = {role: play.seat(stored, name, role) for role, name in names.items()}
        match = play.new_match(stored, options.board, seed)
        if you is not None:
            seats[you] = play.Person(match, stored, person.lines, person.say, person.ask)
        if options.is_drawn:
            person.say(f"for the same game again: --seed {seed}")
        play.play(match, seats, person.say)

    def sections(self, groups: Sequence[Any], figures: Any) -> list[Any]:
        from palestra.kinds.games.report import data_section, meetings_section, samples_section

        sections = [data_section(groups), meetings_section(groups, figures), samples_section(groups, figures)]
        return [section for found in sections for section in found]
