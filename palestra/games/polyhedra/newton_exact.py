"""Decides by exact integers of any size which points of one board are vertices.

It serves boards beyond the range of newton_kernel.py and newton_torch.py. The mathematics is in docs/newton.md.
"""

from fractions import Fraction
from math import lcm
from typing import Any


def exact_vertices(rows: list[list[Any]]) -> list[bool]:
    """Tell which rows are vertices; of equal rows the first is. Floats count as the rationals that they are."""
    n = len(rows[0])
    exact = [tuple(map(Fraction, row)) for row in rows]
    scale = lcm(*(x.denominator for row in exact for x in row))
    scaled = [tuple(int(x * scale) for x in row) for row in exact]
    distinct = {row for row in scaled if min(row) >= 0}
    first = {row: i for i, row in reversed(list(enumerate(scaled))) if row in distinct}
    for row in sorted(distinct):
        if _is_separated([[x - y for x, y in zip(q, row, strict=True)] for q in distinct if q != row], n):
            continue
        distinct = distinct - {row}
    keep = {first[row] for row in distinct}
    return [i in keep for i in range(len(rows))]


def _is_separated(differences: list[list[int]], n: int) -> bool:
    """Tell whether some w >= 0 has w.d > 0 for all differences d.

    The integer simplex (Edmonds 1967, Bareiss 1968), lexicographic, asks whether max sum(l) subject to sum l_d d <= (1,
    e, e^2, ...), l >= 0 is bounded. Every entry of the tableau is a minor of the input, and every division leaves no
    remainder.
    """
    m = len(differences)
    rows = [[d[k] for d in differences] + [int(k == slack) for slack in range(n)] for k in range(n)]
    gains = [1] * m + [0] * n
    determinant = 1
    while True:
        column = next((c for c, gain in enumerate(gains) if gain > 0), None)
        if column is None:
            return True
        leaving = None
        for row in rows:
            if row[column] > 0 and (
                leaving is None or _ratios(row, leaving[column], m) < _ratios(leaving, row[column], m)
            ):
                leaving = row
        if leaving is None:
            return False
        pivot, old = leaving[column], determinant
        rows = [
            row if row is leaving else [(x * pivot - row[column] * y) // old for x, y in zip(row, leaving, strict=True)]
            for row in rows
        ]
        gains = [(x * pivot - gains[column] * y) // old for x, y in zip(gains, leaving, strict=True)]
        determinant = pivot


def _ratios(row: list[int], factor: int, num_points: int) -> list[int]:
    return [x * factor for x in row[num_points:]]
