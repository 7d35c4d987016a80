"""Optimizers by name. The learning rate is not theirs: an algorithm sets it from its schedule before every opt step."""

from collections.abc import Iterable
from typing import Annotated, Literal

import torch
from torch import nn

from palestra.config import ByName, Config, Fraction, NonNegativeFloat, PositiveFloat


class AdamConfig(Config):
    name: Literal["adam"]
    """Adam (Kingma & Ba 2015); AdamW (Loshchilov & Hutter 2019) where weight_decay is above 0"""
    beta1: Fraction
    """decay of the mean of gradients"""
    beta2: Fraction
    """decay of the mean of squared gradients"""
    eps: PositiveFloat
    """added to the root of the mean of squared gradients"""
    weight_decay: NonNegativeFloat
    """decoupled weight decay"""

    def build(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        betas = (self.beta1, self.beta2)
        return torch.optim.AdamW(
            parameters, lr=0.0, betas=betas, eps=self.eps, weight_decay=self.weight_decay, fused=True
        )


class SGDConfig(Config):
    name: Literal["sgd"]
    """stochastic gradient descent"""
    momentum: Fraction
    """share of the last step that is kept"""
    weight_decay: NonNegativeFloat
    """weight decay, added to the gradient"""

    def build(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.0, momentum=self.momentum, weight_decay=self.weight_decay, fused=True)


OptimizerConfig = Annotated[AdamConfig | SGDConfig, ByName()]
