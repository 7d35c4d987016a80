"""The opt steps of a model that several replicas of a run learn in lockstep, each from batches of its own."""

import math
from typing import Any

import torch
from torch import Tensor

from palestra.models.learning import Learner
from palestra.models.means import joined
from palestra.models.model import Model, Terms
from palestra.scaling.replica import Replica
from palestra.training.checks import TrainingFailed


class ModelReplicas:
    """What the replica of a model does together with the others in an opt step; alone, it does nothing.

    Between `begin` and `end` the learner takes part in the mean of each gradient. Then the statistics of batch norm,
    and whatever else changes in the model's buffers, get the mean of their changes; so a buffer that is constant keeps
    its bits. own_step: the name of a step of the user's own, whose terms are this replica's; None: the learner makes
    it, and its terms are means already.
    """

    def __init__(self, replica: Replica, model: Model, learner: Learner, own_step: str | None) -> None:
        self.replica, self.model, self.learner, self.own_step = replica, model, learner, own_step
        self._num_means, self._before = 0, torch.zeros(0, device=learner.device)
        if not replica.is_alone:
            learner.mean = replica.mean

    def begin(self, num_items: int) -> None:
        """Begin an opt step. num_items: of this replica's batch, as which it counts in means."""
        self.learner.num_items, self.learner.own_loss = num_items, None
        if not self.replica.is_alone:
            self._num_means = self.replica.num_means
            if buffers := self._buffers():
                self._before = joined(buffers)

    @torch.no_grad()
    def end(self, terms: Terms) -> Terms:
        """Return the means of the terms of a step over replicas. Raises TrainingFailed for one without the others."""
        if self.replica.is_alone:
            return terms
        if self.replica.num_means == self._num_means:
            expected = "expected steps by `self.learner.opt_step(batch)` or `self.learner.step(loss, weights)`"
            raise TrainingFailed(f"{self.own_step} has made an opt step without the other replicas; {expected}")
        buffers, own = self._buffers(), {} if self.own_step is None else terms
        if not own and not buffers:
            return terms
        before = self._before
        now = joined(buffers) if buffers else before
        changes = torch.where(now == before, 0.0, now - before)  # infinities stay, too
        change, means = self.replica.mean(changes, own, self.learner.num_items)
        for buffer, value in zip(buffers, (before + change).split([each.numel() for each in buffers]), strict=True):
            buffer.copy_(value.view_as(buffer))
        return terms | means

    def _buffers(self) -> list[Tensor]:
        """Return the model's buffers that are numbers."""
        return [each for each in self.model.buffers() if each.is_floating_point()]

    def first_not_finite(self, own_loss: Any, key: Any) -> Any:
        """Return the key of the first replica whose own loss was no finite number, where the mean was none.

        To be called by all replicas. Returns this replica's key if each was finite.
        """
        told = self.replica.each("whose loss is no finite number", (math.isfinite(float(own_loss)), key))
        return next((each for is_finite, each in told if not is_finite), key)
