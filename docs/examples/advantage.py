"""Advantage-weighted regression (Peng et al. 2019): what did better than expected is imitated, the more the better."""

from palestra.algorithms.losses.loss import OnPolicyLoss
from palestra.config import PositiveFloat, UserConfig


class AdvantageWeighted(OnPolicyLoss):
    class Config(UserConfig):
        temperature: PositiveFloat
        """advantages are divided by it: where it is small, only the best decisions count"""
        largest: PositiveFloat
        """greater weights count as this; 20 in the paper"""

    def terms(self, batch):
        weight = (batch.advantage / self.config.temperature).exp().clamp(max=self.config.largest)
        return {
            "loss_policy": -batch.mean(weight * batch.log_prob),
            "loss_value": batch.mean((batch.value - batch.value_target).square()),
            "entropy": batch.mean(batch.entropy),
        }
