"""The trials of a sweep, the best first, as `palestra trials` prints and writes them."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.text import Text

from palestra.config.rendering import inline_flow
from palestra.runtime.console import visible
from palestra.storage.disk import csv_text
from palestra.sweeps.naming import point_texts, short_keys
from palestra.sweeps.outcomes import STATES, VALUES, best_of, count_of, parent_of, state_of, value_of, why_of

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

    from palestra.sweeps.stored import StoredSweep

COLOURS = {"succeeded": "", "failed": "red", "pruned": "yellow", "skipped": "dim", "running": "cyan"}


def ranked(sweep: "StoredSweep", state: str | None) -> "list[FrozenTrial]":
    """Return the trials in one state, or all: the best first, then those without a value, by number."""
    sign = -1.0 if sweep.data["objective"].get("goal") == "max" else 1.0
    found = [trial for trial in sweep.trials if state in (None, state_of(trial))]

    def rank(trial: "FrozenTrial") -> tuple[Any, ...]:
        name = state_of(trial)
        if name != "succeeded" or trial.value is None or math.isnan(trial.value):
            return (1, STATES.index(name), trial.number)
        return (0, sign * trial.value, trial.number)

    return sorted(found, key=rank)


def trial_lines(sweep: "StoredSweep", trials: "Sequence[FrozenTrial]") -> Text:
    """Return a line per trial: number, state, parent, value and those of its seeds, its point, its count, why it ended.

    Without parents and counts where there are none. (A table of rich takes half a second for a thousand trials.)
    """
    distributions = [item for trial in sweep.trials for item in trial.distributions.items()]
    keys = short_keys(list(dict.fromkeys(key for key, each in distributions if not each.single())))  # that can vary
    measure = str(sweep.data["objective"].get("measure"))
    unit, is_counted = sweep.unit, any(count_of(trial, sweep.unit) for trial in sweep.trials)
    counted, with_parents = [unit.replace("_", " ")] * is_counted, any(parent_of(t) is not None for t in sweep.trials)
    rows = [["trial", "state", *["parent"] * with_parents, measure, "of its seeds", *keys.values(), *counted, "why"]]
    for trial in trials:
        values, point = list(map(_number, _values(trial).values())), point_texts(trial)
        of_seeds = " ".join(values) if len(values) > 1 else ""
        parent = [_number(parent_of(trial))] * with_parents
        cells = [str(trial.number), state_of(trial), *parent, _number(value_of(trial)), of_seeds]
        cells += [point.get(key, "") for key in keys]
        rows.append([*cells, *[_number(count_of(trial, unit))] * is_counted, _why(trial)])
    rows = [list(map(visible, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    best = best_of(sweep.trials, str(sweep.data["objective"].get("goal")))
    text = Text(_line(rows[0], widths), style="bold")
    for row, trial in zip(rows[1:], trials, strict=True):
        is_best = best is not None and trial.number == best.number
        text.append(f"\n{_line(row, widths)}", "not bold green" if is_best else f"not bold {COLOURS[row[1]]}")
    return text


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    """Align the cells of a line: numbers to the right, the state and the reason to the left."""
    return "  ".join(
        cell.ljust(width) if place in (1, len(cells) - 1) else cell.rjust(width)
        for place, (cell, width) in enumerate(zip(cells, widths, strict=True))
        if width > 0
    ).rstrip()


def to_csv(sweep: "StoredSweep", trials: "Sequence[FrozenTrial]") -> str:
    """Return the whole table as CSV, with keys in full, and a column for the value of each seed.

    Without parents and counts where there are none.
    """
    keys = list(dict.fromkeys(key for trial in sweep.trials for key in trial.params))
    seeds = list(dict.fromkeys(seed for trial in sweep.trials for seed in _values(trial)))
    is_counted = any(count_of(trial, sweep.unit) for trial in sweep.trials)
    counted = [sweep.unit] * is_counted
    with_parents = any(parent_of(trial) is not None for trial in sweep.trials)
    head = ["trial", "state", *["parent"] * with_parents, "value", *(f"seed-{seed}" for seed in seeds)]
    rows = []
    for trial in trials:
        of_seeds = [_values(trial).get(seed) for seed in seeds]
        point = [_cell(trial.params[key]) if key in trial.params else "" for key in keys]
        ended = [*[count_of(trial, sweep.unit)] * is_counted, _why(trial)]
        parent = [parent_of(trial)] * with_parents
        rows.append([trial.number, state_of(trial), *parent, value_of(trial), *of_seeds, *point, *ended])
    return csv_text([*head, *keys, *counted, "why"], rows)


def _cell(value: Any) -> Any:
    """Write null, true and false as YAML does: an empty cell is that of a key which a base does not have."""
    return inline_flow(value) if value is None or isinstance(value, bool) else value


def _values(trial: "FrozenTrial") -> dict[str, Any]:
    values = trial.user_attrs.get(VALUES)
    return values if isinstance(values, dict) else {}


def _why(trial: "FrozenTrial") -> str:
    return f"{'excluded by ' if state_of(trial) == 'skipped' else ''}{why_of(trial)}"


def _number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.5g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return "" if value is None else str(value)
