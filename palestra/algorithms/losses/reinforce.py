"""REINFORCE (Williams 1992) as a plug-in of `on_policy`: on whole games by their reward to go, or with a critic."""

from typing import ClassVar, Literal

from torch import Tensor

from palestra.algorithms.losses.loss import LossBatch, LossConfig, OnPolicyLoss
from palestra.algorithms.parts.actor_critic import POLICY, VALUE
from palestra.config import Config, PositiveFloat
from palestra.schedules import ScheduleConfig


class CriticConfig(Config):
    """A head `value`, which the loss learns too, and by which estimators compute advantages."""

    coefficient: PositiveFloat
    """weight of the value's mean squared error in the loss"""


class Reinforce(OnPolicyLoss):
    """Pushes up the log-probability of every decision by its advantage: without a critic, by its reward to go."""

    config: "ReinforceConfig"
    is_of_one_pass = True

    @property
    def heads(self) -> tuple[str, ...]:  # type: ignore[override]
        return (POLICY,) if self.config.critic is None else (POLICY, VALUE)

    @property
    def estimators(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("reward_to_go",) if self.config.critic is None else ("gae", "td_lambda", "reward_to_go", "torchrl")

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
    """learn a value, which advantages are counted from; null: none, by the reward to go alone"""
    entropy_coefficient: ScheduleConfig
    """weight of the policy's entropy in the loss, a function of the player's opt steps"""
