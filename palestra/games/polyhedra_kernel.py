"""The bookkeeping of the polyhedra game for CPUs: one loop over the worlds, compiled by numba, for each of its steps.

polyhedra.py says the same in plain torch, and which is which. Every array has the world as its first axis; shapes and
types are those of the state.
"""

from typing import Any

import numpy as np
from numba import njit

from palestra.games.newton_kernel import measured

Array = np.ndarray[Any, Any]

_compiled = njit(nogil=True, cache=True)


@_compiled
def find_deciding(num_points: Array, subset: Array, deciding: Array) -> None:
    """deciding: bool (B, 2), host and agent."""
    for world in range(len(subset)):
        running, host = num_points[world] > 1, subset[world] == 0
        deciding[world, 0] = running & host
        deciding[world, 1] = running & (not host)


@_compiled
def list_chosen(subset: Array, chosen: Array) -> None:
    """chosen: bool (B, n), the bits of the host's choice."""
    for world in range(len(subset)):
        for k in range(chosen.shape[1]):
            chosen[world, k] = subset[world] >> k & 1


@njit(nogil=True, cache=True, boundscheck=True)
def choose_subsets(num_points: Array, subset: Array, action: Array, masks: Array, new_subset: Array) -> None:
    """The host's turn. masks: int64 (A,), what its actions mean. IndexError for an action out of range."""
    for world in range(len(subset)):
        decides = num_points[world] > 1 and subset[world] == 0
        new_subset[world] = masks[action[world]] if decides else subset[world]


@_compiled
def count(
    points: Array,
    num_exact: Array,
    subset: Array,
    old_num_points: Array,
    old_rounds: Array,
    old_exact: Array,
    num_points: Array,
    largest: Array,
    rounds: Array,
    exact: Array,
    overflow: Array,
    over: Array,
    moved: Array,
    truncated: Array,
    max_coordinate: float,
    max_rounds: int,
) -> None:
    """What follows from the boards after the agent's turn. subset: the choices before it; max_rounds: -1 if there is
    no limit."""
    for world in range(len(points)):
        num, most = measured(points[world])
        num_points[world], largest[world] = num, most
        rounds[world] = old_rounds[world] + (subset[world] > 0)
        exact[world] = old_exact[world] + max(num_exact[world], 0)
        overflow[world] = (num > 1) & ((most > max_coordinate) | (num_exact[world] < 0))
        over[world] = num <= 1
        moved[world] = (subset[world] > 0) & (old_num_points[world] > 1)
        truncated[world] = overflow[world] | ((num > 1) & (max_rounds >= 0) & (rounds[world] >= max_rounds))


@_compiled
def begin_games(
    where: Array,
    points: Array,
    num_points: Array,
    largest: Array,
    subset: Array,
    rounds: Array,
    overflow: Array,
    exact: Array,
) -> None:
    """The state of new games on the boards `where`, bool (B,), in place; the other worlds stay as they are."""
    for world in range(len(points)):
        if where[world]:
            num_points[world], largest[world] = measured(points[world])
            subset[world] = rounds[world] = exact[world] = 0
            overflow[world] = False
