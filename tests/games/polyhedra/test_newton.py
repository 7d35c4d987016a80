"""Covers palestra.games.polyhedra, palestra.games.polyhedra.newton_kernel, palestra.games.polyhedra.newton_torch."""

import zlib
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from palestra.games.polyhedra import newton, newton_torch
from palestra.games.polyhedra.newton import blow_up, minimal_points, newton_vertices, random_points, reduce_points
from palestra.randomness import random_integers
from tests.games.oracles import FAMILIES, lp_margins, on_a_plane, point_sets, rational_vertices

KERNELS = ("numba", "torch")
REDUCTIONS = ("vertices", "minimal")


def family_points(family: str, num_sets: int, num_points: int, n: int) -> Tensor:
    rng = np.random.default_rng(zlib.crc32(f"{family}/{n}".encode()))
    return torch.from_numpy(point_sets(rng, family, num_sets, num_points, n))


def packed(points: Tensor, mask: Tensor) -> Tensor:
    result = torch.full(points.shape, -1.0, dtype=torch.float64)
    for board in range(len(points)):
        kept = points[board, mask[board]]
        result[board, : len(kept)] = kept
    return result


def in_play(num_worlds: int, num_points: int, n: int, num_moves: int) -> tuple[Tensor, Tensor, Tensor]:
    """Boards after some random moves, and the next moves: points, subset, axis. Every tenth subset is 0."""
    generator = torch.Generator().manual_seed(n)
    points = random_points(torch.arange(num_worlds), num_points, n, 20, "minimal", "torch")
    masks = torch.tensor([mask for mask in range(2**n) if mask.bit_count() >= 2])
    for move in range(num_moves + 1):
        subset = masks[torch.randint(len(masks), (num_worlds,), generator=generator)]
        chosen = (subset.unsqueeze(1) >> torch.arange(n)) & 1
        axis = (torch.rand((num_worlds, n), generator=generator) * chosen).argmax(1)
        if move < num_moves:
            points, _ = blow_up(points, subset, axis, "minimal", "torch")
    subset[::10] = 0
    return points, subset, axis


def test_a_point_above_a_segment_between_others_is_no_vertex() -> None:
    assert newton_vertices(torch.tensor([[[0, 3], [2, 2], [3, 0]]])).tolist() == [[True, False, True]]


@pytest.mark.parametrize("n", range(2, 7))
@pytest.mark.parametrize("family", FAMILIES)
def test_vertices_agree_with_rational_simplex(family: str, n: int) -> None:
    points = family_points(family, num_sets=12, num_points=7, n=n)
    truth = torch.tensor([rational_vertices(rows) for rows in points.tolist()])
    assert torch.equal(newton_vertices(points), truth)
    for kernel in KERNELS:
        assert torch.equal(reduce_points(points.double(), "vertices", kernel)[0], packed(points, truth))


@pytest.mark.parametrize("n", range(2, 7))
def test_vertices_agree_with_linear_programming(n: int) -> None:
    points = family_points("large", num_sets=4, num_points=12, n=n)
    margins = torch.tensor([lp_margins(rows) for rows in points.tolist()])
    assert (margins.abs() > 1e-3).all()  # none is degenerate: one unit in a million would show
    assert torch.equal(newton_vertices(points), margins > 0)


@settings(max_examples=150, derandomize=True)
@given(
    st.integers(2, 4).flatmap(
        lambda n: st.lists(st.lists(st.integers(-1, 6), min_size=n, max_size=n), min_size=1, max_size=7)
    )
)
def test_vertices_of_any_small_set_agree_with_rational_simplex(rows: list[list[int]]) -> None:
    assert newton_vertices(torch.tensor([rows])).tolist() == [rational_vertices(rows)]


@pytest.mark.parametrize("n", range(2, 7))
@pytest.mark.parametrize("family", FAMILIES)
def test_kernels_agree_to_the_bit(family: str, n: int) -> None:
    points = family_points(family, num_sets=40, num_points=12, n=n).double()
    for reduction in REDUCTIONS:
        for a, b in zip(*(reduce_points(points, reduction, kernel) for kernel in KERNELS), strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("family", FAMILIES)
def test_minimal_points_are_those_that_no_other_point_is_below(family: str, kernel: str) -> None:
    points = family_points(family, num_sets=20, num_points=12, n=3)
    truth = torch.zeros(points.shape[:2], dtype=torch.bool)
    for board, rows in enumerate(points.tolist()):
        for i, p in enumerate(rows):
            below = [j for j, q in enumerate(rows) if min(q) >= 0 and all(x <= y for x, y in zip(q, p, strict=True))]
            truth[board, i] = min(p) >= 0 and all(rows[j] == p and j >= i for j in below)
    assert torch.equal(minimal_points(points), truth)
    assert torch.equal(reduce_points(points.double(), "minimal", kernel)[0], packed(points, truth))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("n", "size"), [(3, 2**32), (4, 10**6), (5, 10**5), (6, 10**4)])
def test_ties_beyond_float64_are_decided_without_exact_integers(n: int, size: int, kernel: str) -> None:
    rng = np.random.default_rng(n)
    points = torch.from_numpy(2 * on_a_plane(rng, size // 2, (10, 7, n)))
    points[:, 5] = (points[:, 0] + points[:, 1]) // 2  # on a segment, and
    points[:, 6] = (points[:, 2] + points[:, 3]) // 2
    points[:, 6, 0] -= 1  # just below one
    truth = torch.tensor([rational_vertices(rows) for rows in points.tolist()])
    reduced, num_exact = reduce_points(points.double(), "vertices", kernel)
    assert not num_exact.any()
    assert torch.equal(reduced, packed(points, truth))
    assert newton_torch._tolerance(points.double(), points[:, :, 0] >= 0)[0].min() > 0


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("n", "size"), [(2, 2**52), (3, 2**45), (5, 10**7), (6, 10**6)])
def test_boards_out_of_range_are_decided_by_exact_integers_and_counted(n: int, size: int, kernel: str) -> None:
    rng = np.random.default_rng(n)
    points = torch.from_numpy(2 * on_a_plane(rng, size // 2, (8, 7, n)))
    points[:, 6] = (points[:, 0] + points[:, 1]) // 2
    points[4:, 3:] = points[4:, :1] + 1  # three minimal points ...
    points[6:, 2] = points[6:, 1] + 1  # ... and two, which need no arithmetic
    truth = torch.tensor([rational_vertices(rows) for rows in points.tolist()])
    reduced, num_exact = reduce_points(points.double(), "vertices", kernel)
    assert torch.equal(reduced, packed(points, truth))
    expected = [7, 7, 7, 7, 3, 3, 0, 0] if n > 2 else [0] * 8
    assert num_exact.tolist() == expected


def test_integers_beyond_float64_are_exact() -> None:
    big = 2**60
    points = torch.tensor([[[0, 2 * big], [big, big], [2 * big, 0]], [[0, 2 * big], [big, big - 1], [2 * big, 0]]])
    assert newton_vertices(points).tolist() == [[True, False, True], [True, True, True]]


def test_fractions_are_exact() -> None:
    points = torch.tensor([[[0, 0.25], [0.125, 0.125], [0.25, 0]], [[0, 0.25], [0.125, 0.12499999], [0.25, 0]]])
    assert newton_vertices(points).tolist() == [[True, False, True], [True, True, True]]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.int64, torch.float16, torch.float32])
def test_every_dtype_gives_the_same_vertices(dtype: torch.dtype) -> None:
    points = family_points("small", num_sets=50, num_points=10, n=3)
    assert torch.equal(newton_vertices(points.to(dtype)), newton_vertices(points))


@pytest.mark.parametrize("shape", [(0, 5, 3), (4, 0, 3), (0, 0, 2)])
def test_nothing_has_no_vertices(shape: tuple[int, int, int]) -> None:
    assert newton_vertices(torch.zeros(shape)).shape == shape[:2]


@pytest.mark.parametrize(
    "points", [torch.zeros(3, 2), torch.tensor([[[1.0, torch.nan]]]), torch.tensor([[[1.0, torch.inf]]])]
)
def test_what_is_no_point_set_is_refused(points: Tensor) -> None:
    with pytest.raises(ValueError, match="points"):
        newton_vertices(points)


def test_dimensions_beyond_the_kernels_are_exact() -> None:
    points = family_points("midpoints", num_sets=3, num_points=6, n=9)
    assert newton_vertices(points).tolist() == [rational_vertices(rows) for rows in points.tolist()]


@pytest.mark.parametrize("family", FAMILIES)
def test_without_waiting_the_twin_finds_the_same_or_says_so(family: str) -> None:
    for n in (2, 3, 5):
        points = family_points(family, num_sets=20, num_points=10, n=n).double()
        truth, num_exact = reduce_points(points, "vertices", "torch")
        reduced, negative = newton._reduce(points, "vertices", may_wait=False)
        assert torch.equal(negative, -num_exact)
        assert torch.equal(reduced[negative == 0], truth[negative == 0])
        assert torch.equal(reduced[negative < 0], reduce_points(points, "minimal", "torch")[0][negative < 0])


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("n", [2, 3, 5])
def test_blow_up_is_the_move_and_then_the_reduction(n: int, reduction: str, kernel: str) -> None:
    points, subset, axis = in_play(num_worlds=60, num_points=10, n=n, num_moves=2)
    moved = points.clone()
    for board in range(len(points)):
        chosen = [k for k in range(n) if subset[board] >> k & 1]
        for row in range(points.shape[1]):
            if chosen and points[board, row, 0] >= 0:
                moved[board, row, axis[board]] = points[board, row, chosen].sum()
    expected, num_exact = reduce_points(moved, reduction, "torch")
    expected[subset == 0] = points[subset == 0]
    before = points.clone()
    after, counted = blow_up(points, subset, axis, reduction, kernel)
    assert torch.equal(after, expected)
    assert torch.equal(counted, num_exact.masked_fill(subset == 0, 0))
    assert torch.equal(points, before)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize(("n", "max_value"), [(2, 7), (3, 20), (5, 2**31 - 1)])
def test_random_points_are_reduced_random_integers(n: int, max_value: int, reduction: str, kernel: str) -> None:
    keys = random_integers(torch.arange(50), 1, 2**31).squeeze(1) * 2**32 - 2**61
    integers = random_integers(keys, 12 * n, max_value + 1).view(50, 12, n)
    expected, _ = reduce_points(integers.double(), reduction, "torch")
    assert torch.equal(random_points(keys, 12, n, max_value, reduction, kernel), expected)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_results_do_not_depend_on_threads(reduction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    points, subset, axis = in_play(num_worlds=1001, num_points=20, n=3, num_moves=1)
    points[500] = -1
    points[500, :3] = torch.tensor([[0, 0, 2.0**48], [0, 2.0**48, 0], [2.0**48, 0, 0]])
    whole = blow_up(points, subset, axis, reduction, "numba")
    monkeypatch.setattr(newton, "MIN_BOARDS_PER_CHUNK", 10)
    for num_threads in (2, 3, 7):
        monkeypatch.setattr(torch, "get_num_threads", lambda num_threads=num_threads: num_threads)
        for a, b in zip(whole, blow_up(points, subset, axis, reduction, "numba"), strict=True):
            assert torch.equal(a, b)
    for start, stop in pairwise([0, 1, 500, 501, 1001]):
        for a, b in zip(
            whole, blow_up(points[start:stop], subset[start:stop], axis[start:stop], reduction, "numba"), strict=True
        ):
            assert torch.equal(a[start:stop], b)
