"""Figures of a report: SVG by matplotlib, inside the page, in the colours of the page's style.

Matplotlib draws in placeholder colours; in the SVG each becomes a variable of the style, so that one figure fits light
and dark pages. Texts stay texts.
"""

import io
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from palestra.recording.plots import label_lines
from palestra.recording.results import label, printable, thinned
from palestra.report.blocks import Drawn, Table
from palestra.report.groups import FEWEST_OF_A_BAND, Curve

NUM_SERIES = 8  # colours for lines, told apart by colour-blind eyes; --series-0 ... of the style
INK, GRID, CARD = "#0a0b01", "#0a0b02", "#0a0b03"
SERIES = tuple(f"#0a0c{number:02x}" for number in range(NUM_SERIES))
NUM_LEVELS = 6  # from weak to strong, for values in their order; --level-0 ... of the style
LEVELS = tuple(f"#0a0d{number:02x}" for number in range(NUM_LEVELS))
VARIABLES = {INK: "--ink-soft", GRID: "--line", CARD: "--card"}
VARIABLES |= {colour: f"--series-{n}" for n, colour in enumerate(SERIES)}
VARIABLES |= {colour: f"--level-{n}" for n, colour in enumerate(LEVELS)}
MARKS = "osD^vPX*"
MOST_POINTS = 200  # of a line
LONGEST_NAME = 24
SIZE = (4.4, 2.7)  # inches; one pixel of a page is a 72nd
FONT_SIZE = 9
PLAIN: Any = {  # also of figures for papers
    "svg.fonttype": "none",  # texts are texts
    "text.parse_math": False,  # names are the user's
    "text.usetex": False,  # a matplotlibrc in the working directory, which may be a stranger's, would have TeX run
    "font.size": FONT_SIZE,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.linewidth": 0.6,
}
STYLE: Any = {
    **PLAIN,
    "axes.facecolor": "none",
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "grid.color": GRID,
    **dict.fromkeys([f"axes3d.{axis}axis.panecolor" for axis in "xyz"], (0.0, 0.0, 0.0, 0.0)),
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}


class Figures:
    """Makes the figures of one page, with different names."""

    def __init__(self) -> None:
        self._count = 0

    def draw(
        self,
        title: str,
        description: str,
        paint: Callable[[Figure], None],
        size: tuple[float, float] = SIZE,
        numbers: Table | None = None,
    ) -> Drawn:
        """Draw a figure.

        paint: called with the matplotlib figure. size: width and height in inches. numbers: as in Drawn.
        """
        self._count += 1
        with matplotlib.rc_context({**STYLE, "svg.hashsalt": str(self._count)}):
            figure = Figure(figsize=size, layout="constrained")
            figure.patch.set_alpha(0.0)
            paint(figure)
            file = io.StringIO()
            figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
        svg = _for_page(file.getvalue(), f"figure-{self._count}", title, description)
        return Drawn(title, description, svg, 72 * size[0], numbers)


def _for_page(svg: str, name: str, title: str, description: str) -> Markup:
    """Turn an SVG file into an element of a page: of any width, its ids its own, its colours those of the style."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' id="', f' id="{name}-', svg)
    svg = re.sub(r'(url\(|xlink:href=")#', rf"\1#{name}-", svg)
    svg = re.sub(r"#0a0[bcd]\d\d", lambda match: f"var({VARIABLES[match[0]]})", svg)
    svg = re.sub(r"(font: [^;\"]*?px) [^;\"]*", r"\1 system-ui, sans-serif", svg)
    head, _, body = svg.partition(">")
    head = re.sub(r' (width|height|version|xmlns:xlink|xmlns)="[^"]*"', "", head)
    texts = {"title": escape(printable(title)), "desc": escape(printable(description))}
    labels = "".join(f'<{kind} id="{name}-{kind}">{text}</{kind}>' for kind, text in texts.items())
    return Markup(f'{head} role="img" aria-labelledby="{name}-title" aria-describedby="{name}-desc">{labels}{body}')


# ---- curves --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Level:
    """A score that training does not change, such as that of a scripted player."""

    name: str
    value: float


def paint_curves(
    figure: Figure, curves: Sequence[Curve], colours: Sequence[int], levels: Sequence[Level], unit: str, y_label: str
) -> None:
    """Paint curves with bands for their intervals, and dashed levels with their names.

    The single runs of a group are thin lines; in groups of few runs, which have no band, these are stronger.

    colours: the number of each curve's series.
    """
    axes = figure.subplots()
    for level in levels:
        axes.axhline(level.value, color=INK, linestyle=(0, (4, 3)), linewidth=0.9)
    for curve, colour in zip(curves, colours, strict=True):
        _paint_curve(axes, curve, colour)
    steps = {point.step for curve in curves for points in (curve.points, *curve.each) for point in points}
    if len(steps) == 1:
        axes.set_xlim(min(steps) - 1, min(steps) + 1)
    label_lines(axes, [(level.value, short(level.name), INK) for level in levels])
    axes.set_ylabel(short(y_label))
    count_steps(axes, unit)


def _paint_curve(axes: Axes, curve: Curve, number: int) -> None:
    colour, mark = SERIES[number % NUM_SERIES], MARKS[number % len(MARKS)]
    has_band = len(curve.each) >= FEWEST_OF_A_BAND
    width, alpha = (0.6, 0.55) if has_band else (1.0, 0.8)
    for points in curve.each:
        shown = thinned(points, MOST_POINTS)
        axes.plot([p.step for p in shown], [p.score.value for p in shown], color=colour, linewidth=width, alpha=alpha)
    shown = thinned(curve.points, MOST_POINTS)
    steps = [point.step for point in shown]
    axes.plot(
        steps,
        [point.score.value for point in shown],
        color=colour,
        linewidth=1.8,
        marker=mark if len(shown) <= 30 else None,
        markersize=3.5,
    )
    low, high = ([point.score[place] for point in shown] for place in (1, 2))
    if len(shown) == 1 and math.isfinite(low[0]):
        axes.vlines(steps, low, high, color=colour, alpha=0.4, linewidth=3)
    elif any(map(math.isfinite, low)):
        axes.fill_between(steps, low, high, color=colour, alpha=0.2, linewidth=0)


def short(name: str) -> str:
    """Shorten a name to the room that a figure has for it."""
    name = printable(name)
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}\N{HORIZONTAL ELLIPSIS}"


def count_steps(axes: Axes, unit: str) -> None:
    """Label the horizontal axis with a unit of steps, in whole numbers such as 5k."""
    axes.set_xlabel(label(unit))
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
