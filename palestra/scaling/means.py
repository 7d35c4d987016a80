"""Means over replicas, added up in one binary tree, so that they have the same bits wherever they are computed."""

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from palestra.players.player import Metrics


class LockstepError(Exception):
    """Replicas of one run do not do the same. The message says what each of them does."""


def tree_sum(values: Sequence[Tensor]) -> Tensor:
    """Add up tensors of one shape in a binary tree. Their number is a power of two."""
    while len(values) > 1:
        values = [one + other for one, other in zip(values[::2], values[1::2], strict=True)]
    return values[0]


class Share:
    """What one replica brings to a mean. Arguments as for `Replica.mean`."""

    def __init__(self, gradient: Tensor, metrics: Metrics, weight: Tensor | float | None) -> None:
        self.gradient, self.metrics = gradient, metrics
        self.weight = None if weight is None else torch.as_tensor(weight, dtype=torch.float64).sum().to(gradient.device)

    @cached_property
    def is_absent(self) -> bool:
        """Whether it does not count. Waits for a GPU."""
        return self.weight is not None and not bool(self.weight)

    @cached_property
    def numbers(self) -> dict[str, Tensor]:
        """The metrics of which there is a mean, float64 () each."""
        found = {}
        for name, value in self.metrics.items():
            if isinstance(value, float | int) or (isinstance(value, Tensor) and value.ndim == 0):
                found[name] = torch.as_tensor(value, dtype=torch.float64, device=self.gradient.device).detach()
        return found


class _Column(NamedTuple):
    gradient: Tensor
    numbers: Tensor
    weight: Tensor


def mean_of(shares: Sequence[Share]) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the mean of gradients and of metrics, weighted; zeros if nobody counts.

    Raises LockstepError if those that count have other metrics or gradients of other shapes.
    """
    present = [share for share in shares if not share.is_absent] or shares[:1]
    names, shape = list(present[0].numbers), present[0].gradient.shape
    for share in present:
        if list(share.numbers) != names or share.gradient.shape != shape:
            told = "; ".join(f"{tuple(s.gradient.shape)} with {', '.join(s.numbers) or 'none'}" for s in present)
            raise LockstepError(f"expected gradients of one shape, with the same metrics, got {told}")
    columns = [_column(share, names) for share in shares]
    total = tree_sum([column.weight for column in columns])
    parts = tree_sum([column.gradient for column in columns]), tree_sum([column.numbers for column in columns])
    inverse = torch.where(total > 0, 1.0 / total, 0.0)
    gradient, numbers = parts[0] * inverse.to(parts[0].dtype), parts[1] * inverse
    return gradient, dict(zip(names, numbers.unbind(), strict=True))


def _column(share: Share, names: Sequence[str]) -> _Column:
    """Return a share as tensors that are ready to be added up."""
    device = share.gradient.device
    if share.is_absent:
        zeros = torch.zeros(len(names), dtype=torch.float64, device=device)
        return _Column(torch.zeros_like(share.gradient), zeros, zeros.new_zeros(()))
    weight = torch.ones((), dtype=torch.float64, device=device) if share.weight is None else share.weight
    numbers = torch.stack(list(share.numbers.values())) if names else torch.zeros(0, dtype=torch.float64, device=device)
    if share.weight is None:
        return _Column(share.gradient, numbers, weight)
    return _Column(share.gradient * weight.to(share.gradient.dtype), numbers * weight, weight)
