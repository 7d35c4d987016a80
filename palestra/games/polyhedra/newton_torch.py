"""Finds in pure torch, on any device, which Pareto-minimal points are vertices: the bits of newton_kernel.py.

The mathematics is in docs/newton.md. Letters: B boards, N points, n dimension, P pairs (board, candidate).
"""

import torch
from torch import Tensor

from palestra.games.polyhedra.newton_kernel import EXACT_FLOAT, MAX_DIMENSION, MAX_PIVOTS, MAX_TOLERANCE, RELATIVE_ERROR

STATIC_PIVOTS_PER_DIMENSION = 8  # where the loop cannot stop early: twice the largest number ever needed


def vertices_or_open(points: Tensor, minimal: Tensor, may_wait: bool) -> tuple[Tensor, Tensor]:
    """Find the vertices among the Pareto-minimal points, bool (B, N), and the boards left to exact integers, bool (B,).

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
    return torch.where(few.unsqueeze(1), minimal, vertex & minimal), beyond | ((stuck & minimal).any(1) & ~few)


def _tolerance(points: Tensor, minimal: Tensor) -> tuple[Tensor, Tensor]:
    """Bound the rounding error of every decision on a board, (B,): 0 where all arithmetic is exact.

    Also return the least value of each coordinate, (B, n).
    """
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
        """Return values with the right sign, from their float64 and their residue modulo 2**64."""
        if len(values) == 1:
            return values[0]
        tolerance = self.tolerance.view(-1, *[1] * (values[0].dim() - 1))
        return torch.where((tolerance > 0) & (values[0].abs() <= tolerance), values[1].to(torch.float64), values[0])

    def pivot(self) -> None:
        """Pivot those still running: certify a vertex, or certify that there is none, or exchange a vector."""
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
        """Compute weights . (q - candidate) for every row q: (P, N)."""
        total: Tensor | None = None
        for k in range(weights.shape[1]):
            column = self.points[:, :, k].to(weights.dtype)[self.board]
            term = weights[:, k : k + 1] * (column - candidate[:, k : k + 1])
            total = term if total is None else total + term
        assert total is not None
        return total

    def _vector(self, index: Tensor, candidate: Tensor) -> Tensor:
        """Return vector `index` of each pair, (P, n): q - candidate below N, unit vectors from N on."""
        N, n = self.others.shape[1], candidate.shape[1]
        difference = self.points[self.board, index.clamp(max=N - 1)].to(candidate.dtype) - candidate
        unit = torch.arange(N, N + n, device=index.device) == index.unsqueeze(1)
        return torch.where((index < N).unsqueeze(1), difference, unit.to(candidate.dtype))

    def _leaving_row(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """Find the row j of lexicographically least cofactors[j] / u[j], u[j] > 0, and whether there is one."""
        possible = u > 0
        exists = possible.any(1)
        ratios = self.decided(self.cofactors) / u.unsqueeze(2)
        for k in range(u.shape[1]):
            ratio = ratios[:, :, k].masked_fill(~possible, torch.inf)
            possible = possible & (ratio == ratio.amin(1, keepdim=True))
        return possible.to(torch.int8).argmax(1), exists


def _guessed_weights(height: Tensor) -> Tensor:
    """Return the weights that are tried first: the normal of x_1 ... x_n = const at the point, (P, n).

    height: (P, n), the point's coordinates above the board's corner, one below which the origin lies.
    """
    columns = (height + 1.0).unbind(1)
    weights = []
    for j in range(len(columns)):
        weight = torch.ones_like(columns[j])
        for column in columns[:j] + columns[j + 1 :]:
            weight = weight * column
        weights.append(weight)
    return torch.stack(weights, dim=1)


def _product(a: Tensor, b: Tensor) -> Tensor:
    """Sum products over the last dimension, from the first to the last."""
    total = a[..., 0] * b[..., 0]
    for k in range(1, a.shape[-1]):
        total = total + a[..., k] * b[..., k]
    return total


def _cofactors(basis: Tensor) -> Tensor:
    """Compute cofactors (P, n, n) by Laplace expansion: row j is x -> det(basis with vector j replaced by x)."""
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
