"""Kernels of FusedGame for CPUs: one loop over the worlds, compiled by numba, for each of its steps.

fused.py does the same in plain torch, and documents shapes and types. Letters: B worlds, R roles, A actions.
"""

from typing import Any

import numpy as np

from palestra.rollouts.played import NUM_RECENT
from palestra.runtime.compiling import njit

Array = np.ndarray[Any, Any]

_compiled = njit()


@_compiled
def count_round(lengths: Array, deciding: Array) -> None:
    """Add a round in every world in which a role decides."""
    for world in range(len(lengths)):
        anybody = False
        for role in range(deciding.shape[1]):
            anybody |= deciding[world, role]
        lengths[world] += anybody


@_compiled
def exchange(
    role: int,
    deciding: Array,
    legal: Array,
    going_on: Array,
    waiting: Array,
    truncated_pending: Array,
    awaiting: Array,
    done: Array,
    pending_reward: Array,
    reward: Array,
    next_legal: Array,
    terminated: Array,
    truncated: Array,
    valid: Array,
) -> None:
    """Close a role's last decisions where it decides or its game is over; its new ones begin to wait.

    The arrays from `reward` on get how the old ones ended; awaiting, done and pending_reward change in place.
    """
    for world in range(len(truncated_pending)):
        was_awaiting, was_done, decides = awaiting[world, role], done[world, role], deciding[world, role]
        reward[world] = pending_reward[world, role]
        going_on[world] = decides and not was_done
        for action in range(legal.shape[1]):
            next_legal[world, action] = legal[world, action] and going_on[world]
        terminated[world] = was_done
        truncated[world] = truncated_pending[world] and not was_done
        valid[world] = was_awaiting and (was_done or decides)
        waiting[world] = was_awaiting and not was_done and not decides
        awaiting[world, role] = (decides and not truncated_pending[world]) or waiting[world]
        done[world, role] = False
        if not waiting[world]:
            pending_reward[world, role] = 0.0


@_compiled
def update_statistics(
    ended: Array,
    refilled: Array,
    rewards: Array,
    terminated: Array,
    truncated: Array,
    awaiting: Array,
    done: Array,
    pending_reward: Array,
    truncated_pending: Array,
    lengths: Array,
    returns: Array,
    totals: Array,
    recent: Array,
    num_finished: Array,
) -> tuple[int, int]:
    """Add the results of a move, count the games that end, and clear the statistics of worlds to be refilled.

    The statistics change in place; ended and refilled are written. Returns how many worlds have ended, and how many are
    to be refilled.
    """
    num_ended = num_refilled = 0
    num_roles = rewards.shape[1]
    for world in range(len(truncated_pending)):
        is_over, is_waited_for = True, False
        for role in range(num_roles):
            returns[world, role] += rewards[world, role]
            if awaiting[world, role] and not done[world, role]:
                pending_reward[world, role] += rewards[world, role]
                done[world, role] = terminated[world, role]
                is_waited_for |= not terminated[world, role]
            is_over &= terminated[world, role]
        ends = (is_over or truncated[world]) and not truncated_pending[world] and lengths[world] > 0
        ended[world] = ends
        if ends:
            num_ended += 1
            totals[0] += 1
            totals[1] += is_over
            totals[2] += truncated[world]
            totals[3] += lengths[world]
            for role in range(num_roles):
                totals[4 + role] += returns[world, role]
                recent[num_finished[()] % NUM_RECENT, role] = returns[world, role]
            num_finished[()] += 1
        truncated_pending[world] |= truncated[world]
        leaves = is_over or (truncated_pending[world] and not is_waited_for)
        refilled[world] = leaves
        if leaves:
            num_refilled += 1
            truncated_pending[world] = False
            lengths[world] = 0
            for role in range(num_roles):
                returns[world, role] = 0.0
    return num_ended, num_refilled


@_compiled
def sum_where(where: Array, values: Array) -> float:
    total = 0.0
    for world in range(len(where)):
        if where[world]:
            total += values[world]
    return total


@_compiled
def choose_rows(where: Array, yes: Array, no: Array, out: Array) -> None:
    """Copy the rows of `yes` to out where `where`, bool (B,), is true, else those of `no`: (B, K) all."""
    for world in range(len(where)):
        for k in range(out.shape[1]):
            out[world, k] = yes[world, k] if where[world] else no[world, k]


@_compiled
def copy_where(where: Array, values: Array, filling: int, out: Array) -> None:
    """Copy the rows of values to out where `where`, bool (B,), is true, and fill the others: (B, K) both."""
    for world in range(len(where)):
        for k in range(values.shape[1]):
            out[world, k] = values[world, k] if where[world] else out.dtype.type(filling)
