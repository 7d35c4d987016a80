"""Draws the README's picture of a game: python -m docs.draw_game

docs/images/game.svg: a game of two rounds in the plane, where the host's only choice is {x1, x2}.
"""

from pathlib import Path

import matplotlib
import torch

from palestra.config import load_yaml
from palestra.kinds.games.config import RunConfig
from palestra.run.kinds import read_config

matplotlib.use("svg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

ROOT = Path(__file__).parent.parent
PICTURE = ROOT / "docs/images/game.svg"
START = [[0, 4], [1, 1], [3, 0]]
ANSWERS = ["x1", "x2"]
SIZE = 5.5
Board = list[tuple[int, int]]


def boards() -> list[Board]:
    """The boards of the game, by the rules of the game itself."""
    mapping = load_yaml(ROOT / "configs/dqn-polyhedra.yml")
    mapping["game"] |= {"dimension": 2, "initial_points": [START], "reduction": "vertices"}
    config = read_config(mapping)
    assert isinstance(config, RunConfig)
    game = config.game.build(torch.device("cpu"), "torch")
    key = torch.zeros(1, dtype=torch.int64)
    state = game.reset(key)
    found = [points_of(state["points"])]
    for answer in ANSWERS:
        host, agent = torch.tensor([0]), torch.tensor([ANSWERS.index(answer)])
        for _ in game.moves:
            state, *_ = game.step(state, {"host": host, "agent": agent}, key)
        found.append(points_of(state["points"]))
    return found


def points_of(points: torch.Tensor) -> Board:
    return sorted((int(x), int(y)) for x, y in points[0].tolist() if x >= 0)


def moved(board: Board, answer: str) -> Board:
    return [(x + y, y) if answer == "x1" else (x, x + y) for x, y in board]


def draw(axes: Axes, board: Board, dropped: Board, title: str) -> None:
    """The board, the border of its polyhedron, and the points that a move has dropped."""
    axes.fill(
        [SIZE, board[0][0], *(x for x, _ in board), SIZE],
        [SIZE, SIZE, *(y for _, y in board), board[-1][1]],
        color="#cfe0f3",
    )
    axes.plot(*zip(*dropped, strict=True) if dropped else ([], []), "o", color="#808080", markersize=7)
    axes.plot(*zip(*board, strict=True), "o", color="#1f4e79", markersize=8)
    for x, y in board:
        axes.annotate(f"({x}, {y})", (x, y), xytext=(6, 5), textcoords="offset points", fontsize=9)
    for x, y in dropped:
        text = f"({x}, {y}) dropped"
        axes.annotate(
            text, (x, y), xytext=(0, -14), textcoords="offset points", fontsize=9, color="#606060", ha="center"
        )
    axes.set(xlabel="x1", ylabel="x2")
    axes.set(xlim=(-0.4, SIZE), ylim=(-0.4, SIZE), aspect="equal", xticks=range(6), yticks=range(6))
    axes.set_title(title, fontsize=10)
    axes.grid(alpha=0.3)


def main() -> None:
    found = boards()
    texts = ["a board and its Newton polyhedron\n"]
    for answer, board in zip(ANSWERS, found[1:], strict=True):
        end = "; the host has won" if len(board) == 1 else ""
        texts.append(f"host: x1, x2; agent: {answer}\n{answer} becomes x1 + x2{end}")
    plt.rcParams |= {"svg.hashsalt": "palestra", "svg.fonttype": "none"}
    figure, row = plt.subplots(1, len(found), figsize=(10, 3.7), layout="constrained")
    for i, (axes, board, text) in enumerate(zip(row, found, texts, strict=True)):
        before = moved(found[i - 1], ANSWERS[i - 1]) if i else []
        draw(axes, board, [point for point in before if point not in board], text)
    figure.savefig(PICTURE, metadata={"Date": None})


if __name__ == "__main__":
    main()
