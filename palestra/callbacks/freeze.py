"""The callback `freeze`: keeps weights as they are, by name, for some opt steps or for all."""

from fnmatch import fnmatchcase
from typing import Literal

import torch
from torch import Tensor

from palestra.callbacks.callback import Callback, CallbackConfig, learner_named
from palestra.callbacks.training import AnyLearner, AnyTraining
from palestra.config import ConfigErrorItem, NonEmptyStr, PartError, PositiveInt
from palestra.config.errors import listed


class FreezeConfig(CallbackConfig):
    name: Literal["freeze"]
    """weights that stay as they are, to the bit"""
    player: NonEmptyStr
    """whose weights"""
    net: NonEmptyStr
    """which of its networks that learn: q; actor_critic; policy or critics; of a model that learns from data: model"""
    weights: list[NonEmptyStr]
    """which of the network's parameters, by name, as layers.0.weight; * stands for anything, as in layers.0.*"""
    num_opt_steps: PositiveInt | None
    """for how many opt steps of the player, from its first one on; null: for all"""

    def build(self) -> "Freeze":
        return Freeze(self)


class Freeze(Callback):
    """Freezes weights in their optimizer, for the first `num_opt_steps` of the player.

    A group of opt steps that are made at once (a pass of PPO) is frozen if the first of them is.
    """

    config: FreezeConfig

    def __init__(self, config: FreezeConfig) -> None:
        super().__init__(config)
        self.mask: Tensor | None = None  # while weights are frozen

    def check(self, training: AnyTraining) -> None:
        self._mask(training)

    def before_train(self, training: AnyTraining) -> None:
        self._freeze_or_thaw(training, learner_named(self.config.player, self.config, training))

    def before_step(self, training: AnyTraining, player: AnyLearner) -> None:
        if player.name == self.config.player:
            self._freeze_or_thaw(training, player)

    def _freeze_or_thaw(self, training: AnyTraining, player: AnyLearner) -> None:
        until = self.config.num_opt_steps
        is_frozen = until is None or player.opt_steps < until
        if is_frozen and self.mask is None:
            self.mask = self._mask(training)
            player.optimizers[self.config.net].freeze(self.mask)
        elif not is_frozen and self.mask is not None:
            player.optimizers[self.config.net].thaw(self.mask)
            self.mask = None

    def _mask(self, training: AnyTraining) -> Tensor:
        """The weights of the network that are frozen, as one mask: bool (P,).

        Raises PartError for names of no network or parameter.
        """
        config = self.config
        player = learner_named(config.player, config, training)
        learned = [name for name in player.optimizers if name in player.nets]
        if config.net not in learned:
            message = f"expected a network of {player.name!r} that learns ({listed(learned)}), got {config.net!r}"
            raise PartError(config, [ConfigErrorItem("net", message)])
        parameters = dict(player.nets[config.net].named_parameters())
        faults = [
            ConfigErrorItem(f"weights.{index}", f"expected parameters among {listed(parameters)}, got {pattern!r}")
            for index, pattern in enumerate(config.weights)
            if not any(fnmatchcase(name, pattern) for name in parameters)
        ]
        if faults:
            raise PartError(config, faults)
        frozen = [any(fnmatchcase(name, pattern) for pattern in config.weights) for name in parameters]
        masks = [torch.full((p.numel(),), is_frozen) for p, is_frozen in zip(parameters.values(), frozen, strict=True)]
        return torch.cat(masks).to(player.device)
