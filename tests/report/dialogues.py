"""Small runs of dialogues, for their reports."""

from collections.abc import Sequence
from pathlib import Path

import palestra
from palestra.commands.starting import starting_config

FEW = [
    *("num_worlds=8", "stop={after: 12, unit: epochs}", "execution.num_threads=1", "output.display=quiet"),
    *("evaluations.0.num_games=40", "evaluations.0.final_num_games=60", "output.recorders=[]"),
    *("evaluations.0.interval={every: 3, unit: epochs}", "output.record={every: 2, unit: epochs}"),
    "game.scenario.num_bits=4",
]


def train_dialogue(run: Path, protocol: str, overrides: Sequence[str] = ()) -> Path:
    """A run by PPO with the scenario `witness`, trained for 12 epochs."""
    config = starting_config("ppo", [protocol, "witness", *FEW, *overrides])
    quick = [f"players.{name}.algorithm.num_passes=1" for name in config.players]
    palestra.make_trainer(config, run=run, overrides=quick).fit()
    return run
