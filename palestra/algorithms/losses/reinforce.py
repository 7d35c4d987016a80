"""REINFORCE (Williams 1992) as a plug-in of `on_policy`, with a critic or by the reward to go of whole games."""

from typing import ClassVar, Literal

from torch import Tensor

from palestra.algorithms.losses.loss import LossBatch, LossConfig, OnPolicyLoss
from palestra.algorithms.parts.actor_critic import POLICY, VALUE
from palestra.config import Config, PositiveFloat
from palestra.schedules import ScheduleConfig


class CriticConfig(Config):
    """Keys of a head `value`, which the loss learns too, and by which estimators compute advantages."""

    coefficient: PositiveFloat
    """weight of the value's mean squared error in the loss"""


class Reinforce(OnPolicyLoss):
    """Raises the log-probability of every decision in proportion to its advantage (without a critic: reward to go)."""

    config: "ReinforceConfig"
    is_of_one_pass = True

    @property
    def heads(self) -> tuple[str, ...]:  # type: ignore[override]
        return (POLICY,) if self.config.critic is None else (POLICY, VALUE)

    @property
    def estimators(self) -> tuple[str, ...]:  # type: ignore[override]
        return (
            ("reward_to_go",)
            if self.config.critic is None
            else ("gae", "td_lambda", "v_trace", "reward_to_go", "torchrl")
        )

    def terms(self, batch: LossBatch) -> dict[str, Tensor]:
        policy_loss, entropy = -batch.mean(batch.advantage * batch.log_prob), batch.mean(batch.entropy)
        terms = {
            "loss_policy": policy_loss,
            "loss_entropy": -self.config.entropy_coefficient(batch.opt_steps) * entropy,
            "policy_loss": policy_loss,
            "entropy": entropy,
        }
        if self.config.critic is None:
            return terms
        value_loss = batch.mean((batch.value - batch.value_target).square())
        return terms | {"loss_value": self.config.critic.coefficient * value_loss, "value_loss": value_loss}


class ReinforceConfig(LossConfig):
    made = Reinforce
    usual: ClassVar = {"entropy_coefficient": 0.0}

    name: Literal["reinforce"]
    """REINFORCE (Williams 1992)"""
    critic: CriticConfig | None
    """learn a value, from which advantages are measured; null: use the reward to go alone"""
    entropy_coefficient: ScheduleConfig
    """weight of the policy's entropy in the loss, a function of the player's opt steps"""
