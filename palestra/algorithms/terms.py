"""The terms of losses by name: those named `loss_*` add up to the loss, the others are recorded."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from palestra.players.player import Metrics


def total_loss(terms: Mapping[str, Tensor]) -> Tensor:
    """Return the sum of the terms named `loss_*`, in their order."""
    losses = [term for name, term in terms.items() if name.startswith("loss_")]
    if not losses:
        raise ValueError(f"expected a loss with at least one term named loss_*, got {sorted(terms)}")
    total = losses[0]
    for loss in losses[1:]:
        total = total + loss
    return total


def join_terms(by_role: Mapping[str, Mapping[str, Tensor]], weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the means over a player's roles of the terms of its loss, each role weighted by its share of the rows.

    If there are several roles, each role's loss and its recorded terms are added as NAME/ROLE.

    weights: by role, the weight of every row, 0.0 where a row does not count for the role: float32 (M,).
    """
    first, *others = by_role
    if not others:
        return dict(by_role[first])
    nums = {role: of_role.sum() for role, of_role in weights.items()}
    total = torch.stack(list(nums.values())).sum().clamp(min=1.0)
    joined = {name: nums[first] / total * term for name, term in by_role[first].items()}
    for role in others:
        joined = {name: term + nums[role] / total * by_role[role][name] for name, term in joined.items()}
    for role, terms in by_role.items():
        recorded = {"loss": total_loss(terms).detach(), **metrics_of(terms)}
        joined |= {f"{name}/{role}": term for name, term in recorded.items()}
    return joined


def metrics_of(terms: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the terms that are recorded and not learned: those not named `loss_*`."""
    return {name: term.detach() for name, term in terms.items() if not name.startswith("loss_")}


def mean_metrics(steps: Sequence[Metrics]) -> dict[str, Tensor]:
    """Return the means of the metrics of several opt steps: floats, or tensors without axes, of the same names."""
    rows = [list(metrics.values()) for metrics in steps]
    if all(isinstance(value, float) for value in rows[0]):
        table = torch.tensor(rows)
    else:
        table = torch.stack([torch.stack([torch.as_tensor(value).float() for value in row]) for row in rows])
    return dict(zip(steps[0], table.mean(dim=0).unbind(), strict=True))
