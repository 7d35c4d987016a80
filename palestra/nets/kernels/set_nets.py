"""A plain network of sets on a CPU, forward and backward by hand: an mlp for members, a pool, and an mlp for sets.

Rows are those of mlps (palestra.nets.inputs.flatten_on_cpu): entries one after another, a set as the numbers of all
places, followed by a flag for each place. Weights lie in one vector, those of the members' layers first.

Letters: B sets, N places of a set, n numbers of a member, P members of all sets, d features of a member, r numbers of
the entries that are no sets.
"""

from typing import Any, NamedTuple, cast

import numpy as np

from palestra.nets.kernels import mlp
from palestra.nets.kernels.sets import pool, pool_backward
from palestra.runtime.compiling import inner, njit

Array = np.ndarray[Any, Any]


class Layout(NamedTuple):
    """The columns of a row, and the widths of the layers.

    The set begins in column `start` and has N places of n numbers; rest: the columns of the other entries. is_newton:
    whether members are measured from the least corner of their set, on a log scale. point_widths, head_widths: the
    inputs of the first layer, and the outputs of each.
    """

    start: int
    num_places: int
    dimension: int
    rest: Array
    is_newton: bool
    point_widths: Array
    head_widths: Array


class Hidden(NamedTuple):
    """The arrays of a forward pass that a backward pass needs.

    x: (B, width). members: (P, n + r), those of set b are rows starts[b] to starts[b + 1] - 1. features: (P, d).
    pooled: (B, 2 d + r). of_points, of_head: workspaces of the mlps.
    """

    x: Array
    members: Array
    starts: Array
    features: Array
    pooled: Array
    of_points: Array
    of_head: Array


@njit(error_model="numpy")
def forward(x: Array, weights: Array, layout: Layout) -> tuple[Array, Hidden]:
    """Return the outputs, float32 (B, outputs), of x (B, width), and the arrays for a backward pass."""
    split, point_widths, head_widths = num_weights(layout.point_widths), layout.point_widths, layout.head_widths
    members, starts = pack(x, layout)
    of_points = np.empty(len(members) * mlp.workspace_size(point_widths), np.float32)
    features = mlp.forward(members, weights[:split], point_widths, False, of_points)
    mlp.apply_activation(features, False)
    pooled = np.empty((len(x), head_widths[0]), np.float32)
    pool(features, starts, pooled)
    for b in range(len(x)):
        for k in range(len(layout.rest)):
            pooled[b, 2 * features.shape[1] + k] = x[b, layout.rest[k]]
    of_head = np.empty(len(x) * mlp.workspace_size(head_widths), np.float32)
    outputs = mlp.forward(pooled, weights[split:], head_widths, False, of_head)
    return outputs, Hidden(x, members, starts, features, pooled, of_points, of_head)


def evaluate(x: Array, weights: Array, statistics: None, layout: Layout) -> Array:
    """Return the outputs alone. This is no kernel itself, because that would have to be compiled as well."""
    return cast(Array, forward(x, weights, layout)[0])


@njit(error_model="numpy")
def backward(grads: Array, weights: Array, layout: Layout, hidden: Hidden, gradient: Array, adds: bool) -> None:
    """Write the derivatives by the weights into `gradient`, or add them to it. grads: those by the outputs."""
    split = num_weights(layout.point_widths)
    mlp.backward(
        grads, hidden.pooled, weights[split:], layout.head_widths, False, hidden.of_head, gradient[split:], adds
    )
    by_pooled = mlp.backward_to_inputs(grads, weights[split:], layout.head_widths, False, hidden.of_head)
    by_features = _backward_pool(by_pooled, hidden)
    mlp.backward(
        by_features,
        hidden.members,
        weights[:split],
        layout.point_widths,
        False,
        hidden.of_points,
        gradient[:split],
        adds,
    )


@njit(error_model="numpy")
def backward_to_inputs(grads: Array, weights: Array, layout: Layout, hidden: Hidden) -> Array:
    """Return the derivatives by x, (B, width)."""
    split, n, d = num_weights(layout.point_widths), layout.dimension, hidden.features.shape[1]
    by_pooled = mlp.backward_to_inputs(grads, weights[split:], layout.head_widths, False, hidden.of_head)
    by_features = _backward_pool(by_pooled, hidden)
    by_members = mlp.backward_to_inputs(by_features, weights[:split], layout.point_widths, False, hidden.of_points)
    by_x, i = np.zeros_like(hidden.x), 0
    for b in range(len(by_x)):
        start, end = hidden.starts[b], hidden.starts[b + 1]
        for k in range(len(layout.rest)):
            by_x[b, layout.rest[k]] = by_pooled[b, 2 * d + k]
            for member in range(start, end):
                by_x[b, layout.rest[k]] += by_members[member, n + k]
        if layout.is_newton:
            _backward_corner(by_members[start:end], hidden.members[start:end], n)
        for place in range(layout.num_places):
            if is_present(hidden.x[b], layout, place):
                for k in range(n):
                    by_x[b, layout.start + place * n + k] = by_members[i, k]
                i += 1
    return by_x


@inner(error_model="numpy")
def pack(x: Array, layout: Layout) -> tuple[Array, Array]:
    """Return the members with the entries that are no sets, (P, n + r), and where each set begins, (B + 1,)."""
    n, rest, num = layout.dimension, layout.rest, 0
    for b in range(len(x)):
        for place in range(layout.num_places):
            num += is_present(x[b], layout, place)
    members, starts = np.empty((num, n + len(rest)), np.float32), np.empty(len(x) + 1, np.int64)
    corner, num = np.empty(n, np.float32), 0
    for b in range(len(x)):
        starts[b] = num
        for place in range(layout.num_places):
            if is_present(x[b], layout, place):
                for k in range(n):
                    value = x[b, layout.start + place * n + k]
                    members[num, k] = value
                    corner[k] = value if num == starts[b] or value < corner[k] else corner[k]
                for k in range(len(rest)):
                    members[num, n + k] = x[b, rest[k]]
                num += 1
        if layout.is_newton:
            for i in range(starts[b], num):
                for k in range(n):
                    members[i, k] = np.log1p(members[i, k] - corner[k])
    starts[len(x)] = num
    return members, starts


@inner()
def is_present(row: Array, layout: Layout, place: int) -> bool:
    """Return whether a place of a row of x has a member, by its flag."""
    return row[layout.start + layout.num_places * layout.dimension + place] > 0


@inner(error_model="numpy")
def num_weights(widths: Array) -> int:
    """Return how many weights the layers of an mlp have."""
    num = 0
    for layer in range(len(widths) - 1):
        num += (widths[layer] + 1) * widths[layer + 1]
    return num


@inner(error_model="numpy")
def _backward_pool(by_pooled: Array, hidden: Hidden) -> Array:
    """Return the derivatives by the outputs of the members' last layer, before its relu: (P, d)."""
    by_features = np.empty_like(hidden.features)
    pool_backward(by_pooled, hidden.features, hidden.starts, hidden.pooled, by_features)
    mlp.activation_backward(by_features, hidden.features, False)
    return by_features


@inner(error_model="numpy")
def _backward_corner(by_members: Array, members: Array, n: int) -> None:
    """Turn the derivatives by log(1 + x - corner) of one set into those by x, in place.

    Members that share the least coordinate share its derivative evenly.
    """
    for k in range(n):
        by_corner, num_least = np.float32(0.0), 0
        for i in range(len(members)):
            by_members[i, k] *= np.exp(-members[i, k])
            by_corner -= by_members[i, k]
            num_least += members[i, k] == 0
        for i in range(len(members)):
            if members[i, k] == 0:
                by_members[i, k] += by_corner / num_least
