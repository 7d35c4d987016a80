"""The bookkeeping of the polyhedra game for CPUs: one loop over the worlds, compiled by numba, for each of its steps.

game.py does the same in plain torch, and documents the arrays. Every array has the world as its first axis; shapes and
types are those of the state.
"""

from typing import Any

import numpy as np

from palestra.games.polyhedra.newton_kernel import measured
from palestra.runtime.compiling import njit

Array = np.ndarray[Any, Any]

_compiled = njit()


@_compiled
def find_deciding(num_points: Array, subset: Array, deciding: Array) -> None:
    """Write into `deciding`, bool (B, 2), whether the host decides, and whether the agent does."""
    for world in range(len(subset)):
        running, host = num_points[world] > 1, subset[world] == 0
        deciding[world, 0] = running & host
        deciding[world, 1] = running & (not host)


@_compiled
def list_chosen(subset: Array, chosen: Array) -> None:
    """Write the bits of the host's choice into `chosen`, bool (B, n)."""
    for world in range(len(subset)):
        for k in range(chosen.shape[1]):
            chosen[world, k] = subset[world] >> k & 1


@njit(boundscheck=True)
def choose_subsets(num_points: Array, masks: Array, action: Array, subset: Array) -> None:
    """Play the host's move. masks: int64 (A,), of the actions. Raises IndexError for an action out of range."""
    for world in range(len(subset)):
        if num_points[world] > 1 and subset[world] == 0:
            subset[world] = masks[action[world]]


@_compiled
def end_round(
    num_exact: Array,
    points: Array,
    num_points: Array,
    largest: Array,
    subset: Array,
    rounds: Array,
    overflow: Array,
    exact: Array,
    rewards: Array,
    over: Array,
    truncated: Array,
    max_coordinate: float,
    max_rounds: int,
    per_win: np.float32,
    per_round: np.float32,
    per_point: np.float32,
    axes: Any,
) -> None:
    """Update the state in place after the agent's move has changed the boards.

    Writes rewards, float32 (B, 2), over, bool (B, 2), and truncated, bool (B,). max_rounds: -1 for no limit.
    """
    for world in range(len(points)):
        num, most = measured(points[world], axes)
        shearing, removed = subset[world] > 0, num_points[world] - num
        moved, is_over = shearing & (num_points[world] > 1), num <= 1
        host = per_win * np.float32(is_over) + per_round + per_point * np.float32(removed)
        rewards[world, 0] = host if moved else np.float32(0.0)
        rewards[world, 1] = -rewards[world, 0]
        num_points[world], largest[world] = num, most
        if shearing:
            subset[world] = 0
        rounds[world] += shearing
        exact[world] += max(num_exact[world], 0)
        overflow[world] = (not is_over) & ((most > max_coordinate) | (num_exact[world] < 0))
        over[world, 0] = over[world, 1] = is_over
        is_long = (max_rounds >= 0) & (rounds[world] >= max_rounds)
        truncated[world] = overflow[world] | (is_long & (not is_over))


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
    axes: Any,
) -> None:
    """Write the state of new games on the boards `where`, bool (B,); the other worlds stay as they are."""
    for world in range(len(points)):
        if where[world]:
            num_points[world], largest[world] = measured(points[world], axes)
            subset[world] = rounds[world] = exact[world] = 0
            overflow[world] = False
