"""Adam and stochastic gradient descent."""

import math
from typing import ClassVar, Literal

import torch
from torch import Tensor

from palestra.config import Config, Decay, NonNegativeFloat, PositiveFloat
from palestra.optimizers.optimizer import Optimizer, flush_subnormals

STEPS_PER_FLUSH = 16


class AdamConfig(Config):
    usual: ClassVar = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0}

    name: Literal["adam"]
    """Adam (Kingma & Ba 2015); AdamW (Loshchilov & Hutter 2019) where weight_decay is above 0"""
    beta1: Decay
    """decay of the mean of gradients"""
    beta2: Decay
    """decay of the mean of squared gradients"""
    eps: PositiveFloat
    """added to the root of the mean of squared gradients"""
    weight_decay: NonNegativeFloat
    """decoupled weight decay"""

    def build(self, weights: Tensor) -> "Adam":
        return Adam(self, weights)


class Adam(Optimizer):
    """Adam or AdamW. state: num_steps float32 (), mean and mean_square float32 (P,)."""

    config: AdamConfig

    def __init__(self, config: AdamConfig, weights: Tensor) -> None:
        super().__init__(config, weights)
        self.num_steps = torch.zeros((), device=weights.device)
        self.mean, self.mean_square = torch.zeros_like(weights.data), torch.zeros_like(weights.data)
        self.state = {"num_steps": self.num_steps, "mean": self.mean, "mean_square": self.mean_square}

    def update(self, gradient: Tensor) -> None:
        self.num_steps += 1
        if torch.compiler.is_compiling():
            self._plain_update(gradient)
        else:
            self._fused_update(gradient)
        # Both means are read and written once more: of large networks a third of the step's time.
        if self.mean.is_cpu and (torch.compiler.is_compiling() or self.num_steps.item() % STEPS_PER_FLUSH == 0):
            flush_subnormals(self.mean)
            flush_subnormals(self.mean_square)

    def _plain_update(self, gradient: Tensor) -> None:
        config = self.config
        self.mean.lerp_(gradient, 1 - config.beta1)
        self.mean_square.mul_(config.beta2).addcmul_(gradient, gradient, value=1 - config.beta2)
        step_size = self.learning_rate / self._unbiased(config.beta1)
        root = (self.mean_square / self._unbiased(config.beta2)).sqrt()
        if config.weight_decay:
            self.weights.mul_(1 - self.learning_rate * config.weight_decay)
        self.weights.sub_(step_size * self.mean / (root + config.eps))

    def _unbiased(self, beta: float) -> Tensor:
        """Return 1 - beta^num_steps, in a form that is precise for beta near 1."""
        return -torch.expm1(self.num_steps * (math.log(beta) if beta else -math.inf))

    def _fused_update(self, gradient: Tensor) -> None:
        """Do `_plain_update` by torch's fused kernel, several times faster than the single operations."""
        torch._fused_adamw_(
            [self.weights],
            [gradient],
            [self.mean],
            [self.mean_square],
            [],
            [self.num_steps],
            lr=self.learning_rate,
            beta1=self.config.beta1,
            beta2=self.config.beta2,
            weight_decay=self.config.weight_decay,
            eps=self.config.eps,
            amsgrad=False,
            maximize=False,
        )


class SGDConfig(Config):
    usual: ClassVar = {"momentum": 0.9, "weight_decay": 0.0}

    name: Literal["sgd"]
    """stochastic gradient descent"""
    momentum: Decay
    """share of the last step that is added to the new one"""
    weight_decay: NonNegativeFloat
    """weight decay, added to the gradient"""

    def build(self, weights: Tensor) -> "SGD":
        return SGD(self, weights)


class SGD(Optimizer):
    """Stochastic gradient descent with momentum (Polyak 1964). state: velocity float32 (P,)."""

    config: SGDConfig

    def __init__(self, config: SGDConfig, weights: Tensor) -> None:
        super().__init__(config, weights)
        self.velocity = torch.zeros_like(weights.data)
        self.state = {"velocity": self.velocity}

    def update(self, gradient: Tensor) -> None:
        if self.config.weight_decay:
            gradient = gradient.add(self.weights, alpha=self.config.weight_decay)
        if self.config.momentum:
            gradient = self.velocity.mul_(self.config.momentum).add_(gradient)
            flush_subnormals(self.velocity)
        self.weights.sub_(self.learning_rate * gradient)
