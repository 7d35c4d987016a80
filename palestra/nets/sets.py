"""Sets as networks compute with them: the members of a batch of sets, and what a set has of its members.

On a CPU the members lie packed, one set after another: networks compute as many rows as there are members, and not as
many places as the largest set of a batch fills. A GPU would have to wait to learn how many there are, and graphs
(torch.compile, export) need fixed shapes: there sets stay padded, and absent places are left out where a set is pooled.
Both layouts have the same methods and agree up to rounding, so a network is written once.

Letters: B sets, N places of a set, n numbers of a member, P members of all sets, k and d features.
"""

from typing import Any, cast

import torch
from torch import Tensor

from palestra.nets.kernels import sets as kernel
from palestra.randomness import runs_on_cpu


def make_sets(points: Tensor) -> "PackedSets | PaddedSets":
    """The sets in points (B, N, n), of which rows with a negative number are absent."""
    return PackedSets(points) if runs_on_cpu(points) else PaddedSets(points)


class PackedSets:
    """Sets whose members lie one after another. members: (P, n)."""

    def __init__(self, points: Tensor) -> None:
        places, sets, starts = map(torch.from_numpy, kernel.find_members(points.detach().numpy()))
        self.members = points.flatten(0, 1).index_select(0, places)
        self.set_of_member, self.starts = sets, starts

    def spread(self, entries: Tensor) -> Tensor:
        """What each set has, given to each of its members: (B, k) to (P, k)."""
        return entries.index_select(0, self.set_of_member)

    def clear_absent(self, rows: Tensor) -> Tensor:
        """Zeros in the places without a member. Here there are none."""
        return rows

    def minimum(self, rows: Tensor) -> Tensor:
        """The least number of each column over the members of a set: (P, k) to (B, k); 0 without members."""
        return -self.pool(-rows)[:, : rows.shape[1]]  # segment_reduce has wrong gradients where several are least

    def pool(self, features: Tensor) -> Tensor:
        """The maximum and the mean of each feature over the members of a set: (P, d) to (B, 2 d); 0 without members."""
        if features.requires_grad and torch.is_grad_enabled():
            return cast(Tensor, _Pool.apply(features, self.starts))
        return _pool(features, self.starts)


class PaddedSets:
    """Sets in places that are all computed.

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
        highest = torch.where(self.present, features, -torch.inf).amax(1)
        return highest.masked_fill(self.num_members == 0, 0.0)


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
