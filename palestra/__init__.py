"""palestra: one reinforcement-learning trainer for players of every kind."""

from __future__ import annotations

import os

from palestra.run import KINDS

TYPE_CHECKING = False  # as typing has it, whose import takes as long as all that the command line needs of this file
if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Any, Literal

    from palestra.buffers.replay import ReplayBuffer as ReplayBuffer
    from palestra.callbacks import Callback as Callback
    from palestra.config import ConfigError as ConfigError
    from palestra.config import UntrustedError as UntrustedError
    from palestra.games import make_game as make_game
    from palestra.kinds.data.models import StoredModel
    from palestra.kinds.data.trainer import FitTrainer as FitTrainer
    from palestra.kinds.games.config import RunConfig as RunConfig
    from palestra.kinds.games.trainer import DQNTrainer as DQNTrainer
    from palestra.kinds.games.trainer import LossTrainer as LossTrainer
    from palestra.kinds.games.trainer import PPOTrainer as PPOTrainer
    from palestra.kinds.games.trainer import SACTrainer as SACTrainer
    from palestra.kinds.games.trainer import TD3Trainer as TD3Trainer
    from palestra.kinds.games.trainer import Trainer as Trainer
    from palestra.models.model import Model as Model
    from palestra.players.player import Player as Player
    from palestra.recording import Logger as Logger
    from palestra.training.checks import TrainingFailed as TrainingFailed
    from palestra.training.opening import Models
    from palestra.training.opening import make_trainer as make_trainer
    from palestra.training.stored_training import StoredRun as StoredRun

    __version__: str

HOMES = {
    "Callback": "callbacks",
    "ConfigError": "config",
    "DQNTrainer": "kinds.games.trainer",
    "FitTrainer": "kinds.data.trainer",
    "Logger": "recording",
    "LossTrainer": "kinds.games.trainer",
    "Model": "models.model",
    "PPOTrainer": "kinds.games.trainer",
    "Player": "players.player",
    "ReplayBuffer": "buffers.replay",
    "RunConfig": "kinds.games.config",
    "SACTrainer": "kinds.games.trainer",
    "StoredRun": "training.stored_training",
    "TD3Trainer": "kinds.games.trainer",
    "Trainer": "kinds.games.trainer",
    "TrainingFailed": "training.checks",
    "UntrustedError": "config",
    "make_game": "games",
    "make_trainer": "training.opening",
}
"""the modules of palestra that hold the names which are imported on first use"""

KINDS.update(dict.fromkeys(("in_turn", "together"), "palestra.kinds.games.kind:Games"))
KINDS.update(fit="palestra.kinds.data.kind:Data", text="palestra.kinds.text.kind:Text")

__all__ = [*HOMES, "load_config", "load_model", "load_player"]


# numba reads .numba_config.yaml in the working directory, which may be a stranger's: a cache there would be unpickled,
# and these classes and this library loaded. What stands in the environment goes before it.
for _name in ("NUMBA_CACHE_DIR", "NUMBA_CACHE_LOCATOR_CLASSES", "NUMBA_CUDA_DRIVER"):
    os.environ.setdefault(_name, "")


def load_config(path: str | Path, overrides: tuple[str, ...] = ()) -> RunConfig:
    """The config of a run, from a YAML file and overrides like "players.host.algorithm.gamma=0.98".

    path: of the file, or the name of a config that palestra ships, as "dqn-polyhedra". It imports the classes that the
    file names. Raises ConfigError with every fault at once.
    """
    from pathlib import Path

    from palestra.run.kinds import read_config

    return read_config(Path(path), overrides)


def load_player(
    run: str | Path,
    player: str | None = None,
    checkpoint: str = "latest",
    trust: bool = False,
    models: Models | None = None,
) -> Player:
    """A player as a run left it, held fixed: `load_player(run).policy(explore=False).act(...)`.

    run: its folder, or a player that palestra ships: `palestra:polyhedra-host`, `palestra:polyhedra-agent`. player: its
    name; may be left out if only one learned. checkpoint: latest, best, a number, or an opt step as @2100. trust:
    whether the modules that the run names are trusted from now on. models: the networks that `set_model` handed over
    when the run began, by role, or those of the one player that learns. Raises ValueError if no such player learned,
    UntrustedError for modules that are not trusted, RunFolderError and CheckpointError if the run cannot be read.
    """
    from palestra.kinds.games import stored

    return stored.load_player(run, player, checkpoint, trust, models)


def load_model(
    run: str | Path,
    checkpoint: str = "latest",
    weights: Literal["latest", "averaged"] = "latest",
    overrides: tuple[str, ...] = (),
    trust: bool = False,
    models: Model | Mapping[str, Model] | None = None,
) -> StoredModel:
    """A model as a run left it, held fixed and in evaluation mode: `load_model(run).predict(items)`.

    run: the folder of a run in which a model learned from data. checkpoint: latest, best, a number, or an opt step as
    @2100. weights: latest, or averaged: the averages of learning.ema. overrides: changes of the keys that say with what
    and where it is used, as "execution.device=cpu" or "data.test.file=other.csv". trust: whether the modules that the
    run names are trusted from now on. models: the model that `set_model` handed over when the run began, if its config
    names none; it is copied. Raises ConfigError for weights and overrides that do not fit, UntrustedError for modules
    that are not trusted, RunFolderError and CheckpointError if the run cannot be read.
    """
    from warnings import warn

    from palestra.kinds.data.models import load_model as load

    loaded = load(run, checkpoint, weights, overrides, trust, models=models)
    for line in loaded.warnings:
        warn(line, stacklevel=2)
    return loaded


def __dir__() -> list[str]:
    return sorted({*__all__, "__version__", *(name for name in globals() if name.startswith("__"))})


def __getattr__(name: str) -> Any:
    """Import the other names on first use: importing torch takes seconds, which `palestra --help` need not wait for."""
    from importlib import import_module

    from palestra.runtime.starting import without_garbage_collection

    if name == "__version__":
        return import_module("importlib.metadata").version("palestra")
    with without_garbage_collection():
        if name == "games":
            return import_module("palestra.games")
        if name in HOMES:
            return getattr(import_module(f"palestra.{HOMES[name]}"), name)
    raise AttributeError(f"module 'palestra' has no attribute {name!r}")
