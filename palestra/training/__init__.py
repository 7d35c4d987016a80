"""Trainers by name: the one place where the key `trainer` of a file meets its class."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from palestra.algorithms.dqn import DQNConfig
from palestra.algorithms.off_policy import OffPolicyConfig
from palestra.algorithms.on_policy import OnPolicyConfig
from palestra.algorithms.ppo import PPOConfig
from palestra.algorithms.sac import SACConfig
from palestra.algorithms.td3 import TD3Config
from palestra.callbacks import Callback
from palestra.config import reading_own
from palestra.runs.base import BaseRunConfig
from palestra.runs.kinds import read_config
from palestra.storage.run_folder import RunFolder
from palestra.training.fit import FitTrainer as FitTrainer
from palestra.training.opening import TRAINERS, named_classes
from palestra.training.text import TextTrainer as TextTrainer
from palestra.training.together import Together
from palestra.training.trainer import Trainer


class DQNTrainer(Trainer):
    """The Trainer whose players learn by DQN."""

    algorithms = (DQNConfig,)


class PPOTrainer(Trainer):
    """The Trainer whose players learn by PPO."""

    algorithms = (PPOConfig,)


class SACTrainer(Trainer):
    """The Trainer whose players learn by SAC."""

    algorithms = (SACConfig,)


class TD3Trainer(Trainer):
    """The Trainer whose players learn by TD3."""

    algorithms = (TD3Config,)


class LossTrainer(Trainer):
    """The Trainer whose players learn by a loss alone, one by name or one of your own.

    They learn on roll-outs of the present policy, or from a replay buffer.
    """

    algorithms = (OnPolicyConfig, OffPolicyConfig)


TRAINERS["in_turn"] = (Trainer, DQNTrainer, PPOTrainer, SACTrainer, TD3Trainer, LossTrainer)
TRAINERS["together"] = (Together,)
TRAINERS["fit"] = (FitTrainer,)
TRAINERS["text"] = (TextTrainer,)


def make_trainer(
    config: str | Path | dict[str, Any] | BaseRunConfig,
    run: str | Path | RunFolder | None = None,
    overrides: Sequence[str] = (),
    callbacks: Sequence[Callback] = (),
    console: Console | None = None,
) -> Any:
    """A trainer of the class that a config names under `trainer`: a Trainer, or an object of a class of your own.

    The arguments are those of Trainer. Raises ConfigError with every fault of the config at once.
    """
    with reading_own():
        read = read_config(config, overrides)
    trainer: Any = named_classes(read)[0](read, run=run, callbacks=callbacks, console=console)
    if isinstance(config, str | Path):
        trainer.run.name = Path(config).stem
    return trainer
