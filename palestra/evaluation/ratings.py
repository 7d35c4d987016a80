"""Ratings of players from the results of pairings, on the scale of Elo."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

SCALE = 400 / math.log(10)  # 400 points are odds of ten to one
MAX_STEPS = 100
PRECISION = 1e-9  # of log odds
MOST_LOG_ODDS = 25.0  # beyond what any number of games can tell: they grow without end
LEAST_WEIGHT = 1e-9
NUM_RESAMPLES, SEED = 1000, 0

Seat = tuple[str, str]  # role, player


def rate(pairs: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]] | None:
    """Rate every player in its role by the pairs of an evaluation in a game of two roles: {role: {player: rating}}.

    The mean of the ratings is 0. None if the pairs do not determine them.

    The model is Bradley and Terry's (1952): the first wins a contest with odds e^(its strength - the other's); the
    strengths are the maximum likelihood estimates. They exist if and only if no group of players has won, or lost, all
    contests with the rest (Ford 1957). The game says what a contest is (TensorGame.wins).
    """
    results = [result for pair in pairs if (result := _result(pair)) is not None]
    seats = sorted({seat for first, second, _, _ in results for seat in (first, second)})
    if len(seats) < 3 or not _is_determined(seats, results):
        return None
    strengths = SCALE * _strengths(seats, results)
    ratings: dict[str, dict[str, float]] = {}
    for (role, player), rating in zip(seats, strengths.tolist(), strict=True):
        ratings.setdefault(role, {})[player] = rating
    return ratings


Result = tuple[Seat, Seat, float, float]  # who met whom, contests that the first won, contests


def _result(pair: Mapping[str, Any]) -> Result | None:
    if len(pair["players"]) != 2 or not pair["contests"]:
        return None
    first, second = pair["players"].items()
    return first, second, pair["won"][first[0]] * pair["contests"], float(pair["contests"])


def _is_determined(seats: Sequence[Seat], results: Sequence[Result]) -> bool:
    """Tell whether the results determine ratings: the graph of wins is strongly connected.

    That is, along wins every seat is reached from every other one.
    """
    from scipy.sparse.csgraph import connected_components  # imported only here, because it takes long

    has_won = np.zeros((len(seats), len(seats)), dtype=bool)
    for first, second, wins, contests in results:
        has_won[seats.index(first), seats.index(second)] |= wins > 0
        has_won[seats.index(second), seats.index(first)] |= wins < contests
    return bool(connected_components(has_won, connection="strong", return_labels=False) == 1)


def _strengths(seats: Sequence[Seat], results: Sequence[Result]) -> torch.Tensor:
    """Find the maximum likelihood strengths, with mean 0; float64 (seats,)."""
    sides = torch.zeros(len(results), len(seats), dtype=torch.float64)
    for row, (first, second, _, _) in enumerate(results):
        sides[row, seats.index(first)], sides[row, seats.index(second)] = 1.0, -1.0
    wins, contests = (torch.tensor([[result[i] for result in results]], dtype=torch.float64) for i in (2, 3))
    return _fit(sides, len(seats), wins, contests)[0][0]


# ---- one rating for each player, over both roles -----------------------------------------------------------


class Meeting(NamedTuple):
    """The games of a pairing of two roles.

    players: role -> player. wins: the contests that each role has won in each game, (n,). clusters: of
    palestra.runtime.statistics, the games that depend on each other.
    """

    players: Mapping[str, str]
    wins: Mapping[str, torch.Tensor]
    clusters: torch.Tensor | None


def rate_over_roles(meetings: Sequence[Meeting]) -> dict[str, dict[str, dict[str, float | None]]] | None:
    """Rate every player by one number over both roles, and the lead that the first role gives.

    The first player wins a contest with odds e^(lead + its strength - the other's): a logistic regression. Returns
    {"players": {player: rating}, "roles": {first role: lead}}, each with `rating` and the ends `low` and `high` of its
    95% interval by a bootstrap of games, or of whole clusters. The mean of the players' ratings is 0. None if the games
    do not determine them: the players must meet in both roles. An end is None if one in twenty resamples does not.
    """
    meetings = [
        each for each in meetings if len(each.players) == 2 and any(bool(won.any()) for won in each.wins.values())
    ]
    names = sorted({name for each in meetings for name in each.players.values()})
    if len(names) < 2:
        return None
    sides = torch.zeros(len(meetings), len(names) + 1, dtype=torch.float64)
    sides[:, -1] = 1.0
    for row, each in zip(sides, meetings, strict=True):
        for name, sign in zip(each.players.values(), (1.0, -1.0), strict=True):
            row[names.index(name)] += sign
    if int(torch.linalg.matrix_rank(sides)) < len(names):
        return None
    generator = np.random.default_rng(SEED)
    won = torch.stack([_resampled(each, generator) for each in meetings], dim=1)  # (1 + resamples, meetings, 2)
    found, is_determined = _fit(sides, len(names), won[:, :, 0], won.sum(dim=2))
    if not bool(is_determined[0]):
        return None
    resampled, ends = found[1:][is_determined[1:]], torch.full((2, len(names) + 1), math.nan)
    if len(resampled) >= 0.95 * NUM_RESAMPLES:
        ends = torch.quantile(resampled, torch.tensor([0.025, 0.975], dtype=torch.float64), dim=0)
    rated = [
        {
            "rating": SCALE * rating,
            "low": None if math.isnan(low) else SCALE * low,
            "high": None if math.isnan(high) else SCALE * high,
        }
        for rating, low, high in zip(found[0].tolist(), *ends.tolist(), strict=True)
    ]
    first_role = next(iter(meetings[0].players))
    return {"players": dict(zip(names, rated[:-1], strict=True)), "roles": {first_role: rated[-1]}}


def _resampled(meeting: Meeting, generator: np.random.Generator) -> torch.Tensor:
    """Return the contests that each role has won, and those in resamples of the games: float64 (1 + resamples, 2)."""
    won = torch.stack([meeting.wins[role].double().cpu() for role in meeting.players], dim=1)
    if meeting.clusters is not None:
        numbers = meeting.clusters.cpu().unique(return_inverse=True)[1]
        won = won.new_zeros(int(numbers.max()) + 1, 2).index_add_(0, numbers, won)
    kinds, counts = won.unique(dim=0, return_counts=True)
    drawn = generator.multinomial(len(won), (counts / len(won)).double().numpy(), NUM_RESAMPLES)
    return torch.cat([won.sum(dim=0, keepdim=True), torch.from_numpy(drawn).double() @ kinds])


def _fit(
    sides: torch.Tensor, num: int, wins: torch.Tensor, contests: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Fit logistic regressions by Newton's method, one for each row of wins and contests, (R, M).

    sides: float64 (M, K), how much each of K terms adds to the log odds; equal changes of the first `num` do not
    matter, and their mean becomes 0. No step changes log odds by more than 1, so that all converge (self-concordance:
    Bach 2010). Returns the maximum likelihood terms, (R, K), and which of them are finite, bool (R,).
    """
    terms = sides.new_zeros(len(wins), sides.shape[1])
    same = torch.zeros_like(terms[0])
    same[:num] = 1.0
    for _ in range(MAX_STEPS):
        share = torch.sigmoid(terms @ sides.T)
        gradient = (wins - contests * share) @ sides
        weights = (contests * share * (1 - share)).clamp(min=LEAST_WEIGHT)
        hessian = (sides.T * weights.unsqueeze(1)) @ sides + torch.outer(same, same)  # which makes it regular
        step = torch.linalg.solve(hessian, gradient.unsqueeze(2)).squeeze(2)
        changes = (step @ sides.T).abs().amax(dim=1, keepdim=True)
        terms = terms + step / changes.clamp(min=1.0)
        if bool((changes <= PRECISION).all()):
            break
    is_finite = (changes[:, 0] <= PRECISION) & ((terms @ sides.T).abs().amax(dim=1) < MOST_LOG_ODDS)
    return terms - terms[:, :num].mean(dim=1, keepdim=True) * same, is_finite
