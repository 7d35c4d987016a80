"""The mean of a gradient over the replicas of a run, each of which has computed it from a batch of its own.

Letters: P weights of all vectors; W of them as the model has them, each a tensor.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from palestra.models.groups import Vector
from palestra.models.model import Terms
from palestra.randomness import restored_torch_states


class Mean(Protocol):
    """What a learner uses of its place among replicas (palestra.scaling.replica.Replica.mean)."""

    def __call__(
        self, gradient: Tensor, metrics: Mapping[str, Any], weight: Tensor | float | None = None
    ) -> tuple[Tensor, dict[str, Any]]: ...


def joined(tensors: Sequence[Tensor]) -> Tensor:
    """Return all numbers of some tensors as one vector: float32, or float64 if a tensor is."""
    dtype = torch.float32
    for each in tensors:
        dtype = torch.promote_types(dtype, each.dtype)
    return torch.cat([each.detach().flatten().to(dtype) for each in tensors])


def take_mean(mean: Mean, vectors: Sequence[Vector], terms: Terms, weight: Tensor | float) -> Terms:
    """Give vectors the mean of their gradients over replicas, and return that of the terms.

    weight: of this replica. A weight that a term reaches in any replica counts as reached in all. What is drawn from
    the global generators afterwards does not depend on what other replicas have drawn meanwhile.
    """
    gradients, flags = (
        [vector.gradient for vector in vectors],
        [each for vector in vectors for each in vector.unreached],
    )
    reached = torch.tensor(flags, device=gradients[0].device).logical_not()
    with restored_torch_states():
        found, terms = mean(joined([*gradients, reached]), terms, weight)  # (P + W,)
    *parts, shares = found.split([*map(len, gradients), len(flags)])
    are_unreached = iter((shares == 0).tolist())
    for vector, part in zip(vectors, parts, strict=True):
        vector.gradient.copy_(part)
        vector.unreached = [next(are_unreached) for _ in vector.parameters]
    return terms
