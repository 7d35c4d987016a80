"""The reductions of the polyhedra game for CPUs: scalar code per world, compiled by numba, one pass over a board.

The mathematics is in docs/newton.md; the pure-torch version newton_torch.py gives the same bits. Boards are float64
(B, N, n) with integer entries below 2**53, rows with a negative entry are absent. The kernels write the surviving
rows to the front of `out`, -1 behind them. Where a board is beyond the exact range, its Pareto-minimal rows are left
in `out` and their number in `num_open`, for exact integers to decide; elsewhere `num_open` is 0.

`vertices` is True, or None where the Pareto-minimal rows are all that is wanted: for None numba leaves out the search
for vertices, which it compiles for seconds.

`axes` is a tuple (0, ..., n - 1), whose length the compiler knows, or an array of that length, for any n. Allocation
happens once per call. Everything releases the GIL; nothing uses numba's own threads.
"""

from typing import Any

import numpy as np

from palestra.randomness import U_GAMMA, mix
from palestra.runtime.compiling import inner, njit

Array = np.ndarray[Any, Any]

MAX_DIMENSION = 8  # the cofactors cost n * 2**n, and the bounds in docs/newton.md are stated up to here
MAX_ALL_PAIRS = 6  # rows compared each with each; of more, one row first drops all above it
MAX_PIVOTS = 200  # about ten times the most ever seen; beyond it exact integers decide
EXACT_FLOAT = 2.0**53  # integer arithmetic in float64 is exact below
RELATIVE_ERROR = 2.0**-46  # of a decision, beyond EXACT_FLOAT: n(n + 3)/2 <= 44 roundings of 2**-53, with room
MAX_TOLERANCE = 2.0**61  # below it a decision smaller than the tolerance fits int64

_compiled = njit(error_model="numpy")
_inner = inner(error_model="numpy")
_inlined = inner(error_model="numpy", forceinline=True)


# ---- the three passes ----------------------------------------------------------------------------


@_compiled
def reduce_boards(points: Array, out: Array, num_open: Array, vertices: bool | None, axes: Any) -> None:
    """Reduce boards whose rows need not be packed. points, out: (B, N, n); num_open: int64 (B,)."""
    for world in range(len(points)):
        rows, board, num = out[world], points[world], 0
        for i in range(len(board)):
            present = True
            for k in range(len(axes)):
                rows[num, k] = board[i, k]
                present &= board[i, k] >= 0
            num += present
        num_open[world] = _keep_minimal(rows, num, len(rows), axes)
    _finish(out, num_open, vertices, axes)


@_compiled
def blow_up_boards(
    subset: Array, axis: Array, boards: Array, num_open: Array, vertices: bool | None, axes: Any
) -> None:
    """Move x_axis <- sum of x_k over k in subset (a bitmask), then reduce.

    Packed boards, changed in place; subset 0: as it is.
    """
    weights = np.empty(len(axes))
    for world in range(len(boards)):
        rows, chosen, moved = boards[world], subset[world], axis[world]
        if chosen == 0:
            num_open[world] = 0
            continue
        for k in range(len(axes)):
            weights[k] = float(chosen >> k & 1)
        num = 0
        while num < len(rows) and rows[num, 0] >= 0:
            total = 0.0
            for k in range(len(axes)):
                total += rows[num, k] * weights[k]
            rows[num, moved] = total
            num += 1
        num_open[world] = _keep_minimal(rows, num, num, axes)
    _finish(boards, num_open, vertices, axes)


@_compiled
def random_boards(
    keys: Array, where: Array, out: Array, num_open: Array, high: int, vertices: bool | None, axes: Any
) -> None:
    """Draw fresh boards in the places `where`, bool (B,), and reduce them; the other boards of `out` stay.

    Coordinates are the integers of randomness.random_integers(keys, N * n, high), row by row. keys: int64 (B,).
    """
    n = len(axes)
    numbers = np.empty(out.shape[1] * n)
    for world in range(len(keys)):
        if not where[world]:
            num_open[world] = 0
            continue
        rows, key = out[world], np.uint64(keys[world])
        for i in range(len(numbers)):  # a loop that the compiler makes of vectors
            bits = mix(key + np.uint64(i + 1) * U_GAMMA) >> np.uint64(33)
            numbers[i] = np.float64(np.int64((bits * np.uint64(high)) >> np.uint64(31)))
        for i in range(len(rows)):
            for k in range(n):
                rows[i, k] = numbers[i * n + k]
        num_open[world] = _keep_minimal(rows, len(rows), len(rows), axes)
    _finish(out, num_open, vertices, axes)


@_compiled
def measure_boards(points: Array, num_points: Array, largest: Array, axes: Any) -> None:
    """Count the rows of packed boards and find their largest coordinate; empty boards: 0 and -1."""
    for world in range(len(points)):
        num_points[world], largest[world] = measured(points[world], axes)


@_inlined
def measured(board: Array, axes: Any) -> tuple[int, float]:
    """Count the rows of a packed board and find its largest coordinate; 0 and -1 if it is empty."""
    num, most = 0, -1.0
    while num < len(board) and board[num, 0] >= 0:
        for k in range(len(axes)):
            most = max(most, board[num, k])
        num += 1
    return num, most


@_inner
def _finish(boards: Array, num_open: Array, vertices: bool | None, axes: Any) -> None:
    """Keep the vertices among the num_open minimal rows of each board, if they are asked for.

    num_open: 0, or the rows of an undecided board.
    """
    if vertices is None:
        for board in range(len(boards)):
            num_open[board] = 0
    else:
        _keep_vertices(boards, num_open, axes)


# ---- Pareto-minimal rows ---------------------------------------------------------------------------


@_inlined
def _keep_minimal(rows: Array, num: int, size: int, axes: Any) -> int:
    """Pack the minimal ones among `num` rows, of equal rows the first, -1 up to row `size`; return their number.

    Free of branches on coordinates, which no processor foresees. A row that is gone may still beat others: what it
    beats, its own conqueror beats.
    """
    if num > MAX_ALL_PAIRS:
        num = _drop_above_least(rows, num, axes)
    left = 0
    for i in range(num):
        beaten = False
        for j in range(i):
            below = True
            for k in range(len(axes)):
                below &= rows[j, k] <= rows[i, k]
            beaten |= below
        for j in range(i + 1, num):
            below, differs = True, False
            for k in range(len(axes)):
                below &= rows[j, k] <= rows[i, k]
                differs |= rows[j, k] < rows[i, k]
            beaten |= below & differs
        for k in range(len(axes)):
            rows[left, k] = rows[i, k]
        left += not beaten
    _clear(rows, left, size, axes)
    return left


@_inlined
def _clear(rows: Array, start: int, stop: int, axes: Any) -> None:
    for i in range(start, stop):
        for k in range(len(axes)):
            rows[i, k] = -1.0


@_inlined
def _copy(rows: Array, out: Array, num: int, axes: Any) -> None:
    # Loops: numba takes seconds to compile an assignment of slices.
    for i in range(num):
        for k in range(len(axes)):
            out[i, k] = rows[i, k]


@_inner
def _drop_above_least(rows: Array, num: int, axes: Any) -> int:
    """Pack the rows that the first row of least coordinate sum does not beat, with itself; return their number."""
    least, least_sum = 0, np.inf
    for i in range(num):
        total = rows[i, 0]
        for k in range(1, len(axes)):
            total += rows[i, k]
        least, least_sum = (i, total) if total < least_sum else (least, least_sum)
    left = 0
    for i in range(num):
        beaten = i != least
        for k in range(len(axes)):
            beaten &= rows[least, k] <= rows[i, k]
        for k in range(len(axes)):
            rows[left, k] = rows[i, k]
        least = left if i == least else least
        left += not beaten
    return left


# ---- vertices ----------------------------------------------------------------------------------------


@_inner
def _keep_vertices(boards: Array, num_open: Array, axes: Any) -> None:
    """Pack the vertices among the num_open Pareto-minimal rows of each board; num_open is 0 where all is decided."""
    n, size = len(axes), boards.shape[1] + len(axes)
    scratch = (
        np.empty((size, n)),  # vectors: differences q - p, then the unit vectors
        np.empty((size, n), np.int64),  # the same modulo 2**64
        np.empty((n + 1, n)),  # cofactors, the weights in the last row
        np.empty((n + 1, n), np.int64),
        np.empty(1 << min(n, MAX_DIMENSION)),  # minors by subsets of rows
        np.empty(1 << min(n, MAX_DIMENSION), np.int64),
        np.empty(n, np.int64),  # basis: indices of vectors
        np.empty(n),  # the entering vector in cofactor coordinates
    )
    corner = np.empty(n)  # the least value of each coordinate
    verdicts = np.empty(boards.shape[1], np.int8)  # 1: a vertex, -1: none, 0: open
    for board in range(len(boards)):
        rows, num = boards[board], num_open[board]
        if num <= 2:
            num_open[board] = 0
            continue
        tolerance = _tolerance(rows, num, axes, corner)
        if tolerance >= MAX_TOLERANCE or n > MAX_DIMENSION:
            continue
        for i in range(num):
            verdicts[i] = 0
        for i in range(num):
            verdicts[i] = _verdict(rows, num, i, verdicts, tolerance, corner, axes, scratch)
            if verdicts[i] == 0:
                break
        else:
            left = 0
            for i in range(num):
                for k in range(n):
                    rows[left, k] = rows[i, k]
                left += verdicts[i] > 0
            _clear(rows, left, num, axes)
            num_open[board] = 0


@_inner
def _tolerance(rows: Array, num: int, axes: Any, corner: Array) -> float:
    """Bound the rounding error of every decision on this board: 0 if all arithmetic is exact. Fills `corner`."""
    bound = float(len(axes))
    for k in range(len(axes)):
        low = high = rows[0, k]
        for i in range(1, num):
            low, high = min(low, rows[i, k]), max(high, rows[i, k])
        bound *= max(high - low, 1.0) * (k + 1)
        corner[k] = low
    return 0.0 if bound < EXACT_FLOAT else bound * RELATIVE_ERROR


@_inlined
def _verdict(
    rows: Array,
    num: int,
    candidate: int,
    verdicts: Array,
    tolerance: float,
    corner: Array,
    axes: Any,
    scratch: tuple[Array, ...],
) -> int:
    """Decide whether a row is a vertex: 1 yes, -1 no, 0 open.

    It is a simplex over cofactors; every verdict is a certificate (docs/newton.md).
    """
    vectors, vectors_i, cofactors, cofactors_i, minors, minors_i, basis, entering = scratch
    n = len(axes)
    num_others = 0
    for i in range(num):
        if i != candidate and verdicts[i] >= 0:  # what is no vertex does not shape the polyhedron
            for k in range(n):
                vectors[num_others, k] = rows[i, k] - rows[candidate, k]
            num_others += 1
    num_vectors = num_others + n
    for j in range(n):
        basis[j] = num_others + j
        for k in range(n):
            vectors[num_others + j, k] = cofactors[j, k] = 1.0 if j == k else 0.0
        cofactors[n, j] = 0.0
    if tolerance == 0:
        _guess_weights(rows[candidate], corner, cofactors[n], axes)
    else:
        _copy(vectors, vectors_i, num_vectors, axes)
        _copy(cofactors, cofactors_i, n + 1, axes)

    for _ in range(MAX_PIVOTS):
        worst, least = -1, np.inf
        for v in range(num_vectors):
            value = _product(cofactors, cofactors_i, n, vectors, vectors_i, v, tolerance, axes)
            if (value < 0 or (value == 0 and v < num_others)) and value < least:
                worst, least = v, value
        if worst < 0:
            return 1
        for j in range(n):
            entering[j] = _product(cofactors, cofactors_i, j, vectors, vectors_i, worst, tolerance, axes)
        leaving = _leaving_row(cofactors, cofactors_i, entering, tolerance, axes)
        if leaving < 0:
            return -1
        basis[leaving] = worst
        _update_cofactors(vectors, basis, leaving, num_others, cofactors, minors, axes)
        if tolerance > 0:
            _update_cofactors(vectors_i, basis, leaving, num_others, cofactors_i, minors_i, axes)
    return 0


@_inlined
def _guess_weights(point: Array, corner: Array, weights: Array, axes: Any) -> None:
    """Write the weights that are tried first: the normal of x_1 ... x_n = const at the point.

    The origin is one below the corner.
    """
    for j in range(len(axes)):
        weight = 1.0
        for k in range(len(axes)):
            if k != j:
                weight *= point[k] - corner[k] + 1.0
        weights[j] = weight


@_inlined
def _product(
    rows: Array, rows_i: Array, j: int, vectors: Array, vectors_i: Array, v: int, tolerance: float, axes: Any
) -> float:
    """Multiply row j by vector v; within the tolerance of 0, the integers modulo 2**64 tell the product."""
    value = rows[j, 0] * vectors[v, 0]
    for k in range(1, len(axes)):
        value += rows[j, k] * vectors[v, k]
    if tolerance > 0 and abs(value) <= tolerance:
        residue = rows_i[j, 0] * vectors_i[v, 0]
        for k in range(1, len(axes)):
            residue += rows_i[j, k] * vectors_i[v, k]
        return float(residue)
    return value


@_inner
def _leaving_row(cofactors: Array, cofactors_i: Array, entering: Array, tolerance: float, axes: Any) -> int:
    """Find the row j of lexicographically least cofactors[j] / entering[j], entering[j] > 0; -1 if there is none."""
    best = -1
    for j in range(len(axes)):
        if entering[j] <= 0:
            continue
        if best < 0:
            best = j
            continue
        for k in range(len(axes)):
            new = _entry(cofactors, cofactors_i, j, k, tolerance) / entering[j]
            old = _entry(cofactors, cofactors_i, best, k, tolerance) / entering[best]
            if new != old:
                best = j if new < old else best
                break
    return best


@_inlined
def _entry(rows: Array, rows_i: Array, j: int, k: int, tolerance: float) -> float:
    if tolerance > 0 and abs(rows[j, k]) <= tolerance:
        return float(rows_i[j, k])
    return rows[j, k]


@_inner
def _update_cofactors(
    vectors: Array, basis: Array, changed: int, num_others: int, cofactors: Array, minors: Array, axes: Any
) -> None:
    """Write row j: x -> det(basis with vector j replaced by x); and row n, the weights: the sum over points.

    Sums and products only, so it holds for integers modulo 2**64 too. The row of the changed vector does not change.
    """
    n = len(axes)
    for j in range(n):
        if j == changed:
            continue
        if n == 3:
            a, b = vectors[basis[1 if j == 0 else 0]], vectors[basis[1 if j == 2 else 2]]
            sign = -1 if j == 1 else 1
            cofactors[j, 0] = sign * (a[1] * b[2] - a[2] * b[1])
            cofactors[j, 1] = sign * (a[2] * b[0] - a[0] * b[2])
            cofactors[j, 2] = sign * (a[0] * b[1] - a[1] * b[0])
        else:
            _expand(vectors, basis, j, minors, n)
            for k in range(n):
                minor = minors[(1 << n) - 1 - (1 << k)]
                cofactors[j, k] = -minor if (j + k) & 1 else minor
    for k in range(n):
        total = cofactors[n, 0] - cofactors[n, 0]
        for j in range(n):
            if basis[j] < num_others:
                total += cofactors[j, k]
        cofactors[n, k] = total


@_inner
def _expand(vectors: Array, basis: Array, omitted: int, minors: Array, n: int) -> None:
    """Expand by Laplace: minors[S] of the first |S| basis vectors but the omitted one, in the rows S (a bitmask)."""
    minors[0] = 1
    for mask in range(1, (1 << n) - 1):
        size = 0
        for r in range(n):
            size += mask >> r & 1
        column = vectors[basis[size - 1 if size - 1 < omitted else size]]
        total = minors[0] - minors[0]
        rank = 0
        for r in range(n):
            if mask >> r & 1:
                rank += 1
                term = column[r] * minors[mask ^ (1 << r)]
                total += -term if (size - rank) & 1 else term
        minors[mask] = total
