"""Optimizers by name: ours, those of torch, and the base of a user's own.

To register one, add its config to OptimizerConfig.

Each steps on one vector of weights, and its step may be part of a compiled function. An algorithm sets the learning
rate from its schedule before every opt step. By hand they work as torch's do: `zero_grad`, `loss.backward`, `step`.
"""

from typing import Annotated

from palestra.config import ByName, InBranch, UserConfig
from palestra.optimizers.optimizer import Optimizer, clip, learning_rate_factors
from palestra.optimizers.ours import AdamConfig, SGDConfig
from palestra.optimizers.torch_optim import TorchOptimizerConfig

OptimizerConfig = Annotated[
    AdamConfig | SGDConfig | TorchOptimizerConfig | UserConfig,
    ByName(user_class=Optimizer, usual="adam"),
    InBranch.SAME_PART,
]
