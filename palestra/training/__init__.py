"""Trainers by name."""

from pathlib import Path
from typing import Any, ClassVar, get_args

from palestra.algorithms.algorithm import AlgorithmConfig
from palestra.algorithms.dqn import DQNConfig
from palestra.algorithms.ppo import PPOConfig
from palestra.algorithms.sac import SACConfig
from palestra.algorithms.td3 import TD3Config
from palestra.config import ConfigError, ConfigErrorItem
from palestra.runs.config import LearningPlayerConfig, read_config
from palestra.training.trainer import Trainer


class OneAlgorithmTrainer(Trainer):
    """A Trainer whose players all learn by `algorithm`; raises ConfigError for a config in which one learns
    otherwise."""

    algorithm: ClassVar[type[AlgorithmConfig]]

    def __init__(self, config: Any, **kwargs: Any) -> None:
        run_config = read_config(config)
        (expected,) = get_args(self.algorithm.model_fields["name"].annotation)
        others = [
            ConfigErrorItem(
                f"players.{name}.algorithm.name", f"{player.algorithm.name!r} stands there; expected {expected!r}"
            )
            for name, player in run_config.players.items()
            if isinstance(player, LearningPlayerConfig) and not isinstance(player.algorithm, self.algorithm)
        ]
        if others:
            raise ConfigError(others)
        super().__init__(run_config if not isinstance(config, str | Path) else config, **kwargs)


class DQNTrainer(OneAlgorithmTrainer):
    """The Trainer whose players learn by DQN."""

    algorithm = DQNConfig


class PPOTrainer(OneAlgorithmTrainer):
    """The Trainer whose players learn by PPO."""

    algorithm = PPOConfig


class SACTrainer(OneAlgorithmTrainer):
    """The Trainer whose players learn by SAC."""

    algorithm = SACConfig


class TD3Trainer(OneAlgorithmTrainer):
    """The Trainer whose players learn by TD3."""

    algorithm = TD3Config
