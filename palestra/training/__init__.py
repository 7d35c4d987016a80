"""Trainers by name: the one place where the key `trainer` of a file meets its class."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, get_args

from rich.console import Console

from palestra.algorithms.algorithm import AlgorithmConfig
from palestra.algorithms.dqn import DQNConfig
from palestra.algorithms.off_policy import OffPolicyConfig
from palestra.algorithms.on_policy import OnPolicyConfig
from palestra.algorithms.ppo import PPOConfig
from palestra.algorithms.sac import SACConfig
from palestra.algorithms.td3 import TD3Config
from palestra.callbacks import Callback
from palestra.config import ConfigError, ConfigErrorItem, trusting
from palestra.runs.config import BaseRunConfig, LearningPlayerConfig, read_config
from palestra.storage.run_folder import RunFolder
from palestra.training.naming import TRAINERS, named_class
from palestra.training.together import Together
from palestra.training.trainer import Trainer


class OneAlgorithmTrainer(Trainer):
    """A Trainer whose players all learn by one of `algorithms`. Raises ConfigError if a player of the config learns by
    another one."""

    algorithms: ClassVar[tuple[type[AlgorithmConfig], ...]]

    def __init__(self, config: Any, **kwargs: Any) -> None:
        run_config = read_config(config)
        names = [name for each in self.algorithms for name in get_args(each.model_fields["name"].annotation)]
        expected = " or ".join(map(repr, names))
        others = [
            ConfigErrorItem(f"players.{name}.algorithm.name", f"expected {expected}, got {player.algorithm.name!r}")
            for name, player in run_config.players.items()
            if isinstance(player, LearningPlayerConfig) and not isinstance(player.algorithm, self.algorithms)
        ]
        if others:
            raise ConfigError(others)
        super().__init__(run_config if not isinstance(config, str | Path) else config, **kwargs)


class DQNTrainer(OneAlgorithmTrainer):
    """The Trainer whose players learn by DQN."""

    algorithms = (DQNConfig,)


class PPOTrainer(OneAlgorithmTrainer):
    """The Trainer whose players learn by PPO."""

    algorithms = (PPOConfig,)


class SACTrainer(OneAlgorithmTrainer):
    """The Trainer whose players learn by SAC."""

    algorithms = (SACConfig,)


class TD3Trainer(OneAlgorithmTrainer):
    """The Trainer whose players learn by TD3."""

    algorithms = (TD3Config,)


class LossTrainer(OneAlgorithmTrainer):
    """The Trainer whose players learn by a loss alone, one by name or one of your own, on roll-outs of the present
    policy or from a replay buffer."""

    algorithms = (OnPolicyConfig, OffPolicyConfig)


TRAINERS["in_turn"] = (Trainer, DQNTrainer, PPOTrainer, SACTrainer, TD3Trainer, LossTrainer)
TRAINERS["together"] = (Together,)


def make_trainer(
    config: str | Path | dict[str, Any] | BaseRunConfig,
    run: str | Path | RunFolder | None = None,
    overrides: Sequence[str] = (),
    callbacks: Sequence[Callback] = (),
    console: Console | None = None,
) -> Any:
    """A trainer of the class that a config names under `trainer`: a Trainer, or an object of a class of your own.

    The arguments are those of Trainer. Raises ConfigError with every fault of the config at once."""
    with trusting():
        read = read_config(config, overrides)
    trainer = named_class(read)(read, run=run, callbacks=callbacks, console=console)
    if isinstance(config, str | Path):
        trainer.name = Path(config).stem
    return trainer
