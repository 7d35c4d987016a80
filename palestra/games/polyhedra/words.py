"""Boards and choices of the polyhedra game as text: as people read them, and as they type them.

Coordinates are called x1, x2, ...
"""

import re
from collections.abc import Sequence
from math import ceil

from torch import Tensor

from palestra.games.game import State

Points = Sequence[Sequence[float]]
MOST_COLUMNS, MOST_ROWS = 20, 12  # of a plot


def board_points(state: State) -> Points:
    """List the points that are present; state: of one world, its points (N, n)."""
    points: Tensor = state["points"]
    return [[float(x) for x in point] for point in points[points[:, 0] >= 0].tolist()]


def chosen_axes(state: State) -> list[int]:
    """List the coordinates that the host has named, counted from 0; state: of one world, while the agent decides."""
    subset, dimension = int(state["subset"]), state["points"].shape[1]
    return [axis for axis in range(dimension) if subset >> axis & 1]


def points_text(points: Points) -> str:
    return ", ".join(f"({', '.join(f'{x:.0f}' if x.is_integer() else f'{x:g}' for x in point)})" for point in points)


def axes_text(axes: Sequence[int]) -> str:
    return ", ".join(f"x{axis + 1}" for axis in axes)


def read_axes(text: str, dimension: int) -> list[int]:
    """Read coordinates, counted from 0, ascending, of text such as "x1 x3", "x1, x3" or "1 3". Raises ValueError."""
    words = text.lower().replace(",", " ").split()
    axes = [int(word.removeprefix("x")) - 1 if re.fullmatch(r"x?\d{1,3}", word) else -1 for word in words]
    if not axes or not all(0 <= axis < dimension for axis in axes):
        names = axes_text(range(dimension))
        raise ValueError(
            f"expected coordinates out of {names}, such as 'x1 x2' for a host or 'x1' for an agent, got {text!r}"
        )
    return sorted(set(axes))


def board_error(board: object, dimension: int, max_num_points: int, max_coordinate: float) -> str | None:
    """Say in one line why this is no board of a game, a list of lists of integers; None if it is one."""
    example = [[*range(dimension)], [*reversed(range(dimension))]]
    such = f"such as {str(example).replace(' ', '')}"
    if not isinstance(board, list) or not all(isinstance(point, list) for point in board):
        return f"expected a list of points, {such}, got {board!r}"
    for point in board:
        if len(point) != dimension:
            return f"expected points of {dimension} coordinates, {such}, got the point {point}"
        if not all(type(x) is int and 0 <= x <= max_coordinate for x in point):
            return f"expected coordinates that are integers from 0 to 2**50, {such}, got the point {point}"
    if not 1 <= len(board) <= max_num_points:
        return f"expected 1 to {max_num_points} points, as many as a board of the game holds, got {len(board)}"
    return None


def board_text(state: State) -> str:
    """List the points of a board, plotted if in the plane, and what the host has named; state: of one world."""
    points, named = board_points(state), chosen_axes(state)
    is_over = len(points) == 1
    lines = [f"{len(points)} point{'' if is_over else 's'}: {points_text(points)}"]
    if len(points[0]) == 2 and all(x.is_integer() for point in points for x in point):
        lines += plot(points)
    lines += ["one point is left: the host has won"] if is_over else []
    lines += [f"the host has named {axes_text(named)}"] if named else []
    return "\n".join(lines)


def plot(points: Points) -> list[str]:
    """Plot points of the plane with integer coordinates on a lattice of letters: `*` a point, `.` none.

    x1 goes to the right, x2 upwards. Large boards are drawn to a scale, in which neighbours may share a place.
    """
    most = [max(point[axis] for point in points) for axis in range(2)]
    scales = [max(1, ceil((high + 1) / limit)) for high, limit in zip(most, (MOST_COLUMNS, MOST_ROWS), strict=True)]
    places = {(int(x // scales[0]), int(y // scales[1])) for x, y in points}
    columns, rows = (int(high // scale) + 1 for high, scale in zip(most, scales, strict=True))
    width = len(str((rows - 1) * scales[1]))
    lines = [
        f"{row * scales[1]:>{width}} {''.join(' *' if (column, row) in places else ' .' for column in range(columns))}"
        for row in reversed(range(rows))
    ]
    steps = [f"a step along x{axis + 1} is {scale:,}" for axis, scale in enumerate(scales) if scale > 1]
    legend = "; ".join(["x1 to the right, x2 upwards, both from 0", *steps])
    return [*lines, f"{' ' * width}  {legend}"]
