import pytest
import torch

from palestra.games.polyhedra.words import board_text, plot, points_text, read_axes


@pytest.mark.parametrize("text", ["x1 x3", "1, 3", "X3,x1", "x1 x1 x3"])
def test_coordinates_are_read_in_any_order_and_form(text: str) -> None:
    assert read_axes(text, 3) == [0, 2]


@pytest.mark.parametrize("text", ["", "x0", "x4", "[0,1]", "y1", "x1x2", "-1"])
def test_other_text_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected coordinates out of x1, x2, x3, such as 'x1 x2' for a host"):
        read_axes(text, 3)


def test_large_coordinates_are_written_out() -> None:
    assert points_text([[2.0**50, 0.5]]) == "(1125899906842624, 0.5)"


def test_a_small_board_is_plotted_point_by_point() -> None:
    assert plot([[0.0, 2.0], [2.0, 1.0]]) == [
        "2  * . .",
        "1  . . *",
        "0  . . .",
        "   x1 to the right, x2 upwards, both from 0",
    ]


def test_boards_of_the_plane_are_plotted_below_their_points() -> None:
    state = {"points": torch.tensor([[0.0, 2.0], [-1.0, -1.0], [2.0, 1.0]]), "subset": torch.tensor(3)}
    plane, *plotted, named = board_text(state).splitlines()
    assert plane == "2 points: (0, 2), (2, 1)"
    assert plotted == plot([[0.0, 2.0], [2.0, 1.0]])
    assert named == "the host has named x1, x2"


def test_a_large_board_is_plotted_to_a_scale() -> None:
    *lines, legend = plot([[0.0, 1.0], [99.0, 0.0]])
    assert lines == ["1  *" + " ." * 19, "0 " + " ." * 19 + " *"]
    assert legend.endswith("a step along x1 is 5")
