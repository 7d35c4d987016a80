"""palestra: one reinforcement-learning trainer for players of every kind."""

from importlib.metadata import version
from pathlib import Path

from palestra.algorithms import DQNTrainer, RunConfig, read_config
from palestra.callbacks import Callback
from palestra.config import ConfigError
from palestra.player import Player
from palestra.players import seating
from palestra.trainer import Trainer, TrainingFailed

__version__ = version("palestra")
__all__ = [
    "Callback",
    "ConfigError",
    "DQNTrainer",
    "Player",
    "RunConfig",
    "Trainer",
    "TrainingFailed",
    "load_config",
    "load_player",
]


def load_config(path: str | Path, overrides: tuple[str, ...] = ()) -> RunConfig:
    """The config of a run from a YAML file, with overrides like "players.host.algorithm.gamma=0.98". Raises
    ConfigError."""
    return read_config(Path(path), overrides)


def load_player(run: str | Path, player: str | None = None, checkpoint: str = "latest") -> Player:
    """A player as a run left it, held fixed: `load_player(run).policy(explore=False).act(...)`.

    player: its name; may be left out where only one learned. checkpoint: latest, best, or a number.
    """
    return seating.load_player(run, player, checkpoint, RunConfig)
