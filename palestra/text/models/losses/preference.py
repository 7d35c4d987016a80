"""The loss on preferences: of two answers to a prompt the better one becomes more probable, beside the worse one.

Direct preference optimization (DPO, Rafailov et al. 2023): the loss is -log sigmoid(beta * margin), where the margin is
how much more the better answer has gained in log-probability than the worse one since the job began.

Letters: B pairs, A tokens of the longest answer.
"""

from typing import Any, ClassVar, Literal

from torch import Tensor
from torch.nn.functional import logsigmoid

from palestra.config import Config, PositiveFloat
from palestra.models.model import WEIGHT, Terms
from palestra.text.models.losses.batch import Batch, sum_of_answer


class PreferenceConfig(Config):
    usual: ClassVar[Any] = {"beta": 0.1}
    reference: ClassVar[Literal["before"]] = "before"

    name: Literal["preference"]
    """of two answers to a prompt, the better one becomes more probable beside the worse one (DPO)"""
    beta: PositiveFloat
    """how near the model stays to what it was when the job began: the larger, the nearer"""

    def loss(self, log_probs: Tensor, batch: Batch) -> Terms:
        """Return the terms of each pair, (B,), and its weight. log_probs: (B, 2, A), of the better and the worse one.

        preferred: whether the better answer has gained more than the worse one.
        """
        better, worse = sum_of_answer(log_probs - batch["reference"], batch["is_answer"]).unbind(dim=1)
        margin = better - worse
        return {
            "loss_preference": -logsigmoid(self.beta * margin),
            "margin": margin.detach(),
            "preferred": (margin > 0).to(margin.dtype),
            WEIGHT: batch["weight"],
        }
