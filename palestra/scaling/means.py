"""Means over replicas, added up in one binary tree, so that they have the same bits wherever they are computed."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor


class LockstepError(Exception):
    """Replicas of one run do not do the same. The message says what each of them does."""


def told_apart(told: Sequence[str], noun: str) -> LockstepError:
    """Make the error for exchanges that differ. told: what each exchanges, in their order. noun: what they are."""
    by: dict[str, list[str]] = {}
    for place, what in enumerate(told):
        by.setdefault(what, []).append(str(place))
    got = (f"{what} by {noun}{'s' if len(places) > 1 else ''} {', '.join(places)}" for what, places in by.items())
    return LockstepError(f"expected the same exchange by all replicas, got {', '.join(got)}")


def tree_sum(values: Sequence[Tensor]) -> Tensor:
    """Add up tensors of one shape in a binary tree. Their number is a power of two."""
    while len(values) > 1:
        values = [one + other for one, other in zip(values[::2], values[1::2], strict=True)]
    return values[0]


class Share:
    """What one replica brings to a mean. Arguments as for `Replica.mean`."""

    def __init__(self, gradient: Tensor, metrics: Mapping[str, Any], weight: Tensor | float | None) -> None:
        self.gradient, self.metrics = gradient, metrics
        self.weight = None if weight is None else torch.as_tensor(weight, dtype=torch.float64).sum().to(gradient.device)

    @cached_property
    def is_absent(self) -> bool:
        """Whether it does not count. Waits for a GPU."""
        return self.weight is not None and not bool(self.weight)

    @cached_property
    def numbers(self) -> dict[str, Tensor]:
        """The metrics of which there is a mean, float64 () each."""
        return {
            name: torch.as_tensor(value, dtype=torch.float64, device=self.gradient.device).detach()
            for name, value in self.metrics.items()
            if isinstance(value, float | int) or (isinstance(value, Tensor) and value.ndim == 0)
        }


class Part(NamedTuple):
    """What several replicas bring to a mean, added up.

    is_present: whether one of them counts. names: those of the metrics. numbers: float64 (1 + metrics,), the sum of the
    weights and those of the weighted metrics. gradient: the sum of the weighted gradients.
    """

    is_present: bool
    names: list[str]
    numbers: Tensor
    gradient: Tensor


def mean_of(
    shares: Sequence[Share], over_processes: Callable[[Part], Part] = lambda part: part
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the mean of gradients and of metrics, weighted; zeros if nobody counts.

    over_processes: adds a part to those of the run's other processes, if there are any. Raises LockstepError if
    those that count have other metrics or gradients of other shapes.
    """
    part = over_processes(part_of(shares))
    total = part.numbers[0]
    inverse = torch.where(total > 0, 1.0 / total, 0.0)
    gradient, numbers = part.gradient * inverse.to(part.gradient.dtype), part.numbers[1:] * inverse
    return gradient, dict(zip(part.names, numbers.unbind(), strict=True))


def part_of(shares: Sequence[Share]) -> Part:
    """Add up the shares of replicas. Raises LockstepError as `mean_of`."""
    shape = shares[0].gradient.shape
    if any(share.gradient.shape != shape for share in shares):
        shapes = ", ".join(str(tuple(share.gradient.shape)) for share in shares)
        raise LockstepError(f"expected gradients of one shape, got {shapes}")
    names = common_names([(not share.is_absent, list(share.numbers)) for share in shares])
    numbers, gradients = zip(*(_column(share, names) for share in shares), strict=True)
    return Part(any(not share.is_absent for share in shares), names, tree_sum(numbers), tree_sum(gradients))


def common_names(told: Sequence[tuple[bool, list[str]]]) -> list[str]:
    """Return the names of metrics that all have in common who count; those of the first if nobody does.

    told: of each, whether it counts, and its names. Raises LockstepError where they differ.
    """
    present = [names for counts, names in told if counts] or [told[0][1]]
    if any(names != present[0] for names in present):
        raise LockstepError(
            f"expected the same metrics, got {'; '.join(', '.join(each) or 'none' for each in present)}"
        )
    return present[0]


def _column(share: Share, names: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Return a share as tensors that are ready to be added up: the weight with the numbers, and the gradient."""
    device = share.gradient.device
    if share.is_absent:
        zeros = torch.zeros(1 + len(names), dtype=torch.float64, device=device)
        return zeros, torch.zeros_like(share.gradient)
    weight = torch.ones((), dtype=torch.float64, device=device) if share.weight is None else share.weight
    numbers = torch.stack([torch.ones_like(weight), *share.numbers.values()])
    if share.weight is None:
        return numbers, share.gradient
    return numbers * weight, share.gradient * weight.to(share.gradient.dtype)
