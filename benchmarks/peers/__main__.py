"""palestra beside the libraries that people use: same work, same hyperparameters, one run, one table.

    python -m benchmarks.peers [--rows P1,P4,...] [--threads 1 2] [--repeats 3] [--quick] [--out FOLDER]

`make peers` builds the virtual environment of the peers first. README.md says what is measured, and how.
"""

import argparse
import json
import platform
import sys
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.measuring import ROOT, Row, markdown
from benchmarks.peers.plot import plot
from benchmarks.peers.processes import Failed
from benchmarks.peers.rows import COMPARISONS, PALESTRA, PEERS, Comparison, script_of

TIMEOUT_S = 300.0  # of one measurement


@dataclass
class Measured:
    """What came of a comparison with a number of threads: value and answer of each contender per repeat, and why
    others are left out."""

    comparison: Comparison
    num_threads: int
    values: dict[str, list[float]] = field(default_factory=dict)
    answers: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    def rows(self) -> list[Row]:
        """Everyone against the baseline, or where it is left out the first who is not; palestra against the best
        peer too."""
        c = self.comparison
        if not self.values:
            return []
        baseline = next(name for name in c.contenders if name in self.values)
        rows = Row.of(c.row, c.title, c.unit, self.num_threads, self.values, baseline)
        ours = {name: values for name, values in self.values.items() if name.startswith(PALESTRA)}
        others = {name: values for name, values in self.values.items() if name in PEERS}
        if ours and others:
            best = (max if c.unit == "env steps/s" else min)(others, key=lambda name: median(others[name]))
            if best != baseline:
                rows += Row.of(c.row, c.title, c.unit, self.num_threads, ours | {best: others[best]}, best)
        return rows

    def to_json(self) -> dict[str, Any]:
        c = self.comparison
        head = {"row": c.row, "work": c.title, "unit": c.unit, "num_threads": self.num_threads, "asked": c.work}
        return head | {"values": self.values, "answers": self.answers, "left_out": self.left_out}

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


def measure(comparison: Comparison, num_threads: int, num_repeats: int, timed_seconds: float) -> Measured:
    """Every contender once per repeat, every second repeat in reverse order. One that fails is not run again."""
    measured = Measured(comparison, num_threads)
    for repeat in range(num_repeats):
        for name in list(comparison.contenders)[:: -1 if repeat % 2 else 1]:
            if name in measured.left_out:
                continue
            extra = {"seed": repeat, "timed_seconds": timed_seconds, "num_threads": num_threads}
            work = comparison.work | comparison.contenders[name] | extra
            try:
                answer = script_of(name).run(work, num_threads, TIMEOUT_S)
            except Failed as error:
                measured.left_out[name] = str(error)
                measured.values.pop(name, None)
                measured.answers.pop(name, None)
                print(f"{comparison.row} repeat {repeat + 1}: {name}: {error}", file=sys.stderr, flush=True)
                continue
            value = comparison.value(answer)
            measured.values.setdefault(name, []).append(value)
            measured.answers.setdefault(name, []).append(answer)
            print(
                f"{comparison.row} repeat {repeat + 1}: {name}: {value:,.4g} {comparison.unit}",
                file=sys.stderr,
                flush=True,
            )
    return measured


# ---- the report ----------------------------------------------------------------------------------------


def startup_table(all_measured: list[Measured]) -> str:
    """Seconds from the start of the process to the first opt step: medians over the repeats."""
    lines = ["| row | work | threads | contender | start-up, s |", "|---|---|---|---|---|"]
    for measured in all_measured:
        c = measured.comparison
        for name, answers in measured.answers.items():
            seconds = [answer["startup_seconds"] for answer in answers]
            if None not in seconds:
                lines.append(f"| {c.row} | {c.title} | {measured.num_threads} | {name} | {median(seconds):.3g} |")
    return "\n".join(lines)


def processor_table(all_measured: list[Measured]) -> str:
    """Seconds of processor time of the starts (the table above has those by the clock), medians over the repeats."""
    lines = ["| row | work | threads | contender | processor, s |", "|---|---|---|---|---|"]
    for measured in all_measured:
        c = measured.comparison
        for name, answers in measured.answers.items():
            seconds = [answer["cpu_seconds"] for answer in answers if "cpu_seconds" in answer]
            if seconds:
                lines.append(f"| {c.row} | {c.title} | {measured.num_threads} | {name} | {median(seconds):.3g} |")
    return "\n".join(lines)


def report(all_measured: list[Measured]) -> str:
    """Markdown: the table, the start-up times, who is left out and why, the versions."""
    lines = [markdown([row for measured in all_measured for row in measured.rows()])]
    numbers = sorted({len(values) for measured in all_measured for values in measured.values.values()})
    repeats = " or ".join(map(str, numbers))
    lines += ["", f"Medians of {repeats} repeats; ratios are medians of the ratios within a repeat."]
    lines += ["The contenders of a row alternated in one run; other rows may come from other runs.", ""]
    lines += ["Seconds from the start of the process to the first opt step:", "", startup_table(all_measured)]
    lines += ["", "Seconds of the processor until then, where the command alone is measured:", ""]
    lines += [processor_table(all_measured)]
    left_out = [
        f"- {m.comparison.row}, {m.comparison.title}: {name}: {why}"
        for m in all_measured
        for name, why in m.left_out.items()
    ]
    if left_out:
        lines += ["", "Left out:", "", *left_out]
    lines += ["", f"{platform.machine()}, {', '.join(f'{k} {v}' for k, v in sorted(versions(all_measured).items()))}"]
    return "\n".join(lines)


def versions(all_measured: list[Measured]) -> dict[str, str]:
    answers = [answer for m in all_measured for answers in m.answers.values() for answer in answers]
    return {package: version for answer in answers for package, version in answer["versions"].items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = list(dict.fromkeys(comparison.row for comparison in COMPARISONS))
    parser.add_argument("--rows", type=lambda text: text.split(","), default=names, metavar="P1,P2,...")
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one repeat, a second long: a smoke run, no figures")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "peers")
    options = parser.parse_args()
    unknown = [row for row in options.rows if row not in names]
    if unknown:
        parser.error(f"--rows: {unknown[0]} is none of {', '.join(names)}")
    num_repeats, timed_seconds = (1, 1.0) if options.quick else (options.repeats, 5.0)
    all_measured = {} if options.quick else earlier(options.out)
    for comparison in COMPARISONS:
        if comparison.row in options.rows:
            for num_threads in options.threads:
                measured = measure(comparison, num_threads, num_repeats, timed_seconds)
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
    folder.mkdir(parents=True, exist_ok=True)
    data = [measured.to_json() for measured in in_order(all_measured)]
    (folder / "peers.md").write_text(report(in_order(all_measured)) + "\n")
    (folder / "peers.json").write_text(json.dumps(data, indent=1) + "\n")
    plot(data, folder / "peers.png")


if __name__ == "__main__":
    main()
