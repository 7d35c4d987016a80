"""rho, the score of the game of host and agent: of the rounds that are played, the share that ends a game."""

import math

from torch import Tensor

from palestra.runtime.scores import DeclaredScore, declared_returns
from palestra.runtime.statistics import Z95, Estimate, num_clusters, sum_of_squares

HOST, AGENT = ROLES = ("host", "agent")
SCORES = (
    DeclaredScore(
        name="rho",
        meaning="games that the host has ended by the rules, divided by rounds played",
        unit="share",
        high_for=(HOST,),
        low_for=(AGENT,),
        shown=True,
    ),
    *declared_returns(ROLES, zero_sum=False, shown=False),
)


def estimate_rho(finished: Tensor, lengths: Tensor, clusters: Tensor | None = None) -> Estimate:
    """Estimate rho = games finished / rounds played, over games that may have equal starts (`clusters`).

    finished: bool (n,); lengths: rounds played (n,), all >= 1.

    A ratio of two sums: the interval is the delta method's (Cochran 1977, section 6.3), with residuals f_i - rho * l_i.
    It is clipped to [0, 1]. If no game finished, the residuals are all zero, and the upper end is that of a Poisson
    count of zero, 3.69 / steps (97.5%).
    """
    n, steps = len(lengths), float(lengths.double().sum())
    if n == 0 or steps == 0.0:
        return Estimate(math.nan, math.nan, math.nan)
    num_finished = float(finished.sum())
    rho = num_finished / steps
    if num_finished == 0.0:
        independent = 1.0 if clusters is None else num_clusters(clusters) / n
        return Estimate(0.0, 0.0, min(3.688879454113936 / (steps * independent), 1.0))
    if n == 1:
        return Estimate(rho, 0.0, 1.0)
    half = Z95 * math.sqrt(sum_of_squares(finished.double() - rho * lengths.double(), clusters)) / steps
    return Estimate(rho, max(rho - half, 0.0), min(rho + half, 1.0))
