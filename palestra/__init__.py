"""palestra: one reinforcement-learning trainer for players of every kind."""

import os
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from palestra.starting import uncollected

if TYPE_CHECKING:
    from palestra.algorithms import DQNTrainer, PPOTrainer, RunConfig, SACTrainer, TD3Trainer
    from palestra.callbacks import Callback
    from palestra.config import ConfigError, UntrustedError
    from palestra.evaluation.stored import StoredRun
    from palestra.player import Player
    from palestra.trainer import Trainer, TrainingFailed

    __version__: str

__all__ = [
    "Callback",
    "ConfigError",
    "DQNTrainer",
    "PPOTrainer",
    "Player",
    "RunConfig",
    "SACTrainer",
    "StoredRun",
    "TD3Trainer",
    "Trainer",
    "TrainingFailed",
    "UntrustedError",
    "load_config",
    "load_player",
]


# numba reads .numba_config.yaml in the working directory, which may be a stranger's: a cache there would be unpickled,
# and these classes and this library loaded. What stands in the environment goes before it.
for _name in ("NUMBA_CACHE_DIR", "NUMBA_CACHE_LOCATOR_CLASSES", "NUMBA_CUDA_DRIVER"):
    os.environ.setdefault(_name, "")

HOMES = ("palestra.trainer", "palestra.config", "palestra.player", "palestra.evaluation.stored")


def load_config(path: str | Path, overrides: tuple[str, ...] = ()) -> "RunConfig":
    """The config of a run from a YAML file, with overrides like "players.host.algorithm.gamma=0.98". Imports the
    classes that the file names. Raises ConfigError."""
    from palestra.algorithms import read_config

    return read_config(Path(path), overrides)


def load_player(
    run: str | Path, player: str | None = None, checkpoint: str = "latest", trust: bool = False
) -> "Player":
    """A player as a run left it, held fixed: `load_player(run).policy(explore=False).act(...)`.

    player: its name; may be left out where only one learned. checkpoint: latest, best, or a number. trust: whether the
    modules that the run names are trusted from now on. Raises UntrustedError for those that are not.
    """
    from palestra.algorithms import RunConfig
    from palestra.config import trusting
    from palestra.players import seating

    with trusting(trust):
        return seating.load_player(run, player, checkpoint, RunConfig)


def __getattr__(name: str) -> Any:
    """The rest on first use: importing torch costs seconds, which `palestra --help` need not wait for."""
    if name == "__version__":
        return import_module("importlib.metadata").version("palestra")
    with uncollected():
        algorithms = import_module("palestra.algorithms")
    if name == "games":
        return import_module("palestra.games")
    if name in __all__:
        homes = (algorithms, *map(import_module, HOMES))
        return next(getattr(home, name) for home in homes if hasattr(home, name))
    raise AttributeError(f"module 'palestra' has no attribute {name!r}")
