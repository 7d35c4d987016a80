"""Figures of merit with their uncertainty."""

import math
from dataclasses import dataclass

from torch import Tensor

Z95 = 1.959963984540054  # the 97.5th percentile of the normal distribution


@dataclass(frozen=True)
class Estimate:
    """A value and its 95% interval. All three are nan where there is nothing to estimate from."""

    value: float
    low: float
    high: float


def estimate_mean(values: Tensor) -> Estimate:
    """The mean of independent values (n,) with its normal 95% interval; the interval of one value is infinite."""
    n = len(values)
    if n == 0:
        return Estimate(math.nan, math.nan, math.nan)
    mean = float(values.double().mean())
    half = Z95 * math.sqrt(float(values.double().var()) / n) if n > 1 else math.inf
    return Estimate(mean, mean - half, mean + half)


def estimate_rho(finished: Tensor, lengths: Tensor) -> Estimate:
    """rho = games finished / steps played, over independent games. finished: bool (n,); lengths: rounds played (n,),
    all >= 1.

    A ratio of two sums: the interval is the delta method's (Cochran 1977, section 6.3), with residuals f_i - rho *
    l_i. It is cut to [0, 1]. Where no game finished, the residuals say nothing and the upper end is that of a Poisson
    count of zero, 3.69 / steps (97.5%).
    """
    n, steps = len(lengths), float(lengths.double().sum())
    if n == 0 or steps == 0.0:
        return Estimate(math.nan, math.nan, math.nan)
    num_finished = float(finished.sum())
    rho = num_finished / steps
    if num_finished == 0.0:
        return Estimate(0.0, 0.0, min(3.688879454113936 / steps, 1.0))
    if n == 1:
        return Estimate(rho, 0.0, 1.0)
    residuals = finished.double() - rho * lengths.double()
    half = Z95 * math.sqrt(float((residuals**2).sum()) / (n - 1) * n) / steps
    return Estimate(rho, max(rho - half, 0.0), min(rho + half, 1.0))
