"""IQL, implicit Q-learning (Kostrikov et al. 2021), as a plug-in of `off_policy`.

It learns from recorded play, and from play of its own, and never asks for the value of an action that was not taken.
"""

from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from palestra.algorithms.losses.loss import AnyHead, LossConfig, TakenValue
from palestra.algorithms.losses.off_policy_loss import OF_LIKELIHOODS, OffPolicyLoss, ReplayBatch
from palestra.algorithms.parts.actor_critic import POLICY, VALUE
from palestra.config import InBranch, PositiveFloat, PositiveInt


class IQL(OffPolicyLoss):
    """The value is an expectile of the target critics' values of the actions taken (eq. 5), critics learn from it (6).

    The log-likelihood of an action counts exp(advantage / temperature) (eq. 7), and at most `max_weight`.
    """

    config: "IQLConfig"
    acts_by = POLICY

    def __init__(self, config: "IQLConfig") -> None:
        super().__init__(config)
        self.critics = [f"critic_{number}" for number in range(config.num_critics)]

    @property
    def heads(self) -> tuple[AnyHead, ...]:  # type: ignore[override]
        return (POLICY, *map(TakenValue, self.critics), VALUE)

    def terms(self, batch: ReplayBatch) -> dict[str, Tensor]:
        least = torch.stack([batch.target_taken_values(critic) for critic in self.critics]).amin(dim=0)
        advantage = least - batch.outputs[VALUE][:, 0]
        share = torch.where(advantage > 0.0, self.config.expectile, 1.0 - self.config.expectile)
        value_target = batch.reward + batch.discount * batch.next_outputs[VALUE][:, 0]
        q_values = torch.stack([batch.taken_values(critic) for critic in self.critics])
        td_errors = q_values - value_target
        weight = (advantage.detach() / self.config.temperature).exp().clamp(max=self.config.max_weight)
        value_loss = batch.mean(share * advantage.square())
        critic_loss = batch.mean(td_errors.square().sum(dim=0))
        policy_loss = -batch.mean(weight * batch.log_prob)
        self.td_errors = td_errors.detach()
        return {
            "loss_value": value_loss,
            "loss_critics": critic_loss,
            "loss_policy": policy_loss,
            "value_loss": value_loss,
            "critic_loss": critic_loss,
            "policy_loss": policy_loss,
            "q_mean": q_values.mean(),
            "weight": weight.mean(),
        }

    def priorities(self, batch: ReplayBatch) -> Tensor:
        return self.td_errors.abs().mean(dim=0)


class IQLConfig(LossConfig):
    made = IQL
    usual: ClassVar[dict[str, Any]] = {
        "num_critics": 2,
        "expectile": 0.7,
        "temperature": 0.3333,  # an inverse of 3 in the paper
        "max_weight": 100.0,
    }
    usual_algorithm = OF_LIKELIHOODS

    name: Literal["iql"]
    """implicit Q-learning (Kostrikov et al. 2021)"""
    num_critics: Annotated[PositiveInt, InBranch.FIXED]
    """critics, of which the smallest value counts"""
    expectile: Annotated[float, Field(gt=0, lt=1)]
    """of the values of the actions taken, which is a state's value; 0.5: their mean, near 1.0: the best of them"""
    temperature: PositiveFloat
    """divides advantages; the smaller it is, the more the policy prefers the best of the actions taken"""
    max_weight: PositiveFloat
    """larger weights of actions, exp(advantage / temperature), count as this"""
