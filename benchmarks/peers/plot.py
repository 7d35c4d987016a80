"""A picture of the table: for each comparison a panel of bars."""

from pathlib import Path
from statistics import median
from typing import Any

from matplotlib.figure import Figure

OURS, THEIRS = "#c2410c", "#94a3b8"


def plot(comparisons: list[dict[str, Any]], path: Path) -> None:
    """Bars are medians over the repeats, whiskers the lowest and the highest value. comparisons: as in peers.json."""
    shown = [comparison for comparison in comparisons if comparison["values"]]
    if not shown:
        return
    heights = [0.9 + 0.28 * len(comparison["values"]) for comparison in shown]
    figure = Figure(figsize=(8, sum(heights)), layout="constrained")
    panels = figure.subplots(len(shown), 1, squeeze=False, gridspec_kw={"height_ratios": heights})[:, 0]
    for panel, comparison in zip(panels, shown, strict=True):
        names = list(comparison["values"])[::-1]
        values = [comparison["values"][name] for name in names]
        medians = [median(repeats) for repeats in values]
        spread = [[m - min(repeats) for m, repeats in zip(medians, values, strict=True)]]
        spread.append([max(repeats) - m for m, repeats in zip(medians, values, strict=True)])
        colors = [OURS if name.startswith("palestra") else THEIRS for name in names]
        panel.barh(names, medians, xerr=spread, color=colors, ecolor="#334155", capsize=2)
        panel.set_title(f"{comparison['row']}: {comparison['work']}, {comparison['num_threads']} thread(s)", fontsize=9)
        panel.set_xlabel(comparison["unit"], fontsize=8)
        panel.tick_params(labelsize=8)
        for side in ("top", "right"):
            panel.spines[side].set_visible(False)
    figure.savefig(path, dpi=130)
