"""Ratings of players from the results of pairings, on the scale of Elo."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

SCALE = 400 / math.log(10)  # 400 points are odds of ten to one
MAX_STEPS = 100
PRECISION = 1e-9

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
    """Find the maximum likelihood strengths, with mean 0, by Newton's method; float64 (seats,)."""
    index = {seat: i for i, seat in enumerate(seats)}
    first = torch.tensor([index[result[0]] for result in results])
    second = torch.tensor([index[result[1]] for result in results])
    wins, contests = (torch.tensor([result[i] for result in results], dtype=torch.float64) for i in (2, 3))
    sides = torch.zeros(len(results), len(seats), dtype=torch.float64)
    sides[torch.arange(len(results)), first] = 1.0
    sides[torch.arange(len(results)), second] -= 1.0

    def likelihood(strengths: torch.Tensor) -> float:
        edge = sides @ strengths
        return float((wins * edge - contests * torch.nn.functional.softplus(edge)).sum())

    strengths = torch.zeros(len(seats), dtype=torch.float64)
    for _ in range(MAX_STEPS):
        share = torch.sigmoid(sides @ strengths)
        gradient = sides.T @ (wins - contests * share)
        hessian = (
            sides.T @ (sides * (contests * share * (1 - share)).unsqueeze(1)) + 1.0
        )  # + 1: makes it regular, as adding the same to all strengths changes nothing
        step = torch.linalg.solve(hessian, gradient)
        while likelihood(strengths + step) < likelihood(strengths) and float(step.abs().max()) > PRECISION:
            step = step / 2
        strengths = strengths + step
        if float(step.abs().max()) <= PRECISION:
            break
    return strengths - strengths.mean()
