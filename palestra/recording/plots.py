"""Plots the scores of a run over training with 95% bands, and those of scripted players as dashed lines."""

import io
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from palestra.recording.results import Evaluation, PairResult, Seat, by_name, grouped, histories, label, standings

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette, which colour-blind readers can tell apart; the first two for the players that learn
LEARNED_COLOURS = ("#0072B2", "#D55E00")
LEVEL_COLOURS = ("#009E73", "#CC79A7", "#8A6D00", "#56B4E9", "#555555")
MAX_COLUMNS = 5
LABEL_GAP = 0.065  # of an axes' height


def plot_scores(records: Sequence[Mapping[str, Any]], axis: str) -> bytes | None:
    """Return `scores_figure` as PNG; None if no record has scores of a learning player."""
    import matplotlib  # takes a third of a second, so it is imported only here

    with matplotlib.rc_context({"text.usetex": False}):  # whatever a matplotlibrc in the working directory says
        if (figure := scores_figure(records, axis)) is None:
            return None
        file = io.BytesIO()
        figure.savefig(file, format="png", dpi=120)
        return file.getvalue()


def scores_figure(records: Sequence[Mapping[str, Any]], axis: str) -> "Figure | None":
    """Draw a panel for each pairing of a learning player: its score over training with its 95% interval as a band.

    Dashed lines are the scripted players of the same role that face the same opponent. Each evaluation has a row of
    panels for each learning player. Returns None if there is nothing to draw.

    records: as in `records.jsonl`; those without `pairs` are skipped. axis: the counter over which the curves go.
    """
    from matplotlib.figure import Figure

    named = by_name([Evaluation.from_record(record) for record in records if record.get("pairs")])
    if not (rows := [(name, row) for name, evaluations in named.items() for row in _rows(evaluations)]):
        return None
    num_columns = max(len(row) for _, row in rows)
    figure = Figure(figsize=(2.2 + 2.9 * num_columns, 0.5 + 2.7 * len(rows)), layout="constrained", facecolor="white")
    for axes_row, (name, row) in zip(figure.subplots(len(rows), num_columns, squeeze=False), rows, strict=True):
        for axes in axes_row[len(row) :]:
            axes.remove()
        for axes, (learner, pair) in zip(axes_row, row, strict=False):
            _draw_panel(axes, named[name], axis, learner, pair)
            if len(named) > 1:
                axes.set_title(f"{name}: {axes.get_title(loc='left')}", fontsize=10, loc="left")
    return figure


def _rows(evaluations: Sequence[Evaluation]) -> list[list[tuple[Seat, PairResult]]]:
    """Return the panels by row: each pairing once, with its first seat that learns; at most MAX_COLUMNS in a row."""
    pairs = {pair.seats: pair for evaluation in evaluations for pair in evaluation.pairs if pair.learned}
    by_learner = grouped((next(seat for seat in pair.seats if seat.learns), pair) for pair in pairs.values())
    return [
        [(learner, pair) for pair in panels[start : start + MAX_COLUMNS]]
        for learner, panels in sorted(by_learner.items(), key=lambda item: item[1][0].seats.index(item[0]))
        for start in range(0, len(panels), MAX_COLUMNS)
    ]


def _draw_panel(axes: "Axes", evaluations: Sequence[Evaluation], axis: str, learner: Seat, pair: PairResult) -> None:
    place, opponents = pair.seats.index(learner), [seat for seat in pair.seats if seat != learner]
    results = histories(evaluations)[pair.seats]
    steps = [each.counters.get(axis, 0) for each in evaluations for found in each.pairs if found.seats == pair.seats]
    colour = LEARNED_COLOURS[place % len(LEARNED_COLOURS)]
    scores = [found.score_of(learner) for found in results]
    axes.plot(steps, [score.value for score in scores], color=colour, linewidth=2, marker=".", zorder=3)
    low, high = [score.low for score in scores], [score.high for score in scores]
    axes.fill_between(steps, low, high, color=colour, alpha=0.25, linewidth=0)
    labels = [(scores[-1].value, learner.player, colour)]
    scripted = [found for found in standings(evaluations) if not found.learned]
    names = list(dict.fromkeys(found.seats[place].player for found in scripted if len(found.seats) > place))
    for level in scripted:
        if [seat for i, seat in enumerate(level.seats) if i != place] == opponents:
            name, value = level.seats[place].player, level.score_of(level.seats[place]).value
            level_colour = LEVEL_COLOURS[names.index(name) % len(LEVEL_COLOURS)]  # the same in every panel of the row
            axes.axhline(value, color=level_colour, linestyle="--", linewidth=1.2)
            labels.append((value, name, level_colour))
    if pair.is_share(pair.measure_of(learner)):
        axes.set_ylim(bottom=0)  # with every line drawn: it ends the scaling of the axis
    label_lines(axes, labels)
    _dress(axes, learner, opponents, pair)
    axes.set_xlabel(label(axis), fontsize=9)


def _dress(axes: "Axes", learner: Seat, opponents: Sequence[Seat], pair: PairResult) -> None:
    name = learner.player if learner.player == learner.role else f"{learner.player} as {learner.role}"
    facing = ", ".join(f"{seat.player}{' (learning)' if seat.learns else ''}" for seat in opponents)
    measure = pair.measure_of(learner)
    is_high_good = pair.is_high_good(measure) if pair.declared[measure].low_for else None
    better = "" if is_high_good is None else f" ({'high' if is_high_good else 'low'} is better)"
    axes.set_title(f"{name} facing {facing}" if facing else name, fontsize=10, loc="left")
    axes.set_ylabel(f"{measure}{better}", fontsize=9)
    axes.tick_params(labelsize=8)
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_facecolor("white")
    axes.spines[["top", "right"]].set_visible(False)


def label_lines(axes: "Axes", labels: Sequence[tuple[float, str, str]]) -> None:
    """Write each line's name at the right edge, at the line's height; names that would overlap are moved apart."""
    low, high = axes.get_ylim()
    wanted = sorted(
        ((value - low) / (high - low), name, colour) for value, name, colour in labels if math.isfinite(value)
    )
    heights: list[float] = []
    for height, _, _ in wanted:
        heights.append(max(height, heights[-1] + LABEL_GAP) if heights else height)
    ceiling = 1.0
    for i in reversed(range(len(heights))):  # names that were pushed above the axes come down again
        heights[i] = min(heights[i], ceiling)
        ceiling = heights[i] - LABEL_GAP
    for height, (_, name, colour) in zip(heights, wanted, strict=True):
        axes.annotate(
            name, (1.02, height), xycoords="axes fraction", color=colour, fontsize=8, va="center", annotation_clip=False
        )
