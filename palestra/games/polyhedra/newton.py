"""Exact reductions of point sets to the vertices of their Newton polyhedra, or to their Pareto-minimal points.

The Newton polyhedron of S is conv(S + R^n_{>=0}). p is a vertex exactly when some weights w >= 0 have w.p < w.q for
every other point q. docs/newton.md says how that is decided, and why exactly. Here are the public functions. Three
modules find the vertices: newton_kernel.py for CPUs, its pure-torch version newton_torch.py for any device, and
newton_exact.py for boards beyond the range of both.

Boards are float64 (B, N, n): integers below 2**53; rows with a negative entry are absent. Letters: B boards, N points,
n dimension.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from functools import cache
from itertools import pairwise
from math import lcm
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from palestra.games.game import Kernel
from palestra.games.polyhedra import newton_kernel
from palestra.games.polyhedra.newton_kernel import EXACT_FLOAT
from palestra.games.polyhedra.newton_torch import vertices_or_open
from palestra.randomness import random_integers, runs_on_cpu

Reduction = Literal["vertices", "minimal"]

# In play, where the other thread has gone to sleep, handing over a chunk costs about 100 us.
MIN_BOARDS_PER_CHUNK = 1024


# ---- for players and mathematicians ----------------------------------------------------------------


def newton_vertices(points: Tensor) -> Tensor:
    """Tell which rows are vertices of their Newton polyhedron conv(S + R^n_{>=0}); of equal points the first is.

    points: (B, N, n) of any integer or float dtype, any device; rows with a negative entry are absent. bool (B, N).
    Always exact: integers below 2**53 at the speed of the kernels, any other finite number (taken for the rational
    that it is) one board at a time in exact integers. Raises ValueError for another shape and for NaN or infinity.
    """
    if points.dim() != 3:
        raise ValueError(f"points: expected shape (batch, max_points, n), got {tuple(points.shape)}")
    if not torch.isfinite(points).all():
        raise ValueError("points: expected finite coordinates, got NaN or infinity")
    hard = ((points >= EXACT_FLOAT) | (points != points.round() if points.is_floating_point() else False)).any(2).any(1)
    boards = points.to(torch.float64).masked_fill(hard[:, None, None], -1.0)
    reduced, num_exact = reduce_points(boards, "vertices", "numba" if points.device.type == "cpu" else "torch")
    mask = _find_rows(boards, reduced)
    for board in (hard | (num_exact < 0)).nonzero().flatten().tolist():
        mask[board] = torch.tensor(exact_vertices(points[board].tolist()), dtype=torch.bool, device=points.device)
    return mask


def minimal_points(points: Tensor) -> Tensor:
    """Tell which rows are Pareto-minimal: no other is <= in every coordinate; of equal points the first is.

    points: (B, N, n) of any dtype and device; rows with a negative entry are absent. bool (B, N). Exact.
    """
    minimal = (points >= 0).all(2)
    index = torch.arange(points.shape[1], device=points.device)
    for j in range(points.shape[1]):  # once beaten, a point beats none that its own conqueror does not
        other = points[:, j : j + 1]
        below, equal = (other <= points).all(2), (other == points).all(2)
        minimal = minimal & ~(minimal[:, j : j + 1] & below & (~equal | (index > j)))
    return minimal


# ---- for the game ------------------------------------------------------------------------------------


def reduce_points(points: Tensor, reduction: Reduction, kernel: Kernel) -> tuple[Tensor, Tensor]:
    """Reduce boards to the surviving rows in their order, packed to the front, -1 behind them.

    points: float64 (B, N, n), absent rows anywhere. Also return a count, int64 (B,): how many points of a board were
    beyond the range of the kernels, and were decided by exact integers (0 for nearly all). Off the CPU, where exact
    integers would mean a wait, it is negative for such a board, and the board keeps its Pareto-minimal points.
    """
    if uses_numba(kernel, points):
        return _run_kernel(newton_kernel.reduce_boards, (points,), torch.from_numpy(np.empty(points.shape)), reduction)
    return _reduce(points, reduction, may_wait=points.device.type == "cpu")


def blow_up(
    points: Tensor, subset: Tensor, axis: Tensor, reduction: Reduction, kernel: Kernel
) -> tuple[Tensor, Tensor]:
    """Play the move x_axis <- sum of x_k over k in subset, then `reduce_points`. The input is left as it is.

    points: float64 (B, N, n), packed. subset: int64 (B,), bitmasks of coordinates; 0 copies a board unchanged. axis:
    int64 (B,). Sums must stay below 2**53: the caller ends a game in time.
    """
    if uses_numba(kernel, points):
        boards = points.clone(memory_format=torch.contiguous_format)
        return boards, blow_up_in_place(boards, subset, axis, reduction)
    coordinates = torch.arange(points.shape[2], device=points.device)
    chosen = (subset.unsqueeze(1) >> coordinates) & 1
    total = torch.zeros_like(points[:, :, 0])
    for k in range(points.shape[2]):
        total = total + points[:, :, k] * chosen[:, k : k + 1]
    moved = torch.where((coordinates == axis.unsqueeze(1)).unsqueeze(1), total.unsqueeze(2), points)
    moved = moved.masked_fill((points < 0).any(2, keepdim=True), -1.0)
    reduced, num_exact = _reduce(moved, reduction, may_wait=points.device.type == "cpu")
    return torch.where((subset == 0)[:, None, None], points, reduced), num_exact.masked_fill(subset == 0, 0)


def blow_up_in_place(points: Tensor, subset: Tensor, axis: Tensor, reduction: Reduction) -> Tensor:
    """Play the move of `blow_up` on contiguous boards of a CPU, written over them; return its count, int64 (B,)."""
    return _run_kernel(newton_kernel.blow_up_boards, (subset, axis), points, reduction)[1]


def random_points(
    keys: Tensor, num_points: int, dimension: int, max_value: int, reduction: Reduction, kernel: Kernel
) -> Tensor:
    """Draw fresh boards float64 (B, num_points, dimension), reduced and packed; coordinates are 0..max_value.

    keys: int64 (B,), one for each board. The integers are those of `random_integers(keys, num_points * dimension,
    max_value + 1)`.
    """
    shape = (len(keys), num_points, dimension)
    if uses_numba(kernel, keys):
        points = torch.from_numpy(np.empty(shape))
        refill_points(points, torch.ones(len(keys), dtype=torch.bool), keys, max_value, reduction)
        return points
    integers = random_integers(keys, num_points * dimension, max_value + 1)
    return _reduce(integers.to(torch.float64).view(shape), reduction, may_wait=keys.device.type == "cpu")[0]


def refill_points(points: Tensor, where: Tensor, keys: Tensor, max_value: int, reduction: Reduction) -> None:
    """Draw `random_points` in the places `where`, bool (B,), of boards (B, N, n) on a CPU; the others stay."""
    _run_kernel(newton_kernel.random_boards, (keys, where), points, reduction, max_value + 1)


def measure(points: Tensor, kernel: Kernel) -> tuple[Tensor, Tensor]:
    """Count the points of packed boards, int64 (B,), and find their largest coordinates, float64 (B,).

    They are 0 and -1 for an empty board.
    """
    if not uses_numba(kernel, points):
        return (points[:, :, 0] >= 0).sum(1), points.amax(dim=(1, 2))
    num_points, largest = np.empty(len(points), dtype=np.int64), np.empty(len(points))
    newton_kernel.measure_boards(points.contiguous().numpy(), num_points, largest, axes_of(points.shape[2]))
    return torch.from_numpy(num_points), torch.from_numpy(largest)


# ---- the numba kernels, in threads -------------------------------------------------------------------


def uses_numba(kernel: Kernel, tensor: Tensor) -> bool:
    return kernel == "numba" and runs_on_cpu(tensor)


def _run_kernel(
    run: Callable[..., None], inputs: tuple[Tensor, ...], out: Tensor, reduction: Reduction, *extra: int
) -> tuple[Tensor, Tensor]:
    """Call run(*inputs, out, num_open, *extra, vertices, axes), decide what it left open, return out and num_exact."""
    num_exact = np.empty(len(out), dtype=np.int64)
    arrays = [tensor.contiguous().numpy() for tensor in inputs]
    vertices = True if reduction == "vertices" else None
    run_in_chunks(run, (*arrays, out.numpy(), num_exact), *extra, vertices, axes_of(out.shape[2]))
    counts = torch.from_numpy(num_exact)
    if reduction == "vertices" and num_exact.any():
        _settle(out, counts)
    return out, counts


def run_in_chunks(run: Callable[..., None], arrays: Sequence[Any], *arguments: Any) -> None:
    """Call run(*arrays, *arguments) on equal chunks of the batch, one per thread of torch; results are the same."""
    num_boards = len(arrays[0])
    num_chunks = min(torch.get_num_threads(), num_boards // MIN_BOARDS_PER_CHUNK)
    if num_chunks <= 1:
        run(*arrays, *arguments)
        return
    bounds = [num_boards * chunk // num_chunks for chunk in range(num_chunks + 1)]
    first, *others = [[array[start:stop] for array in arrays] for start, stop in pairwise(bounds)]
    futures = [_pool().submit(run, *part, *arguments) for part in others]
    run(*first, *arguments)
    for future in futures:
        future.result()


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(thread_name_prefix="newton")


@cache
def axes_of(dimension: int) -> Any:
    """Return 0, ..., dimension - 1, as the kernels want them."""
    # A tuple's length is known to the compiler and unrolls the loops, at the price of a compilation per dimension.
    return (0, 1, 2) if dimension == 3 else np.arange(dimension)


# ---- in torch ----------------------------------------------------------------------------------------


def _reduce(points: Tensor, reduction: Reduction, may_wait: bool) -> tuple[Tensor, Tensor]:
    """Do `reduce_points` in torch. may_wait: steps may depend on the data, and exact integers may be asked."""
    keep, num_exact = minimal_points(points), torch.zeros(len(points), dtype=torch.int64, device=points.device)
    if reduction == "minimal":
        return _packed(points, keep), num_exact
    vertex, is_open = vertices_or_open(points, keep, may_wait)
    num_exact = keep.sum(1).masked_fill(~is_open, 0)
    packed = _packed(points, torch.where(is_open.unsqueeze(1), keep, vertex))
    if not may_wait:
        return packed, -num_exact
    _settle(packed, num_exact)
    return packed, num_exact


def _packed(points: Tensor, keep: Tensor) -> Tensor:
    order = torch.argsort(~keep, dim=1, stable=True).unsqueeze(2)
    kept = points.masked_fill(~keep.unsqueeze(2), -1.0)
    return kept.gather(1, order.expand_as(kept))


def _find_rows(points: Tensor, packed: Tensor) -> Tensor:
    """Find the rows of `points` that became those of `packed` (some, in their order, no two equal): bool (B, N)."""
    board = torch.arange(len(points), device=points.device)
    next_row = torch.zeros_like(board)
    kept = []
    for i in range(points.shape[1]):
        row = points[:, i]
        same = (row == packed[board, next_row.clamp(max=points.shape[1] - 1)]).all(1) & (row >= 0).all(1)
        same = same & (next_row < points.shape[1])
        next_row = next_row + same
        kept.append(same)
    return torch.stack(kept, dim=1) if kept else points.new_zeros((len(points), 0), dtype=torch.bool)


def _settle(boards: Tensor, num_exact: Tensor) -> None:
    """Decide the boards with a positive count by exact integers, in place. The others are reduced already."""
    for board in num_exact.nonzero().flatten().tolist():
        keep = torch.tensor(exact_vertices(boards[board].tolist()))
        boards[board] = _packed(boards[board : board + 1], keep.unsqueeze(0))[0]


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
        if (column := next((c for c, gain in enumerate(gains) if gain > 0), None)) is None:
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
