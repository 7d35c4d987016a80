"""Ratings of players from the games of pairings, on the scale of Elo.

Letters: M meetings, K terms, R fits.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

SCALE = 400 / math.log(10)  # 400 points are odds of ten to one
MAX_STEPS = 100
PRECISION = 1e-9  # of log odds
MOST_LOG_ODDS = 25.0  # beyond what any number of games tells: they grow without end
LEAST_WEIGHT = 1e-9
NUM_RESAMPLES, SEED = 1000, 0
FEWEST_DETERMINED = 0.95  # of the resamples, for an interval

Rated = dict[str, dict[str, float]]


class Meeting(NamedTuple):
    """The games of a pairing.

    players: role -> player. wins: the contests that each role has won in each game, (n,); {} where nobody wins.
    clusters: of palestra.runtime.statistics, the games that depend on each other.
    """

    players: Mapping[str, str]
    wins: Mapping[str, Tensor]
    clusters: Tensor | None


def rate(meetings: Sequence[Meeting]) -> Rated | None:
    """Rate every player in its role by games of three players or more in two roles: {role: {player: rating}}.

    The mean of the ratings is 0. None if the games do not determine them.

    The model is Bradley and Terry's (1952): the first wins a contest with odds e^(its strength - the other's); the
    strengths are the maximum likelihood estimates. They exist if and only if no group of players has won, or lost, all
    contests with the rest (Ford 1957). The game says what a contest is (TensorGame.wins).
    """
    met = _contested(meetings)
    seats, sides = _sides([[*each.players.items()] for each in met], num_others=0)
    if len(seats) < 3:
        return None
    terms, is_determined = _fit(sides, len(seats), _won(met, num_resamples=0))
    if not bool(is_determined[0]):
        return None
    ratings: Rated = {}
    for (role, player), rating in zip(seats, terms[0].tolist(), strict=True):
        ratings.setdefault(role, {})[player] = rating
    return ratings


def rate_over_roles(meetings: Sequence[Meeting]) -> dict[str, Rated] | None:
    """Rate every player by one number over both roles, and the lead that the first role gives.

    The first player wins a contest with odds e^(lead + its strength - the other's): a logistic regression. Returns
    {"players": {player: rating}, "roles": {first role: lead}}, each with `rating`, and `low` and `high`, the ends of
    its 95% interval by a bootstrap of games, or of whole clusters; they are nan where too few resamples determine
    ratings. The mean of the players' ratings is 0. None if the games do not determine them, as where players keep to
    one role.
    """
    met = _contested(meetings)
    names, sides = _sides([[*each.players.values()] for each in met], num_others=1)
    if len(names) < 2:
        return None
    terms, is_determined = _fit(sides, len(names), _won(met, NUM_RESAMPLES))
    if not bool(is_determined[0]):
        return None
    resampled, ends = terms[1:][is_determined[1:]], torch.full((2, len(names) + 1), math.nan)
    if len(resampled) >= FEWEST_DETERMINED * NUM_RESAMPLES:
        ends = torch.quantile(resampled, torch.tensor([0.025, 0.975], dtype=torch.float64), dim=0)
    numbers = zip(terms[0].tolist(), *ends.tolist(), strict=True)
    *players, lead = (dict(zip(("rating", "low", "high"), each, strict=True)) for each in numbers)
    return {"players": dict(zip(names, players, strict=True)), "roles": {next(iter(met[0].players)): lead}}


def _contested(meetings: Sequence[Meeting]) -> list[Meeting]:
    return [each for each in meetings if len(each.wins) == 2 and any(bool(won.any()) for won in each.wins.values())]


def _sides(pairs: Sequence[Sequence[Any]], num_others: int) -> tuple[list[Any], Tensor]:
    """Return who meets whom, sorted, and what each adds to the log odds: 1 as the first, -1 as the second.

    Float64 (M, K). num_others: how many further terms add 1 to all.
    """
    names = sorted({name for pair in pairs for name in pair})
    sides = torch.ones(len(pairs), len(names) + num_others, dtype=torch.float64)
    for row, (first, second) in zip(sides, pairs, strict=True):
        row[: len(names)] = torch.tensor([float(name == first) - float(name == second) for name in names])
    return names, sides


def _won(meetings: Sequence[Meeting], num_resamples: int) -> Tensor:
    """Return the contests that each role has won in each meeting, and in resamples of the games: float64 (R, M, 2)."""
    generator, found = np.random.default_rng(SEED), []
    for each in meetings:
        won = torch.stack([each.wins[role].double().cpu() for role in each.players], dim=1)
        if each.clusters is not None:
            numbers = each.clusters.cpu().unique(return_inverse=True)[1]
            won = won.new_zeros(int(numbers.max()) + 1, 2).index_add_(0, numbers, won)
        kinds, counts = won.unique(dim=0, return_counts=True)
        drawn = generator.multinomial(len(won), (counts.double() / len(won)).numpy(), num_resamples)
        found.append(torch.cat([won.sum(dim=0, keepdim=True), torch.from_numpy(drawn).double() @ kinds]))
    return torch.stack(found, dim=1)


def _fit(sides: Tensor, num: int, won: Tensor) -> tuple[Tensor, Tensor]:
    """Fit a logistic regression to each row of `won`, (R, M, 2), by Newton's method, on the scale of Elo.

    sides: float64 (M, K); equal changes of the first `num` terms do not matter, and their mean becomes 0. No step
    changes log odds by more than 1, so that each one raises the likelihood (Bach 2010, "Self-concordant analysis for
    logistic regression"). Returns the maximum likelihood terms, (R, K), and which of them exist, bool (R,).
    """
    wins, contests = won[:, :, 0], won.sum(dim=2)
    terms, same = sides.new_zeros(len(won), sides.shape[1]), sides.new_zeros(sides.shape[1])
    same[:num] = 1.0
    if int(torch.linalg.matrix_rank(sides)) < sides.shape[1] - 1:
        return terms, torch.zeros(len(won), dtype=torch.bool)
    for _ in range(MAX_STEPS):
        share = torch.sigmoid(terms @ sides.T)
        gradient = (wins - contests * share) @ sides
        weights = (contests * share * (1 - share)).clamp(min=LEAST_WEIGHT)
        hessian = (sides.T * weights.unsqueeze(1)) @ sides + torch.outer(same, same)  # which makes it regular
        step = torch.linalg.solve(hessian, gradient.unsqueeze(2)).squeeze(2)
        changes = (step @ sides.T).abs().amax(dim=1)
        terms = terms + step / changes.clamp(min=1.0).unsqueeze(1)
        if bool((changes <= PRECISION).all()):
            break
    exist = (changes <= PRECISION) & ((terms @ sides.T).abs().amax(dim=1) < MOST_LOG_ODDS)
    return SCALE * (terms - terms[:, :num].mean(dim=1, keepdim=True) * same), exist
