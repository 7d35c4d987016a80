"""The section that shows the epochs in which each player learned, and in which it was frozen."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from palestra.config import Config, ConfigError, check, under
from palestra.players.updates import AnyUpdatesConfig
from palestra.recording.results import label
from palestra.report.blocks import Block, Captioned, Cell, FigureGrid, Heading, Note, Section, Table, count
from palestra.report.figures import INK, SERIES, Figures, short
from palestra.report.groups import Group
from palestra.report.reading import RunData

MOST_EPOCHS = 10_000_000  # that are looked at
MOST_STRIPES = 360  # of a player
BAR_HEIGHT = 0.32  # inches

Shares = np.ndarray[Any, Any]


class _OneUpdates(Config):
    updates: AnyUpdatesConfig
    """in which epochs a player learns"""


def updates_section(groups: Sequence[Group], figures: Figures) -> list[Section]:
    """Make a section on the first run of each group in which a player is frozen; none without such a run."""
    blocks: list[Block] = []
    for group in groups:
        run = group.runs[0]
        learned = _learned(run)
        if any(not epochs.all() for epochs in learned.values()):
            blocks += [Heading(run.name)] if len(groups) > 1 else []
            blocks += [_figure(run, learned, figures), _table(run, learned)]
    what = "In the epochs that are filled a player learned; in the others it was frozen, and played."
    return [Section("updates", "Who learned when", [Note(what), *blocks])] if blocks else []


def _learned(run: RunData) -> dict[str, Shares]:
    """Return for each player that learns whether it did in each of the epochs so far: bool (epochs,)."""
    num = min(run.counters["epochs"], MOST_EPOCHS)
    found: dict[str, Shares] = {}
    for name, player in run.players.items() if num > 0 else ():
        try:
            updates = check({"updates": under(player, "updates")}, _OneUpdates).updates
        except ConfigError:  # it does not learn, or the config is damaged
            continue
        cycle = np.array([updates.learns(epoch) for epoch in range(min(updates.cycle, num))])
        found[name] = np.resize(cycle, num)
    return found


def _figure(run: RunData, learned: Mapping[str, Shares], figures: Figures) -> FigureGrid:
    size = (7.2, 0.75 + BAR_HEIGHT * len(learned))
    text = "; ".join(
        f"{name} learned in {int(epochs.sum()):,} of {len(epochs):,} epochs" for name, epochs in learned.items()
    )
    drawn = figures.draw(
        "Epochs in which each player learned", f"{text}.", lambda figure: _paint(figure, run, learned), size
    )
    return FigureGrid([Captioned(drawn)], is_wide=True)


def _paint(figure: Figure, run: RunData, learned: Mapping[str, Shares]) -> None:
    axes = figure.subplots()
    num = len(next(iter(learned.values())))
    for place, epochs in enumerate(learned.values()):
        for start, end, share in _stripes(epochs):
            axes.broken_barh(
                [(start, end - start)],
                (place - 0.36, 0.72),
                color=SERIES[place % len(SERIES)],
                alpha=share,
                linewidth=0,
            )
    axes.set_yticks(range(len(learned)), [short(name) for name in learned])
    axes.set_ylim(len(learned) - 0.5, -0.5)
    axes.set_xlim(0, num)
    axes.set_xlabel("epochs")
    axes.grid(axis="y", visible=False)
    counted, opt_steps = _steps(run, num)
    if len(counted) > 1:
        above = axes.secondary_xaxis(
            "top",
            functions=(partial(np.interp, xp=counted, fp=opt_steps), partial(np.interp, xp=opt_steps, fp=counted)),
        )
        above.set_xlabel(label("opt_steps"))
        above.tick_params(colors=INK)


def _steps(run: RunData, num_epochs: int) -> tuple[list[float], list[float]]:
    """Return epochs and opt steps at the training records at which both have grown."""
    epochs, opt_steps = [0.0], [0.0]
    for record in run.training:
        now, steps = record.get("epochs"), record.get("opt_steps")
        if not (isinstance(now, int) and isinstance(steps, int)):
            continue
        if epochs[-1] < now <= num_epochs and opt_steps[-1] < steps:
            epochs.append(now)
            opt_steps.append(steps)
    return epochs, opt_steps


def _stripes(epochs: Shares) -> Iterator[tuple[int, int, float]]:
    """Yield from which epoch on until which one a player learned, and in what share of them.

    Epochs are joined where there are more than MOST_STRIPES; stripes without any are left out.
    """
    edges = np.unique(np.linspace(0, len(epochs), min(len(epochs), MOST_STRIPES) + 1).round().astype(int)).tolist()
    stripes = [(a, b, float(epochs[a:b].mean())) for a, b in pairwise(edges)]
    for share, alike in groupby(stripes, key=itemgetter(2)):
        (start, end, _), *others = alike
        if share > 0:
            yield start, others[-1][1] if others else end, share


def _table(run: RunData, learned: Mapping[str, Shares]) -> Table:
    last = run.training[-1] if run.training else {}
    rows = [
        [
            Cell(name),
            Cell(_words(under(run.config, "players", name, "updates"))),
            count(int(epochs.sum())),
            count(int((~epochs).sum())),
            count(under(last, "players", name, "opt_steps")),
        ]
        for name, epochs in learned.items()
    ]
    caption = "Epochs in which each player learned and was frozen, and its opt steps at the last training record."
    return Table(caption, ["player", "updates", "learned", "frozen", "opt steps"], rows)


def _words(updates: Any) -> str:
    """Return the key `updates` in words, as "alternating periodic, period 5, phase 0"."""
    keys = updates.items() if isinstance(updates, Mapping) else ()
    return ", ".join(label(str(value)) if key == "name" else f"{key} {value}" for key, value in keys)
