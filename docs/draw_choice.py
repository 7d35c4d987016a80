"""Draws which part of your own to write, and which key computes on more: python -m docs.draw_choice

docs/images/choice.svg and replicas.svg: questions from top to bottom; a yes leads to the right, to the part or key and
its page.
"""

from collections.abc import Sequence
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

IMAGES = Path(__file__).parent / "images"
PARTS = (  # what is new, the part to write, and its page
    ("Do your players write words,\nby language models?", "an algorithm", "text.md"),
    ("Another loss on a batch of decisions\nor of replayed transitions?", "a loss", "own-loss.md"),
    ("Another way to roll out, sample and update,\nof one player?", "an algorithm", "own-algorithm.md"),
    ("Another order in which players learn,\nor a loop for all of them?", "a trainer", "own-trainer.md"),
    ("Other turns, channels or verdicts\nin a dialogue?", "a protocol", "dialogue.md"),
    ("Other instances to talk about,\nor another view of them?", "a scenario", "dialogue.md"),
    ("Other outputs from the same observation?", "a network", "nets.md"),
    ("Other rules altogether?", "a game", "games.md"),
)
KEYS = (  # what is wanted, the key, and its page
    ("Several seeds, or settings, of one run?", "--seeds, or a sweep", "sweeps.md"),
    ("More games at once in one process?", "num_worlds", "config.md"),
    ("Evaluations beside the training?", "evaluators", "evaluation.md"),
    ("One network from more games or data\nthan one process plays or reads?", "num_replicas", "replicas.md"),
    ("Have these replicas the cores or GPUs\nof one machine?", "num_processes", "replicas.md"),
    ("Or those of several machines?", "torchrun --nnodes", "replicas.md"),
)
WIDTH, HEIGHT, PART_WIDTH = 4.6, 0.72, 2.2
PART_X = 4.6


def box(axes: Axes, x: float, y: float, width: float, color: str) -> None:
    axes.add_patch(Rectangle((x - width / 2, y - HEIGHT / 2), width, HEIGHT, fc=color, ec="#33506b", zorder=2))


def draw(questions: Sequence[tuple[str, str, str]], name: str) -> None:
    figure = Figure(figsize=(8.0, len(questions)))
    axes = figure.subplots()
    arrow = {"arrowstyle": "-|>", "color": "#7a8794", "lw": 1.0}
    for number, (question, part, page) in enumerate(questions):
        y = -1.15 * number
        box(axes, 0.0, y, WIDTH, "#eef3f8")
        axes.text(0.0, y, question, ha="center", va="center", fontsize=9, zorder=3)
        box(axes, PART_X, y, PART_WIDTH, "#f6ecd9")
        axes.text(PART_X, y + 0.13, part, ha="center", va="center", fontsize=10, fontweight="bold", zorder=3)
        axes.text(PART_X, y - 0.17, page, ha="center", va="center", fontsize=8, zorder=3)
        axes.annotate("", (PART_X - PART_WIDTH / 2, y), (WIDTH / 2, y), arrowprops=arrow)
        axes.text((WIDTH / 2 + PART_X - PART_WIDTH / 2) / 2, y + 0.08, "yes", ha="center", va="bottom", fontsize=8)
        if number + 1 < len(questions):
            axes.annotate("", (0.0, y - 1.15 + HEIGHT / 2), (0.0, y - HEIGHT / 2), arrowprops=arrow)
            axes.text(0.08, y - 0.58, "no", ha="left", va="center", fontsize=8)
    axes.set_xlim(-WIDTH / 2 - 0.2, PART_X + PART_WIDTH / 2 + 0.2)
    axes.set_ylim(-1.15 * len(questions) + 0.6, 0.6)
    axes.axis("off")
    matplotlib.rcParams["svg.hashsalt"] = "palestra"  # the same ids every time
    figure.savefig(IMAGES / f"{name}.svg", bbox_inches="tight", metadata={"Date": None})


def main() -> None:
    draw(PARTS, "choice")
    draw(KEYS, "replicas")


if __name__ == "__main__":
    main()
