"""The terms of losses by name: what is learned of them, and what is recorded."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from palestra.players.player import Metrics


def total_loss(terms: Mapping[str, Tensor]) -> Tensor:
    """The sum of the terms of a loss, in their order: of those whose names begin with `loss_`."""
    losses = [term for name, term in terms.items() if name.startswith("loss_")]
    if not losses:
        raise ValueError(f"expected a loss with at least one term named loss_*, got {sorted(terms)}")
    total = losses[0]
    for loss in losses[1:]:
        total = total + loss
    return total


def join_terms(by_role: Mapping[str, Mapping[str, Tensor]], weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The terms of a player's loss from those of each of its roles: their means, by the roles' shares of the rows.

    Of several roles also, to be recorded, each role's loss and its terms that do not begin with `loss_`, as NAME/ROLE.

    weights: by role, of all rows, 0.0 where they do not count for the role: float32 (M,).
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
    """The terms of a loss that are recorded and not learned: all those whose names do not begin with `loss_`."""
    return {name: term.detach() for name, term in terms.items() if not name.startswith("loss_")}


def mean_metrics(steps: Sequence[Metrics]) -> dict[str, Tensor]:
    """The means of the metrics of several opt steps: numbers, or tensors without axes, of the same names."""
    rows = [list(metrics.values()) for metrics in steps]
    if all(isinstance(value, float) for value in rows[0]):
        table = torch.tensor(rows)
    else:
        table = torch.stack([torch.stack([torch.as_tensor(value).float() for value in row]) for row in rows])
    return dict(zip(steps[0], table.mean(dim=0).unbind(), strict=True))
