"""The polyhedra game in plain Python: one board at a time, a list of tuples of integers. Slow, short, and exact."""

from functools import cache

from conftest import PLAIN
from torch import Tensor

from palestra.config import check
from palestra.games.polyhedra.game import PolyhedraConfig
from tests.games.oracles import Point, rational_vertices

Board = tuple[Point, ...]


def subsets(n: int) -> list[tuple[int, ...]]:
    """The host's choices in the order of the action code."""
    masks = [tuple(k for k in range(n) if mask >> k & 1) for mask in range(2**n)]
    return [chosen for chosen in masks if len(chosen) >= 2]


@cache
def reduced(board: Board, reduction: str) -> Board:
    """The points that stay, in their order; of equal points the first."""
    if reduction == "vertices":
        keep = rational_vertices([list(point) for point in board])
        return tuple(point for point, stays in zip(board, keep, strict=True) if stays)
    distinct = dict.fromkeys(board)
    return tuple(p for p in distinct if not any(q != p and below(q, p) for q in distinct))


def below(q: Point, p: Point) -> bool:
    return all(x <= y for x, y in zip(q, p, strict=True))


def played(board: Board, chosen: tuple[int, ...], axis: int, reduction: str) -> Board:
    """The board after host and agent have moved."""
    sheared = [tuple(sum(p[k] for k in chosen) if i == axis else x for i, x in enumerate(p)) for p in board]
    return reduced(tuple(sheared), reduction)


def boards_of(points: Tensor) -> list[Board]:
    """The boards of a state's points (B, N, n); asserts that present rows come first and absent ones are -1."""
    boards = []
    for rows in points.tolist():
        num = sum(min(row) >= 0 for row in rows)
        assert rows[num:] == [[-1.0] * len(rows[0])] * (len(rows) - num)
        boards.append(tuple(tuple(int(x) for x in row) for row in rows[:num]))
    return boards


def polyhedra_config(**changes: object) -> PolyhedraConfig:
    """A small game; `changes` replace keys."""
    data = {
        "name": "polyhedra",
        "variant": "basic",
        "dimension": 3,
        "max_num_points": 8,
        "max_value": 9,
        "initial_points": None,
        "reduction": "minimal",
        "rescale": False,
        "rescale_state": False,
        "max_rounds": None,
        "reward": {"name": "win"},
        "observation": PLAIN,
    }
    return check(data | changes, PolyhedraConfig)
