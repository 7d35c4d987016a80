"""Curves of a group: which have bands, and how far these reach."""

import math

import pytest
from matplotlib.figure import Figure

from palestra.report.figures import paint_curves
from palestra.report.groups import Curve, Group, Point, over_runs
from palestra.runtime.scores import Estimate


def curve_of(*values: float, measure: str) -> Curve:
    """Of runs that have these values at steps 0 and 10."""
    tracks = [[Point(step, Estimate(value, math.nan, math.nan)) for step in (0, 10)] for value in values]
    return over_runs(Group("group", ()), tracks, measure)


def painted(curve: Curve) -> tuple[int, int]:
    """How many lines and how many bands are drawn."""
    figure = Figure()
    paint_curves(figure, [curve], [0], [], "opt steps", "return")
    (axes,) = figure.axes
    return len(axes.lines), len(axes.collections)


@pytest.mark.parametrize("values", [(-900.0, 200.0), (-900.0, 200.0, 150.0)])
def test_two_or_three_runs_are_drawn_one_by_one_without_a_band(values: tuple[float, ...]) -> None:
    curve = curve_of(*values, measure="return/agent")
    assert painted(curve) == (len(values) + 1, 0)
    assert all(math.isnan(end) for point in curve.points for end in point.score[1:])
    assert curve.points[0].score.value == pytest.approx(sum(values) / len(values))


def test_four_runs_have_a_band() -> None:
    curve = curve_of(-900.0, 200.0, 150.0, 100.0, measure="return/agent")
    assert painted(curve) == (5, 1)
    assert curve.points[0].score.low < -900.0


@pytest.mark.parametrize(
    ("measure", "low", "high"),
    [
        ("players/agent/clip_fraction", 0.0, 1.0),
        ("players/agent/clip_fraction/max", 0.0, 1.0),
        ("players/agent/episodes/length", 0.0, None),
        ("players/agent/episodes/number", 0.0, None),
        ("players/agent/loss/std", 0.0, None),
        ("players/agent/loss", None, None),
        ("return/agent", None, None),
    ],
)
def test_bands_are_cut_to_what_is_possible(measure: str, low: float | None, high: float | None) -> None:
    score = curve_of(0.0, 0.0, 1.0, 0.9, measure=measure).points[0].score
    assert score.low == low if low is not None else score.low < 0.0
    assert score.high == high if high is not None else score.high > 1.0
