"""BC, behaviour cloning (Pomerleau 1989), as a plug-in of `off_policy`: the policy makes the actions taken likely."""

from typing import Any, ClassVar, Literal

from torch import Tensor

from palestra.algorithms.losses.loss import LossConfig
from palestra.algorithms.losses.off_policy_loss import OF_LIKELIHOODS, OffPolicyLoss, ReplayBatch
from palestra.algorithms.parts.actor_critic import POLICY


class BehaviourCloning(OffPolicyLoss):
    """Minus the mean log-likelihood of the actions taken. It needs neither rewards nor target networks."""

    config: "BehaviourCloningConfig"
    heads = (POLICY,)
    acts_by = POLICY
    own_targets = False

    def terms(self, batch: ReplayBatch) -> dict[str, Tensor]:
        policy_loss = -batch.mean(batch.log_prob)
        return {"loss_policy": policy_loss, "policy_loss": policy_loss}


class BehaviourCloningConfig(LossConfig):
    made = BehaviourCloning
    usual_algorithm: ClassVar[dict[str, Any]] = {**OF_LIKELIHOODS, "target": None}

    name: Literal["bc"]
    """behaviour cloning (Pomerleau 1989): the likelihood of the actions taken"""
