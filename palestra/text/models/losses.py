"""Losses on answers by name, and the batch of which they are computed. To register one, add it to AnyTextLoss.

Letters: B answers, A tokens of the longest, T columns.
"""

from typing import Annotated, Any, ClassVar, Literal, TypedDict

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from palestra.config import ByName, Config, NonNegativeFloat, PositiveFloat
from palestra.models.model import WEIGHT, Terms


class Batch(TypedDict):
    """Answers with their prompts.

    Of pairs, every tensor but `weight` has an axis of 2 behind the first: the better answer, and the worse one.

    tokens: int64 (B, T): prompts, padded on the left, and then answers, padded on the right. read: int64 (B, T), 0 for
    padding. is_answer: bool (B, A), the tokens that are learned, which are the last A columns without their padding.
    weight: float32 (B,), how much each answer counts, or its advantage. sampled: float32 (B, A), the log-probability of
    each token when it was drawn, 0 without one. reference: (B, A), those of the model to which the loss stays near, 0
    for a loss that asks for none.
    """

    tokens: Tensor
    read: Tensor
    is_answer: Tensor
    weight: Tensor
    sampled: Tensor
    reference: Tensor


def mean_of_answer(values: Tensor, is_answer: Tensor) -> Tensor:
    """Return the mean of values (B, A) over the tokens of each answer, (B,); of pairs (B, 2)."""
    return sum_of_answer(values, is_answer) / is_answer.sum(dim=-1)


def sum_of_answer(values: Tensor, is_answer: Tensor) -> Tensor:
    """Return the sum of values (B, A) over the tokens of each answer, (B,); of pairs (B, 2)."""
    return values.masked_fill(~is_answer, 0.0).sum(dim=-1)


class SupervisedConfig(Config):
    """The supervised loss: answers become more probable, each as much as its weight says."""

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


class PolicyGradientConfig(Config):
    """The policy gradient: answers become more or less probable by their advantages, within a clipped ratio.

    The ratio is that of the probabilities now and when the answer was drawn, clipped as in PPO (Schulman et al. 2017);
    of each token, as in GRPO (Shao et al. 2024), or of the answer as a whole. At a ratio of 1 the gradient of the
    latter is the policy gradient itself (Williams 1992). The distance to a reference is estimated per token by
    exp(q) - q - 1, where q is the reference's log-probability minus the model's (Schulman 2020): its mean is the
    Kullback-Leibler divergence from the model to the reference, and it is never negative. It is multiplied by the
    ratio, without which its gradient would not be that of the divergence (as in DeepSeek-V3.2, 2025).
    """

    usual: ClassVar[Any] = {"per": "token", "clip_range": 0.2, "kl_coefficient": 0.05, "kl_to": "imitated"}

    name: Literal["policy_gradient"]
    """answers become more or less probable by their advantages"""
    per: Literal["token", "answer"]
    """token: a ratio for each token, and the mean over all tokens of a batch; answer: one ratio for an answer, the
    product of those of its tokens, and the mean over the answers"""
    clip_range: PositiveFloat | None
    """an answer is left alone where the ratio differs from 1 by more than this in the direction of its advantage; null:
    never"""
    kl_coefficient: NonNegativeFloat
    """weight of the distance to the model of kl_to; 0: none"""
    kl_to: Literal["imitated", "base"]
    """imitated: the model after `imitate`, or the base where nothing is imitated; base: the weights of the beginning"""

    @property
    def reference(self) -> str | None:
        """The model whose log-probabilities the loss asks for."""
        return self.kl_to if self.kl_coefficient else None

    def loss(self, log_probs: Tensor, batch: Batch) -> Terms:
        """Return the terms of each answer, (B,), and its weight. log_probs: (B, A)."""
        is_answer, advantage = batch["is_answer"], batch["weight"]
        change = log_probs - batch["sampled"]
        if self.per == "answer":
            ratio, over_answer = sum_of_answer(change, is_answer).exp(), sum_of_answer
        else:
            ratio, over_answer, advantage = change.exp(), mean_of_answer, advantage[:, None]
        surrogate, is_clipped = self._surrogate(ratio, advantage)
        terms = {"loss_policy": -surrogate, "ratio": ratio.detach(), "clipped": is_clipped}
        if self.per == "token":
            terms = {name: mean_of_answer(values, is_answer) for name, values in terms.items()}
            terms[WEIGHT] = is_answer.sum(dim=1).to(log_probs.dtype)
        if self.reference is not None:
            difference = batch["reference"] - log_probs
            distance = difference.exp() - difference - 1.0
            weighted = distance * (ratio[:, None] if self.per == "answer" else ratio)
            terms["loss_kl"] = self.kl_coefficient * over_answer(weighted, is_answer)
            terms["kl"] = over_answer(distance.detach(), is_answer)
        return terms

    def _surrogate(self, ratio: Tensor, advantage: Tensor) -> tuple[Tensor, Tensor]:
        """Return what is made large, and where the clipping leaves an answer alone, as 0 and 1."""
        plain = ratio * advantage
        if self.clip_range is None:
            return plain, torch.zeros_like(plain)
        clipped = ratio.clamp(1.0 - self.clip_range, 1.0 + self.clip_range) * advantage
        return torch.minimum(plain, clipped), (clipped < plain).to(plain.dtype).detach()


class PreferenceConfig(Config):
    """The loss on preferences: of two answers to a prompt the better one becomes more probable, beside the worse one.

    Direct preference optimization (DPO, Rafailov et al. 2023): the loss is -log sigmoid(beta * margin), where the
    margin is how much more the better answer has gained in log-probability than the worse one since the job began. Here
    B counts pairs.
    """

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


AnyTextLoss = Annotated[SupervisedConfig | PolicyGradientConfig | PreferenceConfig, ByName()]
