"""Scores of a model on a data set: weighted means over all of its items, with 95% intervals; never means of means.

Letters: B items of a batch; N items of the set.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from palestra.models.gradients import TermsError
from palestra.models.model import WEIGHT
from palestra.runtime.scores import DeclaredScore, Estimate
from palestra.runtime.statistics import Z95, estimate_share, sum_of_squares

NUM_EXTREMES = 8  # items that a record names as the best, and as the worst
ROUNDING = 1e-3  # by which the share of an item may be below 0 or above 1


class ItemScores:
    """Collects the numbers of items, batch by batch.

    declared: the scores that the model declares. clusters: which items of the set are equal; None: no two.
    """

    def __init__(self, declared: Sequence[DeclaredScore], clusters: Tensor | None = None) -> None:
        self.declared, self.clusters = declared, clusters
        self.values: dict[str, list[Tensor]] = {score.name: [] for score in declared}
        self.weights: list[Tensor] = []

    def add(self, numbers: Mapping[str, Tensor], size: int) -> None:
        """Add the numbers of a batch of `size` items, by score; `weight` says how much each counts.

        Raises TermsError for a declared score that is missing, for one, or a weight, that is not per item, for a share
        that is not between 0 and 1, and for a weight below 0.
        """
        if not isinstance(numbers, Mapping):
            raise TermsError(f"expected a dict of tensors from evaluation_step, got {type(numbers).__name__}")
        for score in self.declared:
            if score.name not in numbers:
                known = ", ".join(numbers) or "none"
                raise TermsError(f"expected the declared score {score.name!r} from evaluation_step, got {known}")
            values = _per_item(numbers[score.name], f"the score {score.name!r}", size)
            if score.is_share and bool((outside := (values < -ROUNDING) | (values > 1 + ROUNDING)).any()):
                expected = f"expected numbers between 0 and 1 as the score {score.name!r}, whose unit is share"
                raise TermsError(f"{expected}, got {values[outside][0]:g}")
            self.values[score.name].append(values)
        given = torch.ones(size) if numbers.get(WEIGHT) is None else numbers[WEIGHT]
        weight = _per_item(given, entry := f"the entry {WEIGHT!r} of evaluation_step", size)
        if not bool((weight >= 0).all()):
            raise TermsError(f"expected numbers >= 0 as {entry}, got {weight[~(weight >= 0)][0]:g}")
        self.weights.append(weight)

    def estimates(self) -> dict[str, Estimate]:
        """Return the weighted mean of each score over all items, with its 95% interval."""
        weight = torch.cat(self.weights) if self.weights else torch.zeros(0, dtype=torch.float64)
        found = {score: torch.cat(values) for score in self.declared if (values := self.values[score.name])}
        return {
            score.name: (share_estimate if score.is_share else weighted_estimate)(values, weight, self.clusters)
            for score, values in found.items()
        }

    def extremes(self) -> dict[str, Any]:
        """Return the items with the best and the worst loss, or first score: each as its index and its number.

        Where a score says of each item whether it is right, 1, or wrong, 0, the worst are among the wrong ones.
        """
        score = next((each for each in self.declared if each.name == "loss"), self.declared[0])
        values = torch.cat(self.values[score.name])
        order = (-values if score.high_for else values).argsort(stable=True)  # what is nan comes last
        shares = (torch.cat(self.values[each.name]) for each in self.declared if each.is_share and each.high_for)
        hits = next((share for share in shares if bool(((share == 0) | (share == 1)).all())), torch.zeros(len(values)))
        best, worst = order[:NUM_EXTREMES], order.flip(0)
        worst = worst[hits[worst] == 0][:NUM_EXTREMES]
        pairs = [[[int(item), float(values[item])] for item in items] for items in (best, worst)]
        return {"score": score.name, "best": pairs[0], "worst": pairs[1]}


def _per_item(value: Any, what: str, size: int) -> Tensor:
    if not isinstance(value, Tensor) or value.shape != (size,):
        got = tuple(value.shape) if isinstance(value, Tensor) else f"a {type(value).__name__}"
        raise TermsError(f"expected one number per item, ({size},), as {what}, got {got}")
    return value.detach().double().cpu()


def weighted_estimate(values: Tensor, weight: Tensor, clusters: Tensor | None = None) -> Estimate:
    """Estimate a weighted mean of values (N,), with the normal 95% interval of a ratio of two sums.

    Its variance is that of the linearised ratio (Cochran, Sampling Techniques, 1977, section 2.11); with equal weights
    it is the variance of the mean. The interval of one value is infinite. clusters: values are independent between
    these alone; None: all are.
    """
    total, num = float(weight.sum()), len(values)
    if num == 0 or total == 0.0:
        return Estimate(math.nan, math.nan, math.nan)
    mean = float((values * weight).sum()) / total
    if num == 1:
        return Estimate(mean, -math.inf, math.inf)
    residuals = weight * (values - mean)
    alone = float(residuals.square().sum()) * num / (num - 1)
    squares = alone if clusters is None else sum_of_squares(residuals, clusters)
    half = Z95 * math.sqrt(squares) / total
    return Estimate(mean, mean - half, mean + half)


def share_estimate(values: Tensor, weight: Tensor, clusters: Tensor | None = None) -> Estimate:
    """Estimate a weighted mean of values between 0 and 1, (N,), with a 95% interval that stays there.

    If every value is 0 or 1, it is Wilson's interval of a share, with (sum of w)^2 / sum of w^2 as the number of items
    (Kish, Survey Sampling, 1965, section 11.7); otherwise the interval of a weighted mean, cut off at 0 and 1.
    clusters: as for `weighted_estimate`; with some, Wilson's interval is that of as many items as would tell as much.
    """
    found = weighted_estimate(values, weight, clusters)
    if clusters is not None and not math.isnan(found.half) and bool(((values == 0) | (values == 1)).all()):
        sizes = torch.zeros(int(clusters.max()) + 1, dtype=torch.float64).index_add_(0, clusters, weight)
        most, variance = float(weight.sum()) ** 2 / float(sizes.square().sum()), (found.half / Z95) ** 2
        return estimate_share(found.value, found.value * (1 - found.value) / variance if variance else most)
    if clusters is not None and math.isnan(found.half):
        return found
    if bool(((values == 0) | (values == 1)).all()):
        squares = float(weight.square().sum())
        return estimate_share(found.value, float(weight.sum()) ** 2 / squares if squares else 0.0)
    return found if math.isnan(found.value) else Estimate(found.value, max(found.low, 0.0), min(found.high, 1.0))
