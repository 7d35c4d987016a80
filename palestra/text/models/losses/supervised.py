"""The supervised loss: answers become more probable, each as much as its weight says.

Letters: B answers, A tokens of the longest.
"""

from typing import Any, ClassVar, Literal

from torch import Tensor

from palestra.config import Config
from palestra.models.model import WEIGHT, Terms
from palestra.text.models.losses.batch import Batch, mean_of_answer, sum_of_answer


class SupervisedConfig(Config):
    usual: ClassVar[Any] = {"per": "token"}
    reference: ClassVar[None] = None

    name: Literal["supervised"]
    """the negative log-likelihood of answers"""
    per: Literal["token", "answer"]
    """token: the mean over all tokens of a batch; answer: of each answer the sum over its tokens, and of these the mean
    over the batch"""

    def loss(self, log_probs: Tensor, batch: Batch) -> Terms:
        """Return the term of each answer, (B,), and its weight. log_probs: (B, A)."""
        is_answer = batch["is_answer"]
        if self.per == "answer":
            return {"loss_answers": -sum_of_answer(log_probs, is_answer), WEIGHT: batch["weight"]}
        return {"loss_answers": -mean_of_answer(log_probs, is_answer), WEIGHT: batch["weight"] * is_answer.sum(dim=1)}
