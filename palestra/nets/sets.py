"""Batches of sets, packed or padded, with the operations that networks need on their members.

On a CPU the members are packed, one set after another, so that networks compute a row for every member, and not for
every place up to the size of the largest set. A GPU would have to wait to learn how many members there are, and graphs
(torch.compile, export) need fixed shapes: there sets stay padded, and pooling ignores absent places. Both layouts have
the same methods and agree up to rounding, so a network is written once.

Letters: B sets, N places of a set, n numbers of a member, P members of all sets, k and d features.
"""

from typing import Any, cast

import torch
from torch import Tensor

from palestra.nets.kernels import sets as kernel
from palestra.randomness import runs_on_cpu


def make_sets(points: Tensor) -> "PackedSets | PaddedSets":
    """Make the sets of points (B, N, n), of which rows with a negative number are absent."""
    return PackedSets(points) if runs_on_cpu(points) else PaddedSets(points)


class PackedSets:
    """Sets whose members lie one after another. members: (P, n)."""

    def __init__(self, points: Tensor) -> None:
        places, sets, starts = map(torch.from_numpy, kernel.find_members(points.detach().numpy()))
        self.members = points.flatten(0, 1).index_select(0, places)
        self.set_of_member, self.starts = sets, starts

    def spread(self, entries: Tensor) -> Tensor:
        """Give each member the entries of its set: (P, k) of (B, k)."""
        return entries.index_select(0, self.set_of_member)

    def clear_absent(self, rows: Tensor) -> Tensor:
        """Set places without a member to zeros; a packed set has none."""
        return rows

    def minimum(self, rows: Tensor) -> Tensor:
        """Return the least number of each column over the members of a set: (B, k) of (P, k); 0 without members."""
        return -self.pool(-rows)[:, : rows.shape[1]]  # segment_reduce has wrong gradients where several are least

    def pool(self, features: Tensor) -> Tensor:
        """Return each feature's maximum and mean over the members of a set: (B, 2 d) of (P, d); 0 without members."""
        if features.requires_grad and torch.is_grad_enabled():
            return cast(Tensor, _Pool.apply(features, self.starts))
        return _pool(features, self.starts)


class PaddedSets:
    """Sets of which all places are computed, also absent ones.

    members: (B, N, n), 0 in absent places; rows and features are (B, N, ...) where those of PackedSets are (P, ...).
    """

    def __init__(self, points: Tensor) -> None:
        self.present = (points.amin(-1) >= 0).unsqueeze(-1)
        self.num_members = self.present.sum(1)
        self.members = self.clear_absent(points)

    def spread(self, entries: Tensor) -> Tensor:
        return entries.unsqueeze(1).expand(-1, self.present.shape[1], -1)

    def clear_absent(self, rows: Tensor) -> Tensor:
        return torch.where(self.present, rows, 0.0)

    def minimum(self, rows: Tensor) -> Tensor:
        return -self._maximum(-rows)

    def pool(self, features: Tensor) -> Tensor:
        mean = self.clear_absent(features).sum(1) / self.num_members.clamp(min=1)
        return torch.cat([self._maximum(features), mean], dim=-1)

    def _maximum(self, features: Tensor) -> Tensor:
        return torch.where(self.present, features, -torch.inf).amax(1).masked_fill(self.num_members == 0, 0.0)


def _pool(features: Tensor, starts: Tensor) -> Tensor:
    pooled = features.new_empty(len(starts) - 1, 2 * features.shape[1])
    kernel.pool(features.detach().numpy(), starts.numpy(), pooled.numpy())
    return pooled


class _Pool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, features: Tensor, starts: Tensor) -> Tensor:
        pooled = _pool(features, starts)
        ctx.save_for_backward(features, starts, pooled)
        return pooled

    @staticmethod
    def backward(ctx: Any, output_grads: Tensor) -> tuple[Tensor, None]:
        features, starts, pooled = ctx.saved_tensors
        gradient = torch.empty_like(features)
        tensors = (output_grads.contiguous(), features, starts, pooled, gradient)
        kernel.pool_backward(*(tensor.numpy() for tensor in tensors))
        return gradient, None
