"""palestra beside the libraries that people use: same work, same hyperparameters, one run, one table.

    python -m benchmarks.peers [--rows P1,P4,...] [--threads 1 2] [--repeats 3] [--quick] [--out FOLDER]

`make peers` builds the virtual environment of the peers first. README.md says what is measured, and how.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import comparing
from benchmarks.measuring import Row
from benchmarks.peers.plot import plot
from benchmarks.peers.rows import COMPARISONS, PALESTRA, PEERS

TIMEOUT_S = 300.0  # of one measurement


class Measured(comparing.Measured):
    """What came of a comparison with a number of threads; rows of earlier runs stay in the table."""

    def rows(self) -> list[Row]:
        """Everyone against the baseline; palestra against the best peer too."""
        c, rows = self.comparison, super().rows()
        ours = {name: values for name, values in self.values.items() if name.startswith(PALESTRA)}
        others = {name: values for name, values in self.values.items() if name in PEERS}
        if ours and others:
            best = (max if c.unit == "env steps/s" else min)(others, key=lambda name: median(others[name]))
            if best != rows[0].baseline:
                rows += Row.of(c.row, c.title, c.unit, self.num_threads, ours | {best: others[best]}, best)
        return rows

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Measured | None":
        """What an earlier run has measured; None if today another work stands in its row."""
        for c in COMPARISONS:
            if (c.row, c.title, c.work) == (data["row"], data["work"], data["asked"]):
                return cls(c, data["num_threads"], data["values"], data["answers"], data["left_out"])
        return None

    @property
    def place(self) -> tuple[int, int]:
        return COMPARISONS.index(self.comparison), self.num_threads


# ---- the report ----------------------------------------------------------------------------------------


def startup_table(all_measured: Sequence[Measured]) -> str:
    """Seconds from the start of the process to the first opt step: medians over the repeats."""
    lines = ["| row | work | threads | contender | start-up, s |", "|---|---|---|---|---|"]
    for measured in all_measured:
        c = measured.comparison
        for name, answers in measured.answers.items():
            seconds = [answer["startup_seconds"] for answer in answers]
            if None not in seconds:
                lines.append(f"| {c.row} | {c.title} | {measured.num_threads} | {name} | {median(seconds):.3g} |")
    return "\n".join(lines)


def processor_table(all_measured: Sequence[Measured]) -> str:
    """Seconds of processor time of the starts (the table above has those by the clock), medians over the repeats."""
    lines = ["| row | work | threads | contender | processor, s |", "|---|---|---|---|---|"]
    for measured in all_measured:
        c = measured.comparison
        for name, answers in measured.answers.items():
            seconds = [answer["cpu_seconds"] for answer in answers if "cpu_seconds" in answer]
            if seconds:
                lines.append(f"| {c.row} | {c.title} | {measured.num_threads} | {name} | {median(seconds):.3g} |")
    return "\n".join(lines)


def report(all_measured: Sequence[Measured]) -> str:
    """Markdown: the table, the start-up times, who is left out and why, the versions."""
    details = ["The contenders of a row alternated in one run; other rows may come from other runs.", ""]
    details += ["Seconds from the start of the process to the first opt step:", "", startup_table(all_measured), ""]
    details += ["Seconds of the processor until then, where the command alone is measured:", ""]
    return comparing.report(all_measured, [*details, processor_table(all_measured), ""])


def main() -> None:
    options = comparing.options_of("peers", __doc__, [c.row for c in COMPARISONS], num_repeats=3)
    all_measured = {} if options.quick else earlier(options.out)
    for comparison in COMPARISONS:
        if comparison.row in options.rows:
            for num_threads in options.threads:
                measured = Measured(comparison, num_threads)
                measured.measure(options.repeats, {"timed_seconds": 1.0 if options.quick else 5.0}, TIMEOUT_S)
                all_measured[measured.place] = measured
            write(all_measured, options.out)  # what is done stands, whatever becomes of the rest
    print(report(in_order(all_measured)))


def earlier(folder: Path) -> dict[tuple[int, int], Measured]:
    """What runs before this one have left."""
    path = folder / "peers.json"
    found = map(Measured.from_json, json.loads(path.read_text())) if path.exists() else ()
    return {measured.place: measured for measured in found if measured is not None}


def in_order(all_measured: dict[tuple[int, int], Measured]) -> list[Measured]:
    return [all_measured[place] for place in sorted(all_measured)]


def write(all_measured: dict[tuple[int, int], Measured], folder: Path) -> None:
    shown = in_order(all_measured)
    comparing.write("peers", shown, report(shown), folder)
    plot([measured.to_json() for measured in shown], folder / "peers.png")


if __name__ == "__main__":
    main()
