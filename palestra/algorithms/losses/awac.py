"""AWAC, advantage-weighted actor-critic (Nair et al. 2020), as a plug-in of `off_policy`.

It learns from recorded play, and from play of its own. Left out on purpose: weights that are normalized over the batch.
"""

from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor

from palestra.algorithms.losses.loss import AnyHead, LossConfig, TakenValue
from palestra.algorithms.losses.off_policy_loss import OF_LIKELIHOODS, OffPolicyLoss, ReplayBatch
from palestra.algorithms.parts.actor_critic import POLICY
from palestra.config import InBranch, PositiveFloat, PositiveInt


class AWAC(OffPolicyLoss):
    """Critics learn the values of the policy, and the policy the actions taken that are better than its own.

    The log-likelihood of an action counts exp(advantage / temperature), and at most `max_weight`.
    """

    config: "AWACConfig"
    acts_by = POLICY

    def __init__(self, config: "AWACConfig") -> None:
        super().__init__(config)
        self.critics = [f"critic_{number}" for number in range(config.num_critics)]

    @property
    def heads(self) -> tuple[AnyHead, ...]:  # type: ignore[override]
        return (POLICY, *map(TakenValue, self.critics))

    def terms(self, batch: ReplayBatch) -> dict[str, Tensor]:
        value_target = batch.reward + batch.discount * batch.target_policy_value(self.critics)
        q_values = torch.stack([batch.taken_values(critic) for critic in self.critics])
        td_errors = q_values - value_target
        advantage = q_values.detach().amin(dim=0) - batch.policy_value(self.critics)
        weight = (advantage / self.config.temperature).exp().clamp(max=self.config.max_weight)
        critic_loss = batch.mean(td_errors.square().sum(dim=0))
        policy_loss = -batch.mean(weight * batch.log_prob)
        self.td_errors = td_errors.detach()
        return {
            "loss_critics": critic_loss,
            "loss_policy": policy_loss,
            "critic_loss": critic_loss,
            "policy_loss": policy_loss,
            "q_mean": q_values.mean(),
            "weight": weight.mean(),
        }

    def priorities(self, batch: ReplayBatch) -> Tensor:
        return self.td_errors.abs().mean(dim=0)


class AWACConfig(LossConfig):
    made = AWAC
    usual: ClassVar[dict[str, Any]] = {"num_critics": 2, "temperature": 1.0, "max_weight": 20.0}
    usual_algorithm = OF_LIKELIHOODS

    name: Literal["awac"]
    """advantage-weighted actor-critic (Nair et al. 2020)"""
    num_critics: Annotated[PositiveInt, InBranch.FIXED]
    """critics, of which the smallest value counts"""
    temperature: PositiveFloat
    """divides advantages; the smaller it is, the more the policy prefers the best of the actions taken"""
    max_weight: PositiveFloat
    """larger weights of actions, exp(advantage / temperature), count as this"""
