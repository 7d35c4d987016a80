"""The policy gradient: answers become more or less probable by their advantages, within a clipped ratio.

The ratio is that of the probabilities now and when the answer was drawn, clipped as in PPO (Schulman et al. 2017); of
each token, as in GRPO (Shao et al. 2024), or of the answer as a whole. At a ratio of 1 the gradient of the latter is
the policy gradient itself (Williams 1992). The distance to a reference is estimated per token by exp(q) - q - 1, where
q is the reference's log-probability minus the model's (Schulman 2020): its mean is the Kullback-Leibler divergence from
the model to the reference, and it is never negative. It is multiplied by the ratio, without which its gradient would
not be that of the divergence (as in DeepSeek-V3.2, 2025).

Letters: B answers, A tokens of the longest.
"""

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from palestra.config import Config, NonNegativeFloat, PositiveFloat
from palestra.models.model import WEIGHT, Terms
from palestra.text.models.losses.batch import Batch, mean_of_answer, sum_of_answer


class PolicyGradientConfig(Config):
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
