"""Pictures of boards of the polyhedra game: points in the plane, in space, or as lines over their coordinates."""

from collections.abc import Sequence
from functools import partial

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from palestra.games.polyhedra.words import Points, axes_text, board_points, chosen_axes, points_text
from palestra.games.trace import PictureStyle, Scene, Storyboard, Trace

LEGEND = "Captions say which coordinates the host names and which one the agent picks; the host's axes are coloured."


def storyboard(trace: Trace) -> Storyboard:
    """Make a board for each round, with what host and agent choose there, and the last board."""
    scenes = []
    rounds = zip(trace.choices[0::2], trace.choices[1::2], strict=False)  # of each round the host's, the agent's
    for number, (host, agent) in enumerate(rounds, start=1):
        points, named, picked = board_points(host.state), chosen_axes(agent.state), int(agent.action)
        caption = f"Round {number}: {len(points)} points. Host names {axes_text(named)}; agent picks x{picked + 1}."
        scenes.append(_scene(f"Board of round {number}", caption, points, named, picked))
    points = board_points(trace.end)
    end = "The host has won." if trace.is_finished else "The game was cut off: the agent held out."
    caption = f"After round {trace.length}: {len(points)} point{'s' if len(points) != 1 else ''}. {end}"
    return Storyboard(LEGEND, [*scenes, _scene("The last board", caption, points, [], None)])


def _scene(title: str, caption: str, points: Points, named: Sequence[int], picked: int | None) -> Scene:
    paint = partial(paint_board, points=points, named=named, picked=picked)
    return Scene(title, caption, f"{caption} The points: {points_text(points)}.", paint)


def paint_board(figure: Figure, style: PictureStyle, points: Points, named: Sequence[int], picked: int | None) -> None:
    """Paint a board. named: the host's coordinates, whose axes are coloured; picked: the agent's, with an arrow."""
    dimension = len(points[0]) if points else 2
    colour = style.series[0]
    if dimension == 2:
        axes = figure.subplots()
        axes.plot(*_columns(points), "o", color=colour, markersize=5)
        _label_axes(axes, style, points, named, picked)
    elif dimension == 3:
        axes = figure.add_subplot(projection="3d")
        for x, y, z in points:  # a line down to the floor says where a point hangs
            axes.plot([x, x], [y, y], [0, z], color=style.ink, linewidth=0.5, alpha=0.6)
        axes.plot(*_columns(points), "o", color=colour, markersize=4)
        _label_axes(axes, style, points, named, picked)
        axes.set_box_aspect(None, zoom=0.82)
    else:
        axes = figure.subplots()
        for point in points:
            axes.plot(range(1, dimension + 1), point, "o-", color=colour, linewidth=0.8, markersize=3)
        axes.set_xticks(range(1, dimension + 1), [_axis_name(axis, picked) for axis in range(dimension)])
        for axis, label in enumerate(axes.get_xticklabels()):
            _colour(label, style, axis in named)
        axes.yaxis.set_major_formatter(EngFormatter(sep=""))


def _columns(points: Points) -> list[list[float]]:
    return [list(column) for column in zip(*points, strict=True)]


def _axis_name(axis: int, picked: int | None) -> str:
    return f"\N{RIGHTWARDS ARROW}x{axis + 1}" if axis == picked else f"x{axis + 1}"


def _colour(label: object, style: PictureStyle, is_named: bool) -> None:
    label.set(color=style.series[1] if is_named else style.ink, fontweight="bold" if is_named else "normal")  # type: ignore[attr-defined]


def _label_axes(axes: Axes, style: PictureStyle, points: Points, named: Sequence[int], picked: int | None) -> None:
    """Let the axes of the plane or of space begin at 0, with few ticks, and name them."""
    columns = _columns(points)
    for number, (letter, column) in enumerate(zip("xyz", columns, strict=False)):
        getattr(axes, f"set_{letter}lim")(0, max(1.0, 1.08 * max(column)))
        axis = getattr(axes, f"{letter}axis")
        axis.set_major_locator(MaxNLocator(3, integer=True))
        axis.set_major_formatter(EngFormatter(sep=""))
        getattr(axes, f"set_{letter}label")(_axis_name(number, picked), labelpad=-6 if len(columns) == 3 else 2)
        _colour(axis.label, style, number in named)
    axes.tick_params(labelsize=style.font_size - 2, pad=-2 if len(columns) == 3 else 2)
