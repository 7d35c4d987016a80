"""Advantage learning (Bellemare et al. 2016, "Increasing the Action Gap"): a value target is lowered by a share of the
action's regret, so that the best action stands out."""

from torch.nn.functional import huber_loss

from palestra.algorithms.losses.off_policy_loss import OffPolicyLoss
from palestra.algorithms.parts.exploration import best_legal
from palestra.config import Fraction, UserConfig


class Regret(OffPolicyLoss):
    heads = ("q",)
    acts_by = "q"

    class Config(UserConfig):
        share: Fraction
        """of the regret; 0: Q-learning; 0.9 in the paper"""

    def terms(self, batch):
        q, next_q = batch.outputs["q"], batch.target_outputs["q"]
        taken = of_action(q, batch.action)
        regret = (of_action(q, best_legal(q, batch.legal)) - taken).detach()
        next_value = of_action(next_q, best_legal(next_q, batch.next_legal))
        target = batch.reward + batch.discount * next_value - self.config.share * regret
        self.td_error = taken.detach() - target
        losses = huber_loss(taken, target, reduction="none")
        return {"loss_td": batch.mean(losses), "regret": regret.mean()}

    def priorities(self, batch):
        return self.td_error


def of_action(q, action):
    """The value of one action in every row, (M,)."""
    return q.gather(1, action.unsqueeze(1)).squeeze(1)
