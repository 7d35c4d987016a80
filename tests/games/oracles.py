"""Slow and certain: vertices of Newton polyhedra by rational arithmetic, by linear programming, and families of point
sets."""

from fractions import Fraction

import numpy as np
from scipy.optimize import linprog

Point = tuple[int, ...]


def rational_vertices(rows: list[list[int]]) -> list[bool]:
    """Which rows are vertices of conv(S + R^n_{>=0}); of equal rows the first; rows with a negative entry are
    absent."""
    points = [tuple(row) for row in rows]
    present = {p for p in points if min(p) >= 0}
    return [
        p in present and p not in points[:i] and not _is_in_hull(p, sorted(present - {p})) for i, p in enumerate(points)
    ]


def _is_in_hull(p: Point, others: list[Point]) -> bool:
    """Is p = sum of l_q q + s with l, s >= 0 and sum of l = 1? Phase 1 of the simplex in Fractions, by Bland's rule."""
    n, m = len(p), len(others)
    tableau = [
        [Fraction(q[k]) for q in others] + [Fraction(k == j) for j in range(n)] + [Fraction(p[k])] for k in range(n)
    ]
    tableau.append([Fraction(1)] * m + [Fraction(0)] * n + [Fraction(1)])
    basis = list(range(m + n, m + n + n + 1))  # artificial variables, whose columns nobody needs
    shortfall = [sum(column, Fraction(0)) for column in zip(*tableau, strict=True)]
    while shortfall[-1] > 0:
        entering = next((c for c in range(m + n) if shortfall[c] > 0), None)
        if entering is None:
            return False
        possible = [r for r in range(n + 1) if tableau[r][entering] > 0]
        leaving = min(possible, key=lambda r: (tableau[r][-1] / tableau[r][entering], basis[r]))
        pivot = tableau[leaving][entering]
        tableau[leaving] = [x / pivot for x in tableau[leaving]]
        for row in [*(tableau[r] for r in range(n + 1) if r != leaving), shortfall]:
            if factor := row[entering]:
                row[:] = [x - factor * y for x, y in zip(row, tableau[leaving], strict=True)]
        basis[leaving] = entering
    return True


def lp_margins(rows: list[list[int]]) -> list[float]:
    """For each row p the largest t with w.(q - p) >= t for all other rows q, some w >= 0 of sum 1: a vertex has t >
    0."""
    points = np.array(rows, dtype=float)
    n = points.shape[1]
    margins = []
    for i, p in enumerate(points):
        differences = np.delete(points, i, axis=0) - p
        constraints = np.hstack([-differences, np.ones((len(differences), 1))])
        sum_to_one = [[1.0] * n + [0.0]]
        bounds = [(0, None)] * n + [(None, None)]
        result = linprog([0.0] * n + [-1.0], constraints, np.zeros(len(differences)), sum_to_one, [1.0], bounds)
        margins.append(-result.fun)
    return margins


def on_a_plane(rng: np.random.Generator, total: int, shape: tuple[int, int, int]) -> np.ndarray:
    """Points of coordinate sum `total`, so that none is dominated: the gaps between n - 1 random cuts."""
    cuts = np.sort(rng.integers(0, total + 1, (*shape[:2], shape[2] - 1)), axis=2)
    return np.diff(cuts, axis=2, prepend=0, append=total)


def point_sets(rng: np.random.Generator, family: str, num_sets: int, num_points: int, n: int) -> np.ndarray:
    """int64 (num_sets, num_points, n) of one family; rows with a negative entry are absent."""
    shape = (num_sets, num_points, n)
    if family == "small":
        return rng.integers(0, 21, shape)
    if family == "tiny":
        return rng.integers(0, 3, shape)
    if family == "large":
        return rng.integers(0, 10**6 + 1, shape)
    if family == "skewed":
        return rng.integers(0, 10 ** np.arange(1, n + 1), shape)
    if family == "duplicates":
        points = rng.integers(0, 10, shape)
        return np.take_along_axis(points, rng.integers(0, 3, (num_sets, num_points, 1)), axis=1)
    if family == "collinear":
        direction = rng.integers(-3, 4, (num_sets, 1, n))
        return 3 * num_points + direction * rng.integers(0, num_points, (num_sets, num_points, 1))
    if family == "coplanar":  # on the simplex of sum 24: nothing is dominated
        return on_a_plane(rng, 24, shape)
    if family == "coplanar, large":
        return on_a_plane(rng, 10**6, shape)
    if family == "coordinate face":
        points = rng.integers(0, 12, shape)
        points[:, :, 0] = 5
        return points
    if family == "midpoints":  # in convex position, with midpoints of pairs and a point just below one of them
        points = 2 * on_a_plane(rng, 5 * 10**5, shape)
        points[:, 2] = (points[:, 0] + points[:, 1]) // 2
        points[:, 3] = (points[:, 4] + points[:, 1]) // 2
        points[:, 3, 0] -= 1
        return np.maximum(points, 0)
    if family == "absent rows":
        points = rng.integers(0, 9, shape)
        points[rng.random((num_sets, num_points)) < 0.5, 0] = -1
        return points
    if family == "one point":
        points = np.full(shape, -1)
        points[:, num_points // 2] = rng.integers(0, 9, (num_sets, n))
        return points
    if family == "empty":
        return np.full(shape, -1)
    raise ValueError(family)


FAMILIES = [
    "small",
    "tiny",
    "large",
    "skewed",
    "duplicates",
    "collinear",
    "coplanar",
    "coplanar, large",
    "coordinate face",
    "midpoints",
    "absent rows",
    "one point",
    "empty",
]
