"""A picture of the learning table: for each environment and algorithm a panel of learning curves."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from benchmarks.peers.plot import OURS, THEIRS
from palestra.report.groups import FEWEST_OF_A_BAND

NUM_COLUMNS = 3
COLORS = {"palestra": OURS, "stable-baselines3": THEIRS}

Curve = Sequence[tuple[int, float]]  # (env steps, mean return of the last 100 episodes of training)


@dataclass(frozen=True)
class Curves:
    """A panel: for each library the curves of its seeds."""

    title: str
    by_library: Mapping[str, Sequence[Curve]]


def plot(panels: Sequence[Curves], path: Path) -> None:
    """Lines are means over the seeds. From FEWEST_OF_A_BAND seeds on a band reaches from the lowest to the highest one;
    fewer are thin lines."""
    shown = [panel for panel in panels if any(panel.by_library.values())]
    if not shown:
        return
    num_rows = -(-len(shown) // NUM_COLUMNS)
    figure = Figure(figsize=(3.6 * NUM_COLUMNS, 2.5 * num_rows + 0.4), layout="constrained")
    places = list(figure.subplots(num_rows, NUM_COLUMNS, squeeze=False).flat)
    for place, panel in zip(places, shown, strict=False):
        _draw(place, panel)
    for place in places[len(shown) :]:
        place.set_visible(False)
    handles = {
        label: handle for place in figure.axes for handle, label in zip(*place.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=len(handles), frameon=False)
    figure.supylabel("mean return of the last 100 episodes of training, over env steps", fontsize=9)
    figure.savefig(path, dpi=110)


def _draw(place: Axes, panel: Curves) -> None:
    for library, curves in panel.by_library.items():
        if not curves:
            continue
        # Episodes end where they end: curves are put on common steps, where all of them have begun and none has ended.
        steps = np.linspace(max(curve[0][0] for curve in curves), min(curve[-1][0] for curve in curves), 100)
        points = [np.array(curve, dtype=float).T for curve in curves]
        values = np.stack([np.interp(steps, at, returns) for at, returns in points])
        place.plot(steps, values.mean(axis=0), color=COLORS[library], label=library)
        if len(curves) < FEWEST_OF_A_BAND:
            place.plot(steps, values.T, color=COLORS[library], linewidth=0.7, alpha=0.6)
        else:
            ends = values.min(axis=0), values.max(axis=0)
            place.fill_between(steps, *ends, color=COLORS[library], alpha=0.2, linewidth=0)
    place.set_title(panel.title, fontsize=9)
    place.xaxis.set_major_formatter(EngFormatter(sep=""))
    place.tick_params(labelsize=8)
    for side in ("top", "right"):
        place.spines[side].set_visible(False)
