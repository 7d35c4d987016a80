"""How we measure: contenders alternate in one process, and only ratios within one repeat are compared. A repeat is
one measurement of each contender.

A machine drifts by tens of per cent between processes and minutes; what runs side by side drifts alike.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from palestra.storage.facts import run_facts

ROOT = Path(__file__).parents[1]


def rate_of(work: Callable[[], float], min_seconds: float) -> Callable[[], float]:
    """A call that measures work per second. `work` does some and says how much; it is called until `min_seconds` have
    passed."""

    def measure() -> float:
        done, started = 0.0, time.perf_counter()
        while True:
            done += work()
            seconds = time.perf_counter() - started
            if seconds >= min_seconds:
                return done / seconds

    return measure


def alternate(contenders: Mapping[str, Callable[[], float]], num_repeats: int) -> dict[str, list[float]]:
    """What every contender measured, one value per repeat. A repeat measures each contender once; every second repeat
    goes through them in reverse order."""
    values: dict[str, list[float]] = {name: [] for name in contenders}
    for repeat in range(num_repeats):
        for name in list(contenders)[:: -1 if repeat % 2 else 1]:
            values[name].append(contenders[name]())
            print(f"repeat {repeat + 1}: {name}: {_number(values[name][-1])}", file=sys.stderr, flush=True)
    return values


@dataclass(frozen=True)
class Row:
    """One comparison. baseline, contender: who; *_values: what they measured, one value per repeat."""

    row: str
    work: str
    unit: str
    num_threads: int
    baseline: str
    baseline_values: list[float]
    contender: str
    contender_values: list[float]

    @property
    def ratio(self) -> float:
        """Contender / baseline: the median over the repeats."""
        return median(self.ratios)

    @property
    def ratios(self) -> list[float]:
        """Contender / baseline in each repeat."""
        return [c / b for c, b in zip(self.contender_values, self.baseline_values, strict=True)]

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"ratio": self.ratio, "interval": [min(self.ratios), max(self.ratios)]}

    @staticmethod
    def of(
        row: str, work: str, unit: str, num_threads: int, values: Mapping[str, list[float]], baseline: str
    ) -> list["Row"]:
        """Everyone in `values` against the baseline."""
        return [
            Row(row, work, unit, num_threads, baseline, values[baseline], name, values[name])
            for name in values
            if name != baseline
        ]


def markdown(rows: list[Row]) -> str:
    """The table: medians over the repeats, and ratios, each from the lowest to the highest of a repeat.

    The median lies between these with a probability of 94% for 5 repeats.
    """
    lines = [
        "| row | work | unit | threads | baseline | | contender | | ratio |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        cells = [r.row, r.work, r.unit, str(r.num_threads)]
        cells += [r.baseline, _number(median(r.baseline_values)), r.contender, _number(median(r.contender_values))]
        interval = f" ({min(r.ratios):.3g} to {max(r.ratios):.3g})" if len(r.ratios) > 1 else ""
        lines.append(f"| {' | '.join([*cells, f'{r.ratio:.3g}{interval}'])} |")
    return "\n".join(lines)


def tell(rows: list[Row], file: Path | None) -> None:
    """Print machine, versions and the table, and write every measured value to a file, if there is one."""
    tell_table(markdown(rows), [row.to_json() for row in rows], file)


def tell_table(table: str, rows: list[dict[str, Any]], file: Path | None) -> None:
    """Do `tell` for a table of another form. table: in Markdown. rows: for the file."""
    facts = run_facts()
    print(f"{facts['machine']}\n{facts['versions']}\n\n{table}")
    if file is not None:
        file.write_text(json.dumps(facts | {"rows": rows}, indent=1) + "\n")


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


# ---- memory --------------------------------------------------------------------------------------------


def peak_growth_mib(call: Callable[[], object]) -> float:
    """By how many MiB the resident memory of this process rises at its highest during `call` (Linux alone).

    It sees the memory of every library, freed again or not. Call it in a fresh process: memory that was used before
    and lies idle in the process would be used again, and not be seen.
    """
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew
    before = status_kib("VmRSS")
    call()
    return (status_kib("VmHWM") - before) / 1024


def status_kib(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def in_fresh_process(module: str, function: str, *arguments: str) -> float:
    """The number that module.function(*arguments) gives in a new process."""
    code = f"import sys; from {module} import {function}; print({function}(*sys.argv[1:]))"
    command = [sys.executable, "-c", code, *arguments]
    result = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    return float(result.stdout.split()[-1])
