"""The loss of Q-learning (Mnih et al. 2015) as a plug-in of `off_policy`.

The algorithm `dqn` learns the same, faster, and more: dueling, return distributions.
"""

from typing import Any, ClassVar, Literal

from torch import Tensor
from torch.nn.functional import huber_loss

from palestra.algorithms.losses.loss import LossConfig
from palestra.algorithms.losses.off_policy_loss import OffPolicyLoss, ReplayBatch
from palestra.algorithms.parts.exploration import best_legal
from palestra.algorithms.parts.return_distributions import of_action
from palestra.config import PositiveFloat


class QLearning(OffPolicyLoss):
    """The Huber loss of the TD error, by a target network; double if the config says so (van Hasselt et al. 2016)."""

    config: "QLearningConfig"
    heads = ("q",)
    acts_by = "q"

    def values_and_target(self, batch: ReplayBatch) -> tuple[Tensor, Tensor]:
        """Return the values of the actions taken, and their value targets: (M,) each."""
        choosing = batch.next_outputs if self.config.double else batch.target_outputs
        best = best_legal(choosing["q"], batch.next_legal)
        value_target = batch.reward + batch.discount * of_action(batch.target_outputs["q"], best)
        return of_action(batch.outputs["q"], batch.action), value_target

    def terms(self, batch: ReplayBatch) -> dict[str, Tensor]:
        values, value_target = self.values_and_target(batch)
        losses = huber_loss(values, value_target, delta=self.config.huber_delta, reduction="none")
        td_error = values.detach() - value_target
        return {"loss_td": batch.mean(losses), "q_mean": values.detach().mean(), "td_error": td_error.abs().mean()}

    def priorities(self, batch: ReplayBatch) -> Tensor:
        values, value_target = self.values_and_target(batch)
        return values - value_target


class QLearningConfig(LossConfig):
    made = QLearning
    usual: ClassVar[dict[str, Any]] = {"double": True, "huber_delta": 1.0}

    name: Literal["q_learning"]
    """Q-learning with a target network (Mnih et al. 2015)"""
    double: bool
    """choose the next action with the online network, value it with the target network"""
    huber_delta: PositiveFloat
    """TD error at which the loss turns from a parabola into a line"""
