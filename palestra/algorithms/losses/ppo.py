"""PPO's loss (palestra/algorithms/ppo.py) as a plug-in of `on_policy`. The algorithm `ppo` learns the same, faster."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from torch import Tensor

from palestra.algorithms.losses.loss import LossBatch, LossConfig, OnPolicyLoss
from palestra.algorithms.ppo import ObjectiveConfig, ProximalLoss
from palestra.config import NonNegativeFloat, PositiveFloat
from palestra.schedules import ScheduleConfig


class PPOLoss(ProximalLoss, OnPolicyLoss):
    """PPO's loss. Its state is the scale of the KL penalty's coefficient."""

    config: "PPOLossConfig"
    estimators = ("gae", "td_lambda", "v_trace", "reward_to_go", "torchrl")

    def terms(self, batch: LossBatch) -> dict[str, Tensor]:
        return self.loss(batch.distribution, batch.value, batch.rows, *self.coefficients(batch.opt_steps))

    def after_turn(self, metrics: Mapping[str, Tensor]) -> None:
        self.adapt_kl_coefficient(metrics)

    def state_dict(self) -> dict[str, Any]:
        return {"kl_scale": self.kl_scale}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.restore_penalty(state["kl_scale"])


class PPOLossConfig(LossConfig):
    made = PPOLoss
    usual: ClassVar = {"value_coefficient": 0.5, "entropy_coefficient": 0.0}

    name: Literal["ppo"]
    """proximal policy optimisation (Schulman et al. 2017)"""
    objective: ObjectiveConfig
    """what keeps the policy near the one that collected the roll-out"""
    value_clip: PositiveFloat | None
    """values are clipped to this distance from those at the roll-out; null: they are not clipped"""
    value_coefficient: NonNegativeFloat
    """weight of the value's mean squared error in the loss"""
    entropy_coefficient: ScheduleConfig
    """weight of the policy's entropy in the loss, a function of the player's opt steps"""
    target_kl: PositiveFloat | None
    """a pass with a larger KL divergence is the last one over its roll-out; null: all passes are made"""
