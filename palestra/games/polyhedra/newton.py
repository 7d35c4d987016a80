"""Exact reductions of point sets: the vertices of the Newton polyhedron conv(S + R^n_{>=0}), and the Pareto-minimal
points.

p is a vertex exactly when some weights w >= 0 have w.p < w.q for every other point q. docs/newton.md says how that is
decided, and why exactly. Here are the public functions, the pure-torch twin of newton_kernel.py (any device), and the
exact integers for boards beyond the range of both.

Boards are float64 (B, N, n): integers below 2**53; rows with a negative entry are absent. Letters: B boards, N points,
n dimension, P pairs (board, candidate).
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
from palestra.games.polyhedra.newton_kernel import EXACT_FLOAT, MAX_DIMENSION, MAX_PIVOTS, MAX_TOLERANCE, RELATIVE_ERROR
from palestra.randomness import random_integers, runs_on_cpu

Reduction = Literal["vertices", "minimal"]

MIN_BOARDS_PER_CHUNK = (
    1024  # in play, where the other thread has gone to sleep, handing over a chunk costs about 100 us
)
STATIC_PIVOTS_PER_DIMENSION = 8  # where the loop cannot stop early: twice the largest number ever needed


# ---- for players and mathematicians ----------------------------------------------------------------


def newton_vertices(points: Tensor) -> Tensor:
    """Which rows are vertices of their Newton polyhedron conv(S + R^n_{>=0}); of equal points the first.

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
        mask[board] = torch.tensor(_exact_vertices(points[board].tolist()), dtype=torch.bool, device=points.device)
    return mask


def minimal_points(points: Tensor) -> Tensor:
    """Which rows are Pareto-minimal: no other is <= in every coordinate; of equal points the first.

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
    """The surviving rows in their order, packed to the front, -1 behind them; and int64 (B,): decided by exact
    integers.

    points: float64 (B, N, n), absent rows anywhere. The count is how many points of a board were beyond the range of
    the kernels (0 for nearly all). Off the CPU, where exact integers would mean a wait, it is negative for such a
    board, and the board keeps its Pareto-minimal points.
    """
    if uses_numba(kernel, points):
        return _run_kernel(newton_kernel.reduce_boards, (points,), _new_boards(points.shape), reduction)
    return _reduce(points, reduction, may_wait=points.device.type == "cpu")


def blow_up(
    points: Tensor, subset: Tensor, axis: Tensor, reduction: Reduction, kernel: Kernel
) -> tuple[Tensor, Tensor]:
    """The move x_axis <- sum of x_k over k in subset, then `reduce_points`. The input is left as it is.

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
    """`blow_up` of contiguous boards on a CPU, written over them; gives its count, int64 (B,)."""
    return _run_kernel(newton_kernel.blow_up_boards, (subset, axis), points, reduction)[1]


def random_points(
    keys: Tensor, num_points: int, dimension: int, max_value: int, reduction: Reduction, kernel: Kernel
) -> Tensor:
    """Fresh boards float64 (B, num_points, dimension), reduced and packed; coordinates are 0..max_value, one key a
    board.

    keys: int64 (B,). The integers are those of `random_integers(keys, num_points * dimension, max_value + 1)`.
    """
    shape = (len(keys), num_points, dimension)
    if uses_numba(kernel, keys):
        points = _new_boards(shape)
        refill_points(points, torch.ones(len(keys), dtype=torch.bool), keys, max_value, reduction)
        return points
    integers = random_integers(keys, num_points * dimension, max_value + 1)
    return _reduce(integers.to(torch.float64).view(shape), reduction, may_wait=keys.device.type == "cpu")[0]


def refill_points(points: Tensor, where: Tensor, keys: Tensor, max_value: int, reduction: Reduction) -> None:
    """`random_points` in the places `where`, bool (B,), of boards (B, N, n) on a CPU; the others stay as they are."""
    _run_kernel(newton_kernel.random_boards, (keys, where), points, reduction, max_value + 1)


def measure(points: Tensor, kernel: Kernel) -> tuple[Tensor, Tensor]:
    """The numbers of points on packed boards, int64 (B,), and their largest coordinates, float64 (B,); 0 and -1 if
    empty."""
    if not uses_numba(kernel, points):
        return (points[:, :, 0] >= 0).sum(1), points.amax(dim=(1, 2))
    num_points, largest = np.empty(len(points), dtype=np.int64), np.empty(len(points))
    newton_kernel.measure_boards(points.contiguous().numpy(), num_points, largest, axes_of(points.shape[2]))
    return torch.from_numpy(num_points), torch.from_numpy(largest)


# ---- the numba kernels, in threads -------------------------------------------------------------------


def uses_numba(kernel: Kernel, tensor: Tensor) -> bool:
    return kernel == "numba" and runs_on_cpu(tensor)


def _new_boards(shape: tuple[int, ...]) -> Tensor:
    return torch.from_numpy(np.empty(shape))


def _run_kernel(
    run: Callable[..., None], inputs: tuple[Tensor, ...], out: Tensor, reduction: Reduction, *extra: int
) -> tuple[Tensor, Tensor]:
    """run(*inputs, out, num_open, *extra, vertices, axes), then what it left open; gives out and num_exact."""
    num_exact = np.empty(len(out), dtype=np.int64)
    arrays = [tensor.contiguous().numpy() for tensor in inputs]
    vertices = True if reduction == "vertices" else None
    run_in_chunks(run, (*arrays, out.numpy(), num_exact), *extra, vertices, axes_of(out.shape[2]))
    counts = torch.from_numpy(num_exact)
    if reduction == "vertices" and num_exact.any():
        _settle(out, counts)
    return out, counts


def run_in_chunks(run: Callable[..., None], arrays: Sequence[Any], *arguments: Any) -> None:
    """run(*arrays, *arguments) on equal chunks of the batch, one per thread of torch. Boards do not see their chunk."""
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
    """0, ..., dimension - 1, as the kernels want them."""
    # A tuple's length is known to the compiler and unrolls the loops, at the price of a compilation per dimension.
    return (0, 1, 2) if dimension == 3 else np.arange(dimension)


# ---- the torch twin ----------------------------------------------------------------------------------


def _reduce(points: Tensor, reduction: Reduction, may_wait: bool) -> tuple[Tensor, Tensor]:
    """`reduce_points`. may_wait: the number of steps may depend on the data, and exact integers may be asked."""
    keep, num_exact = minimal_points(points), torch.zeros(len(points), dtype=torch.int64, device=points.device)
    if reduction == "minimal":
        return _packed(points, keep), num_exact
    vertex, is_open = _vertices_or_open(points, keep, may_wait)
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
    """Which rows of `points` became the rows of `packed` (some of them, in their order, no two equal): bool (B, N)."""
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


def _vertices_or_open(points: Tensor, minimal: Tensor, may_wait: bool) -> tuple[Tensor, Tensor]:
    """bool (B, N): vertices among the Pareto-minimal points; bool (B,): boards that exact integers have to decide.

    The simplex of newton_kernel for all candidates at once: P pairs (board, row); no tensor has P * N * n entries.
    """
    B, N, n = points.shape
    few = minimal.sum(1) <= 2
    tolerance_B, corner = _tolerance(points, minimal)
    beyond = ~few & (tolerance_B >= MAX_TOLERANCE if n <= MAX_DIMENSION else True)
    if may_wait:
        board, row = (minimal & ~(few | beyond).unsqueeze(1)).nonzero(as_tuple=True)
    else:
        index = torch.arange(B * N, device=points.device)
        board, row = index // N, index % N
    others = minimal[board] & (torch.arange(N, device=points.device) != row.unsqueeze(1))
    candidate, tolerance = points[board, row], tolerance_B[board]
    with_residues = not may_wait or bool((tolerance > 0).any())
    simplex = _Simplex(points, board, candidate, others, tolerance, candidate - corner[board], with_residues)
    num_pivots = MAX_PIVOTS if may_wait else STATIC_PIVOTS_PER_DIMENSION * n
    for _ in range(num_pivots if n <= MAX_DIMENSION else 0):
        if may_wait and not simplex.running.any():
            break
        simplex.pivot()
    vertex, stuck = torch.zeros_like(minimal), torch.zeros_like(minimal)
    vertex[board, row] = simplex.vertex
    stuck[board, row] = simplex.running
    is_open = beyond | ((stuck & minimal).any(1) & ~few)
    return torch.where(few.unsqueeze(1), minimal, vertex & minimal), is_open


def _tolerance(points: Tensor, minimal: Tensor) -> tuple[Tensor, Tensor]:
    """Bound of the rounding error of every decision on a board, (B,): 0 where all arithmetic is exact; and the least
    value of each coordinate, (B, n)."""
    absent = ~minimal.unsqueeze(2)
    low = points.masked_fill(absent, torch.inf).amin(1)
    high = points.masked_fill(absent, -torch.inf).amax(1)
    bound = torch.full_like(low[:, 0], float(points.shape[2]))
    for k in range(points.shape[2]):
        bound = bound * ((high[:, k] - low[:, k]).clamp(min=1.0) * (k + 1))
    return torch.where(bound < EXACT_FLOAT, 0.0, bound * RELATIVE_ERROR), low


class _Simplex:
    """P simplices over cofactors, pivoting together; `running`, `vertex`: bool (P,).

    All is computed in float64 and, if any tolerance is positive, in integers modulo 2**64 too: lists of one or two.
    """

    def __init__(
        self,
        points: Tensor,
        board: Tensor,
        candidate: Tensor,
        others: Tensor,
        tolerance: Tensor,
        height: Tensor,
        with_residues: bool,
    ) -> None:
        P, n = candidate.shape
        self.points, self.board, self.others, self.tolerance = points, board, others, tolerance
        self.kinds = [torch.float64, torch.int64] if with_residues else [torch.float64]
        self.candidate = [candidate.to(kind) for kind in self.kinds]
        identity = torch.eye(n, device=points.device)
        self.basis = [identity.to(kind).repeat(P, 1, 1) for kind in self.kinds]  # (P, n, n): [:, j] is vector j
        self.cofactors = [basis.clone() for basis in self.basis]
        self.weights = [_guessed_weights(height).masked_fill(tolerance.unsqueeze(1) > 0, 0).to(k) for k in self.kinds]
        self.is_point = torch.zeros((P, n), dtype=torch.bool, device=points.device)
        self.running = torch.ones(P, dtype=torch.bool, device=points.device)
        self.vertex = torch.zeros(P, dtype=torch.bool, device=points.device)

    def decided(self, values: list[Tensor]) -> Tensor:
        """Values with the right sign, of their float64 and their residue modulo 2**64."""
        if len(values) == 1:
            return values[0]
        tolerance = self.tolerance.view(-1, *[1] * (values[0].dim() - 1))
        return torch.where((tolerance > 0) & (values[0].abs() <= tolerance), values[1].to(torch.float64), values[0])

    def pivot(self) -> None:
        """One pivot of those still running: certify a vertex, or certify that there is none, or exchange a vector."""
        n, N = self.candidate[0].shape[1], self.others.shape[1]
        prices = self.decided([self._prices(w, c) for w, c in zip(self.weights, self.candidate, strict=True)])
        slack = self.decided(self.weights)
        violated = torch.cat([self.others & (prices <= 0), slack < 0], 1)
        worst = torch.cat([prices, slack], 1).masked_fill(~violated, torch.inf).argmin(1)
        some = violated.any(1)
        self.vertex = self.vertex | (self.running & ~some)

        entering = [self._vector(worst, c) for c in self.candidate]
        u = self.decided(
            [
                _product(cofactors, vector.unsqueeze(1))
                for cofactors, vector in zip(self.cofactors, entering, strict=True)
            ]
        )
        leaving, exists = self._leaving_row(u)
        self.running = self.running & some & exists
        change = (torch.arange(n, device=u.device) == leaving.unsqueeze(1)) & self.running.unsqueeze(1)
        self.is_point = torch.where(change, (worst < N).unsqueeze(1), self.is_point)
        self.basis = [
            torch.where(change.unsqueeze(2), vector.unsqueeze(1), basis)
            for vector, basis in zip(entering, self.basis, strict=True)
        ]
        self.cofactors = [_cofactors(basis) for basis in self.basis]
        self.weights = [_product(cofactors.mT, self.is_point.unsqueeze(1)) for cofactors in self.cofactors]

    def _prices(self, weights: Tensor, candidate: Tensor) -> Tensor:
        """weights . (q - candidate) for every row q: (P, N)."""
        total: Tensor | None = None
        for k in range(weights.shape[1]):
            column = self.points[:, :, k].to(weights.dtype)[self.board]
            term = weights[:, k : k + 1] * (column - candidate[:, k : k + 1])
            total = term if total is None else total + term
        assert total is not None
        return total

    def _vector(self, index: Tensor, candidate: Tensor) -> Tensor:
        """Vector `index` of each pair: q - candidate below N, unit vectors from N on. (P, n)."""
        N, n = self.others.shape[1], candidate.shape[1]
        difference = self.points[self.board, index.clamp(max=N - 1)].to(candidate.dtype) - candidate
        unit = torch.arange(N, N + n, device=index.device) == index.unsqueeze(1)
        return torch.where((index < N).unsqueeze(1), difference, unit.to(candidate.dtype))

    def _leaving_row(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """The lexicographically least cofactors[j] / u[j] among positive u[j], and whether there is one."""
        possible = u > 0
        exists = possible.any(1)
        ratios = self.decided(self.cofactors) / u.unsqueeze(2)
        for k in range(u.shape[1]):
            ratio = ratios[:, :, k].masked_fill(~possible, torch.inf)
            possible = possible & (ratio == ratio.amin(1, keepdim=True))
        return possible.to(torch.int8).argmax(1), exists


def _guessed_weights(height: Tensor) -> Tensor:
    """The weights that are tried first: the normal of x_1 ... x_n = const at the point, from its coordinates above one
    below the corner of the board. (P, n) to (P, n)."""
    columns = (height + 1.0).unbind(1)
    weights = []
    for j in range(len(columns)):
        weight = torch.ones_like(columns[j])
        for column in columns[:j] + columns[j + 1 :]:
            weight = weight * column
        weights.append(weight)
    return torch.stack(weights, dim=1)


def _product(a: Tensor, b: Tensor) -> Tensor:
    """Sum of products over the last dimension, from the first to the last."""
    total = a[..., 0] * b[..., 0]
    for k in range(1, a.shape[-1]):
        total = total + a[..., k] * b[..., k]
    return total


def _cofactors(basis: Tensor) -> Tensor:
    """(P, n, n) to (P, n, n): row j of the result is x -> det(basis with vector j replaced by x), by Laplace
    expansion."""
    P, n, _ = basis.shape
    omitting = torch.stack([torch.cat([basis[:, :j], basis[:, j + 1 :]], 1) for j in range(n)], 1)  # (P, n, n - 1, n)
    minors = {0: torch.ones((P, n), dtype=basis.dtype, device=basis.device)}
    for mask in range(1, 2**n - 1):
        rows = [r for r in range(n) if mask >> r & 1]
        total: Tensor | None = None
        for rank, r in enumerate(rows, start=1):
            term = omitting[:, :, len(rows) - 1, r] * minors[mask ^ 1 << r]
            term = -term if (len(rows) - rank) % 2 else term
            total = term if total is None else total + term
        assert total is not None
        minors[mask] = total
    columns = [minors[2**n - 1 - 2**k] for k in range(n)]
    index = torch.arange(n, device=basis.device)
    odd = (index + index.unsqueeze(1)) % 2 == 1
    cofactors = torch.stack(columns, dim=2)
    return torch.where(odd, -cofactors, cofactors)


# ---- exact integers ----------------------------------------------------------------------------------


def _settle(boards: Tensor, num_exact: Tensor) -> None:
    """Decide the boards with a positive count by exact integers, in place. The others are reduced already."""
    for board in num_exact.nonzero().flatten().tolist():
        keep = torch.tensor(_exact_vertices(boards[board].tolist()))
        boards[board] = _packed(boards[board : board + 1], keep.unsqueeze(0))[0]


def _exact_vertices(rows: list[list[Any]]) -> list[bool]:
    """Which rows (integers or floats, taken for the rationals that they are) are vertices; of equal rows the first."""
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
    """Is there w >= 0 with w.d > 0 for all differences d? Integer simplex (Edmonds 1967, Bareiss 1968), lexicographic.

    It asks whether max sum(l) subject to sum l_d d <= (1, e, e^2, ...), l >= 0 is bounded. Every entry of the tableau
    is a minor of the input, and every division leaves no remainder.
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
