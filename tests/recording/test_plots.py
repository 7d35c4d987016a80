"""The plot of rho over training."""

import io
from itertools import pairwise
from typing import Any

import pytest
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.colors import to_hex

from palestra.recording.plots import plot_scores, scores_figure
from palestra.runtime.scores import DeclaredScore
from tests.records import POLYHEDRA, RHO, evaluation_of, played_pair, returns_in


def pair(host: str, agent: str, rho: float | None, learned: list[str]) -> dict[str, Any]:
    return played_pair({"host": host, "agent": agent}, learned, {"rho": rho}, 0.015625)


def records() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [{"kind": "train", "opt_steps": 1, "loss": 0.5}]
    for i in range(4):
        pairs = [
            pair("host", "random", 0.1 + 0.05 * i, ["host"]),
            pair("random", "agent", 0.2 - 0.05 * i, ["agent"]),
            pair("host", "agent", 0.15, ["host", "agent"]),
        ]
        if i == 0:
            pairs += [pair("zeillinger", "random", 0.194, []), pair("random", "greedy", 0.7, [])]
        found.append(evaluation_of(pairs, RHO, POLYHEDRA, opt_steps=100 * i, env_steps=800 * i))
    return found


def panels(found: list[dict[str, Any]]) -> dict[str, Axes]:
    figure = scores_figure(found, "env_steps")
    assert figure is not None
    return {axes.get_title(loc="left"): axes for axes in figure.axes}


def test_lines_are_the_records() -> None:
    drawn = {title: axes.lines[0].get_xydata().tolist() for title, axes in panels(records()).items()}
    assert drawn == {
        "host facing random": [[800 * i, 0.1 + 0.05 * i] for i in range(4)],
        "agent facing random": [[800 * i, 0.2 - 0.05 * i] for i in range(4)],
        "host facing agent (learning)": [[800 * i, 0.15] for i in range(4)],
    }


def test_bands_are_the_intervals() -> None:
    (band,) = panels(records())["host facing random"].collections
    corners = {tuple(corner) for corner in band.get_paths()[0].vertices.tolist()}
    assert corners == {(800 * i, 0.1 + 0.05 * i + d) for i in range(4) for d in (-0.015625, 0.015625)}


def test_levels_are_the_scripted_players_facing_the_same_opponent() -> None:
    drawn = {
        title: [(line.get_ydata()[0], line.get_linestyle()) for line in axes.lines[1:]]
        for title, axes in panels(records()).items()
    }
    assert drawn["host facing random"] == [(0.194, "--")]
    assert drawn["agent facing random"] == [(0.7, "--")]
    assert drawn["host facing agent (learning)"] == []


def test_everything_drawn_lies_within_the_axes() -> None:
    for axes in panels(records()).values():
        low, high = axes.get_ylim()
        assert all(low <= y <= high for line in axes.lines for y in line.get_ydata())


@pytest.mark.parametrize("level", [0.0, 0.194, 0.5])  # at the bottom, between, at the top
def test_every_line_is_named_in_its_own_colour_and_names_do_not_meet(level: float) -> None:
    found = records()
    found[1]["pairs"] += [pair(f"close {i}", "random", level + 1e-4 * i, []) for i in range(5)]
    axes = panels(found)["host facing random"]
    assert {text.get_text() for text in axes.texts} == {"host", "zeillinger", *(f"close {i}" for i in range(5))}
    assert {to_hex(text.get_color()) for text in axes.texts} == {to_hex(line.get_color()) for line in axes.lines}
    heights = sorted(text.xy[1] for text in axes.texts)  # type: ignore[attr-defined]
    assert all(above - below > 0.06 for below, above in pairwise(heights))
    assert heights[0] >= 0
    assert heights[-1] <= 1


def test_a_png_has_a_light_background() -> None:
    content = plot_scores(records(), "env_steps")
    assert content is not None
    image = pyplot.imread(io.BytesIO(content))
    assert image[0, 0, :3].tolist() == [1.0, 1.0, 1.0]


def test_no_global_figure_is_left_behind() -> None:
    plot_scores(records(), "env_steps")
    assert pyplot.get_fignums() == []


def test_without_a_learning_player_nothing_is_drawn() -> None:
    found = [
        evaluation_of([pair("random", "greedy", 0.1, [])], RHO, POLYHEDRA, env_steps=0),
        {"opt_steps": 1, "pairs": []},
        {},
    ]
    assert plot_scores(found, "env_steps") is None


@pytest.mark.filterwarnings("error")
def test_missing_values_and_a_single_evaluation_are_drawn() -> None:
    found = [evaluation_of([pair("host", "random", None, ["host"])], RHO, POLYHEDRA, env_steps=0)]
    assert plot_scores(found, "env_steps") is not None


def test_game_of_other_roles_shows_the_learning_players_return() -> None:
    def game(step: int, value: float) -> dict[str, Any]:
        pair = played_pair({"x": "random", "o": "learner"}, ["o"], {"return/x": -value, "return/o": value}, 0.1)
        return evaluation_of([pair], returns_in("x", "o"), ["x", "o"], opt_steps=step, env_steps=8 * step)

    axes = panels([game(0, -0.5), game(10, 0.5)])["learner as o facing random"]
    assert axes.lines[0].get_ydata().tolist() == [-0.5, 0.5]
    assert axes.get_ylabel() == "return/o"


def test_the_score_of_an_evaluation_of_ones_own_has_its_name() -> None:
    pair = played_pair({"agent": "mine"}, ["agent"], {"least_length": 7.0}, 0.0, intervals={})
    declared = [DeclaredScore("least_length", "", "", ("agent",), (), shown=True)]
    found = [evaluation_of([pair], declared, ["agent"], env_steps=8 * step) for step in (0, 1)]
    [axes] = panels(found).values()
    assert (axes.get_ylabel(), axes.get_xlabel()) == ("least_length", "env steps")
    assert axes.lines[0].get_xydata().tolist() == [[0.0, 7.0], [8.0, 7.0]]
