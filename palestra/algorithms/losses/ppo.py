"""PPO's loss (Schulman et al. 2017) as a plug-in of `on_policy`: clipped, or with a penalty on the KL divergence. The
algorithm `ppo` learns the same, faster."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from palestra.algorithms.losses.loss import LossBatch, LossConfig, OnPolicyLoss
from palestra.algorithms.ppo import ClipConfig, KLPenaltyConfig, ObjectiveConfig
from palestra.config import NonNegativeFloat, PositiveFloat
from palestra.schedules import ScheduleConfig


class PPOLoss(OnPolicyLoss):
    """State: the coefficient of the KL penalty."""

    config: "PPOLossConfig"
    estimators = ("gae", "td_lambda", "reward_to_go", "torchrl")

    def __init__(self, config: "PPOLossConfig") -> None:
        super().__init__(config)
        self.kl_coefficient = config.objective.coefficient if isinstance(config.objective, KLPenaltyConfig) else 0.0

    def terms(self, batch: LossBatch) -> dict[str, Tensor]:
        config, objective = self.config, self.config.objective
        log_ratio = batch.log_prob - batch.old_log_prob
        ratio = log_ratio.exp()
        kl = ratio - 1.0 - log_ratio  # of one row: never negative, its mean is unbiased (Schulman, "Approximating KL")
        if isinstance(objective, ClipConfig):
            clip_range = objective.epsilon(batch.opt_steps)
            clipped_ratio = ratio.clamp(1.0 - clip_range, 1.0 + clip_range)
            surrogate = torch.minimum(ratio * batch.advantage, clipped_ratio * batch.advantage)
        else:
            clipped_ratio = ratio
            surrogate = ratio * batch.advantage - self.kl_coefficient * kl
        policy_loss = -batch.mean(surrogate)

        error = (batch.value - batch.value_target).square()
        if config.value_clip is not None:
            change = (batch.value - batch.old_value).clamp(-config.value_clip, config.value_clip)
            error = torch.maximum(error, (batch.old_value + change - batch.value_target).square())
        value_loss = batch.mean(error)

        entropy = batch.mean(batch.entropy)
        return {
            "loss_policy": policy_loss,
            "loss_value": config.value_coefficient * value_loss,
            "loss_entropy": -config.entropy_coefficient(batch.opt_steps) * entropy,
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy": entropy,
            "approx_kl": batch.mean(kl),
            "clip_fraction": batch.mean((ratio != clipped_ratio).float()),
            "value_mean": batch.mean(batch.value),
        }

    def is_last_pass(self, metrics: Mapping[str, Tensor]) -> bool:
        return self.config.target_kl is not None and bool(metrics["approx_kl"] > self.config.target_kl)

    def after_turn(self, metrics: Mapping[str, Tensor]) -> None:
        """Schulman et al. 2017, section 4, by the divergence in a turn's last pass."""
        objective = self.config.objective
        if isinstance(objective, KLPenaltyConfig) and objective.target is not None:
            kl = metrics["approx_kl"]
            if kl < objective.target / 1.5:
                self.kl_coefficient /= 2.0
            elif kl > objective.target * 1.5:
                self.kl_coefficient *= 2.0

    def state_dict(self) -> dict[str, Any]:
        return {"kl_coefficient": self.kl_coefficient}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.kl_coefficient = state["kl_coefficient"]


class PPOLossConfig(LossConfig):
    made = PPOLoss
    usual: ClassVar[dict[str, Any]] = {
        "objective": {"name": "clip", "epsilon": {"name": "constant", "value": 0.2}},
        "value_clip": None,
        "value_coefficient": 0.5,
        "entropy_coefficient": {"name": "constant", "value": 0.0},
        "target_kl": None,
    }

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
