"""Estimates of means, shares and probabilities, with their confidence intervals."""

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import cache, lru_cache
from statistics import fmean, stdev
from typing import NamedTuple, Self

import torch
from torch import Tensor

from palestra.runtime.scores import Estimate as Estimate

Z95 = 1.959963984540054  # the 97.5th percentile of the normal distribution
_ENDS = torch.tensor([0.025, 0.975], dtype=torch.float64)  # of an interval of 95%


# ---- values that depend on each other ---------------------------------------------------------------------
#
# Games on one question, from one start or of one item may depend on each other. Estimates take `clusters`, int64 (n,):
# the number of each value's question, from 0 on. None: all values are independent. One cluster gives no interval.


def clusters_of(things: Iterable[Hashable]) -> Tensor | None:
    """Number the different ones of some things; None if no two are equal, of at least two."""
    numbers: dict[Hashable, int] = {}
    found = [numbers.setdefault(thing, len(numbers)) for thing in things]
    return None if 1 < len(numbers) == len(found) else torch.tensor(found, dtype=torch.int64)


def num_clusters(clusters: Tensor) -> int:
    return len(clusters.unique())


def sum_of_squares(residuals: Tensor, clusters: Tensor | None) -> float:
    """Estimate the variance of the sum of residuals (n,), whose expectation is 0; nan without two independent ones.

    It is the sum of the squares of the sums over clusters, of which there are G, times G / (G - 1) (the sandwich
    formula: Liang and Zeger 1986, "Longitudinal data analysis using generalized linear models").
    """
    sums = residuals.double()
    if clusters is not None:
        numbers = clusters.unique(return_inverse=True)[1]
        sums = sums.new_zeros(int(numbers.max()) + 1 if len(numbers) else 0).index_add_(0, numbers, sums)
    n = len(sums)
    return float(sums.square().sum()) / (n - 1) * n if n > 1 else math.nan


def estimate_mean(values: Tensor, clusters: Tensor | None = None) -> Estimate:
    """Estimate the mean of values (n,) with its normal 95% interval, which is infinite for one independent value."""
    n = len(values)
    if n == 0:
        return Estimate(math.nan, math.nan, math.nan)
    mean = float(values.double().mean())
    if clusters is not None:
        half = Z95 * math.sqrt(sum_of_squares(values.double() - mean, clusters)) / n
    else:
        half = Z95 * math.sqrt(float(values.double().var()) / n) if n > 1 else math.inf
    return Estimate(mean, mean - half, mean + half)


def estimate_mean_of_few(values: Sequence[float]) -> Estimate:
    """Estimate the mean of a few independent values, such as those of several seeds.

    The 95% interval is that of Student's t; it is infinite for one value. All is nan if a value is not finite.
    """
    n = len(values)
    if n == 0 or not all(map(math.isfinite, values)):
        return Estimate(math.nan, math.nan, math.nan)
    mean = fmean(values)
    half = _t_quantile(n - 1) * stdev(values) / math.sqrt(n) if n > 1 else math.inf
    return Estimate(mean, mean - half, mean + half)


@cache
def _t_quantile(degrees_of_freedom: int) -> float:
    """Return the 97.5% quantile of Student's t."""
    from scipy.special import stdtrit  # imported only here, because it takes a tenth of a second

    return float(stdtrit(degrees_of_freedom, 0.975))


class Share(NamedTuple):
    """A measure that is a share of games: `hits` of `games`.

    num: how many independent games would tell as much; None: all of them are independent.
    """

    hits: int
    games: int
    num: float | None = None

    @classmethod
    def of(cls, flags: Tensor, clusters: Tensor | None) -> Self:
        """Count flags, bool (n,)."""
        hits, games = int(flags.sum()), len(flags)
        return cls(hits, games, None if clusters is None else _independent(flags.double(), clusters))

    def estimate(self) -> Estimate:
        """Estimate the share with its 95% interval."""
        share = self.hits / self.games if self.games else math.nan
        return Estimate.of(share) if self.num == 0 else estimate_share(share, self.num or self.games)


def _independent(flags: Tensor, clusters: Tensor) -> float:
    """Return of how many independent flags a share would have the variance of this one; 0 with fewer than two clusters.

    If all flags are equal, it is the number of clusters (of unequal ones: Kish, Survey Sampling, 1965, section 8.2).
    """
    n = len(flags)
    share = float(flags.mean()) if len(flags) else 0.0
    sizes = clusters.unique(return_counts=True)[1]
    if len(sizes) < 2:
        return 0.0
    if share in (0.0, 1.0):
        return n**2 / float(sizes.square().sum())
    variance = sum_of_squares(flags - share, clusters) / n**2
    return min(share * (1 - share) / variance, n) if variance else n


def estimate_share(share: float, num: float) -> Estimate:
    """Estimate a share with its 95% score interval (Wilson 1927), which is never empty, even if none is a hit.

    num: of independent things, of which it is a share; of weighted ones the effective number. All is nan without any.
    """
    if num == 0 or math.isnan(share):
        return Estimate(math.nan, math.nan, math.nan)
    weight = Z95**2 / num
    middle = (share + weight / 2) / (1 + weight)
    half = math.sqrt(weight * (share * (1 - share) + weight / 4)) / (1 + weight)
    return Estimate(share, max(middle - half, 0.0), min(middle + half, 1.0))


def describe(values: Tensor, clusters: Tensor | None = None) -> dict[str, float]:
    """Describe the distribution of a quantity over games, values (n,).

    Returns its mean, standard deviation (with n - 1), minimum, maximum, median, and interquartile mean with its 95%
    bootstrap interval; nan if there are too few games.
    """
    names = ("mean", "std", "min", "max", "median", "iqm", "iqm_low", "iqm_high")
    n = len(values)
    if n == 0:
        return dict.fromkeys(names, math.nan)
    ranked = values.double().cpu().sort().values
    if clusters is None:
        resampled = ranked[_resampled_ranks(n)].mean(dim=1)
    else:
        resampled = _resampled_clusters(values.double().cpu(), clusters.cpu())
    std = ranked.std() if n > 1 else math.nan
    median = (ranked[(n - 1) // 2] + ranked[n // 2]) / 2
    iqm = interquartile_mean(ranked)
    interval = torch.quantile(resampled, _ENDS)
    figures = (ranked.mean(), std, ranked[0], ranked[-1], median, iqm, *interval)
    return {name: float(figure) for name, figure in zip(names, figures, strict=True)}


@lru_cache(maxsize=2)
def _resampled_ranks(n: int) -> Tensor:
    """Draw bootstrap resamples of n ranked games: the ranks of the middle half of each, in order.

    They are int64 (resamples, about n / 2). The gaps between sorted uniform numbers are exponential (Devroye 1986,
    chapter V), so nothing needs to be sorted, and all quantities of n games share the resamples. There are 1000 of them
    for up to 400 games, and 200 for many games, so that evaluations stay fast.
    """
    gaps = torch.empty(_num_draws(n), n + 1, dtype=torch.float64)
    sums = gaps.exponential_(generator=torch.Generator().manual_seed(0)).cumsum_(dim=1)  # in place: n may be large
    return sums[:, n // 4 : n - n // 4].div_(sums[:, -1:]).mul_(n).long().clamp_(max=n - 1)


def _num_draws(n: int) -> int:
    return min(max(400_000 // n, 200), 1000)


def _resampled_clusters(values: Tensor, clusters: Tensor) -> Tensor:
    """Return the interquartile means of bootstrap resamples of whole clusters, float64 (resamples,); nan of one."""
    n = len(values)
    numbers = clusters.unique(return_inverse=True)[1]
    num = int(numbers.max()) + 1
    if num < 2:
        return torch.tensor([math.nan], dtype=torch.float64)
    draws = torch.randint(num, (_num_draws(n), num), generator=torch.Generator().manual_seed(0))
    counts = torch.zeros(len(draws), num, dtype=torch.float64).scatter_add_(1, draws, torch.ones(draws.shape).double())
    order = values.argsort()
    weights = counts[:, numbers[order]]
    ends = weights.cumsum(dim=1)
    quarter = ends[:, -1:] / 4
    kept = (ends.clamp(max=3 * quarter) - (ends - weights).clamp(min=quarter)).clamp(min=0.0)
    return (kept * values[order]).sum(dim=1) / kept.sum(dim=1)


# ---- scores of several runs on several tasks (Agarwal et al. 2021, section 4) ----------------------------


def interquartile_mean(scores: Tensor) -> Tensor:
    """Return the mean of the scores without the lowest and the highest quarter (rounded down).

    scores: (..., n) with n >= 1; returns (...).
    """
    n = scores.shape[-1]
    return scores.sort(dim=-1).values[..., n // 4 : n - n // 4].mean(dim=-1)


def probability_of_improvement(ours: Tensor, theirs: Tensor) -> Tensor:
    """Return the probability that a run of ours scores higher than a run of theirs, over all pairs.

    Equal scores count half: it is the Mann-Whitney U statistic divided by the number of pairs. ours: (..., n); theirs:
    (..., m); returns (...).
    """
    difference = ours.unsqueeze(-1) - theirs.unsqueeze(-2)
    return ((difference > 0).double() + 0.5 * (difference == 0).double()).mean(dim=(-2, -1))


def estimate_interquartile_mean(scores: Sequence[Tensor], num_resamples: int, seed: int) -> Estimate:
    """Estimate the interquartile mean of all runs of all tasks, with its stratified bootstrap interval.

    scores: one tensor per task, (runs of the task,), on one scale. Runs are resampled within each task; the interval
    is the middle 95% of the values of `num_resamples` resamples. With one run per task it has no width.
    """
    if not any(len(task) for task in scores):
        return Estimate(math.nan, math.nan, math.nan)
    generator = torch.Generator().manual_seed(seed)
    resampled = torch.cat([_resampled(task, num_resamples, generator) for task in scores if len(task)], dim=1)
    value = interquartile_mean(torch.cat([task.double() for task in scores]))
    return _with_percentiles(value, interquartile_mean(resampled))


def interquartile_mean_curve(tracks: Tensor, num_resamples: int, seed: int, share: float) -> Tensor:
    """Estimate the interquartile mean of n runs at each of m steps, with its interval. tracks: (n, m), n >= 1.

    Runs are resampled as wholes; the interval is the middle `share` of the values of the resamples, at each step alone.
    Returns float64 (3, m): value, low, high. With one run the interval has no width.
    """
    generator = torch.Generator().manual_seed(seed)
    draws = torch.randint(len(tracks), (num_resamples, len(tracks)), generator=generator)
    by_step = tracks.double().T
    ends = torch.tensor([(1 - share) / 2, (1 + share) / 2], dtype=torch.float64)
    intervals = [torch.quantile(interquartile_mean(values[draws]), ends) for values in by_step]
    return torch.cat([interquartile_mean(by_step)[None], torch.stack(intervals, dim=1)])


def estimate_probability_of_improvement(
    pairs: Sequence[tuple[Tensor, Tensor]], num_resamples: int, seed: int
) -> Estimate:
    """Estimate the mean over tasks of the probability of improvement, with its stratified bootstrap interval.

    pairs: for each task the scores of our runs (n,) and of theirs (m,), n and m >= 1. Runs of both are resampled within
    each task.
    """
    if not pairs:
        return Estimate(math.nan, math.nan, math.nan)
    generator = torch.Generator().manual_seed(seed)
    value = torch.stack([probability_of_improvement(ours, theirs) for ours, theirs in pairs]).mean()
    resampled = [
        probability_of_improvement(*(_resampled(scores, num_resamples, generator) for scores in pair)) for pair in pairs
    ]
    return _with_percentiles(value, torch.stack(resampled).mean(dim=0))


def score_interval_of_improvement(value: float, n: int, m: int) -> tuple[float, float]:
    """Return the 95% score interval of a probability of improvement of n runs over m.

    Source: Newcombe 2006, "Confidence intervals for an effect size measure based on the Mann-Whitney statistic", part
    2, method 5. It has a width even if all runs of one side beat all of the other, when all resamples of a bootstrap
    are the same.
    """

    def is_within(truth: float) -> bool:
        spread = 1.0 + ((n + m) / 2 - 1) * ((1.0 - truth) / (2.0 - truth) + truth / (1.0 + truth))
        return abs(value - truth) <= Z95 * math.sqrt(max(truth * (1.0 - truth), 0.0) * spread / (n * m))

    return _last_within(is_within, value, 0.0), _last_within(is_within, value, 1.0)


def _last_within(is_within: Callable[[float], bool], inside: float, outside: float) -> float:
    """Find by bisection where an interval ends between a point in it and one that may be outside."""
    if is_within(outside):
        return outside
    for _ in range(50):
        middle = (inside + outside) / 2
        inside, outside = (middle, outside) if is_within(middle) else (inside, middle)
    return inside


def _resampled(scores: Tensor, num_resamples: int, generator: torch.Generator) -> Tensor:
    """Draw resamples of scores (n,), each n of them with replacement: float64 (num_resamples, n)."""
    return scores.double()[torch.randint(len(scores), (num_resamples, len(scores)), generator=generator)]


def _with_percentiles(value: Tensor, resampled: Tensor) -> Estimate:
    """Return a value with the middle 95% of its resampled values, (num_resamples,), as its interval."""
    return Estimate(float(value), *torch.quantile(resampled, _ENDS).tolist())
