"""Draws the rooms of the house and who knows whom: python -m docs.draw_house

docs/images/house.svg: a room may know those below it. An arrow is left out where another way leads there.
"""

from itertools import chain
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from tests.house import IMPORTS, ORDER, TREES, rank

IMAGE = Path(__file__).parent / "images" / "house.svg"
WIDTH, HEIGHT = 1.9, 0.66  # of a box, where layers are 1 apart


def arrows() -> set[tuple[str, str]]:
    """The rooms of which one imports the other, without those that follow from others."""
    found = {
        (module.split(".")[1], name.split(".")[1])
        for module, names in IMPORTS.items()
        for name in names & TREES.keys()
        if "." in module and "." in name and rank(name) > rank(module)
    }
    known: dict[str, set[str]] = {room: set() for room in chain(*ORDER)}
    kept = set()
    for room in reversed(list(chain(*ORDER))):
        for other in sorted((b for a, b in found if a == room), key=lambda b: rank(f"palestra.{b}")):
            if other not in known[room]:
                kept.add((room, other))
            known[room] |= {other} | known[other]
    return kept


def main() -> None:
    layers = [rooms for rooms in ORDER if rooms != ("__main__",)]
    places = {
        room: ((number - (len(rooms) - 1) / 2) * 2.4 + (0.55 if layer % 2 else -0.55) * (len(rooms) == 1), -layer)
        for layer, rooms in enumerate(layers)
        for number, room in enumerate(rooms)
    }
    figure = Figure(figsize=(6.5, 9.5))
    axes = figure.subplots()
    for room, other in sorted(arrows()):
        if room in places and other in places:
            (x, y), (to_x, to_y) = places[room], places[other]
            curvature = 0.0 if y - to_y <= 1 else 0.25 if x <= to_x else -0.25
            style = {"arrowstyle": "-|>", "color": "#7a8794", "lw": 0.9, "connectionstyle": f"arc3,rad={curvature}"}
            axes.annotate("", (to_x, to_y + HEIGHT / 2), (x, y - HEIGHT / 2), arrowprops=style, zorder=1)
    for room, (x, y) in places.items():
        box = Rectangle((x - WIDTH / 2, y - HEIGHT / 2), WIDTH, HEIGHT, fc="#eef3f8", ec="#33506b", zorder=2)
        axes.add_patch(box)
        axes.text(x, y, room, ha="center", va="center", fontsize=9, zorder=3)
    axes.set_xlim(-3.6, 3.6)
    axes.set_ylim(-len(layers) + 0.4, 0.6)
    axes.axis("off")
    matplotlib.rcParams["svg.hashsalt"] = "palestra"  # the same ids every time
    figure.savefig(IMAGE, bbox_inches="tight", metadata={"Date": None})


if __name__ == "__main__":
    main()
