"""Works that several programs do: each in a fresh process, in turns, set beside each other in one table.

A benchmark lists its comparisons, and calls `main`. benchmarks.measuring says why only ratios within a repeat count.
"""

import argparse
import json
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.measuring import ROOT, Row, markdown
from benchmarks.peers.processes import Failed, Script

Data = dict[str, Any]


@dataclass(frozen=True)
class Comparison:
    """One work and those who do it, the baseline first.

    contenders: the script of each, and what of the work is different for it. value: what an answer comes to, in the
    unit. aim: of the ratio of the first contender after the baseline, in words; "": none.
    """

    row: str
    title: str
    unit: str
    work: Data
    contenders: Mapping[str, tuple[Script, Data]]
    value: Callable[[Data], float]
    aim: str = ""


@dataclass
class Measured:
    """What came of a comparison: value and answer of each contender per repeat, and why others are left out."""

    comparison: Comparison
    num_threads: int
    values: dict[str, list[float]] = field(default_factory=dict)
    answers: dict[str, list[Data]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    def measure(self, num_repeats: int, extra: Data, timeout_s: float) -> None:
        """Every contender once per repeat, every second repeat in reverse order. One that fails is not run again.

        extra: keys of the work that are the same for all, besides `seed` and `num_threads`.
        """
        c = self.comparison
        for repeat in range(num_repeats):
            for name in list(c.contenders)[:: -1 if repeat % 2 else 1]:
                if name in self.left_out:
                    continue
                script, own = c.contenders[name]
                work = c.work | own | extra | {"seed": repeat, "num_threads": self.num_threads}
                try:
                    answer = script.run(work, self.num_threads, timeout_s)
                except Failed as error:
                    self.left_out[name] = told = str(error)
                    self.values.pop(name, None)
                    self.answers.pop(name, None)
                else:
                    self.values.setdefault(name, []).append(value := c.value(answer))
                    self.answers.setdefault(name, []).append(answer)
                    told = f"{value:,.4g} {c.unit}"
                print(f"{c.row} repeat {repeat + 1}: {name}: {told}", file=sys.stderr, flush=True)

    def rows(self) -> list[Row]:
        """Everyone against the baseline, or where it is left out the first who is not."""
        c = self.comparison
        baseline = next((name for name in c.contenders if name in self.values), "")
        return Row.of(c.row, c.title, c.unit, self.num_threads, self.values, baseline) if baseline else []

    def to_json(self) -> Data:
        c = self.comparison
        head = {"row": c.row, "work": c.title, "unit": c.unit, "aim": c.aim, "num_threads": self.num_threads}
        ratios = {row.contender: row.ratio for row in Measured.rows(self)}
        found = {"ratios": ratios, "values": self.values, "answers": self.answers, "left_out": self.left_out}
        return head | {"asked": c.work} | found


def report(all_measured: Sequence[Measured], details: Sequence[str] = ()) -> str:
    """Markdown: the table, what is aimed at, details, who is left out and why, the versions."""
    lines = [markdown([row for measured in all_measured for row in measured.rows()]), ""]
    numbers = sorted({len(values) for measured in all_measured for values in measured.values.values()})
    repeats = " or ".join(map(str, numbers))
    lines += [f"Medians of {repeats} repeats; ratios are medians of those within a repeat (lowest to highest).", ""]
    aims = {m.comparison.row: m.comparison.aim for m in all_measured if m.comparison.aim}
    lines += [f"- {row}: aimed at is a ratio of {aim}" for row, aim in aims.items()]
    left_out = [(m.comparison, name, why) for m in all_measured for name, why in m.left_out.items()]
    lines += [*details, *(f"- left out: {c.row}, {c.title}: {name}: {why}" for c, name, why in left_out)]
    answers = [answer for m in all_measured for answers in m.answers.values() for answer in answers]
    versions = {package: version for answer in answers for package, version in answer["versions"].items()}
    return "\n".join(
        [*lines, "", f"{platform.machine()}, {', '.join(f'{k} {v}' for k, v in sorted(versions.items()))}"]
    )


def options_of(name: str, doc: str | None, rows: Sequence[str], num_repeats: int) -> argparse.Namespace:
    """Read the command line: `rows` of those named, `threads`, `repeats`, `quick` and `out`."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = list(dict.fromkeys(rows))
    parser.add_argument("--rows", type=lambda text: text.split(","), default=names, metavar=",".join(names[:2]))
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--repeats", type=int, default=num_repeats)
    parser.add_argument("--quick", action="store_true", help="one repeat, a second long: a smoke run, no figures")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / name)
    options = parser.parse_args()
    if unknown := [row for row in options.rows if row not in names]:
        parser.error(f"--rows: {unknown[0]} is none of {', '.join(names)}")
    options.repeats = 1 if options.quick else options.repeats
    return options


def write(name: str, all_measured: Sequence[Measured], text: str, folder: Path) -> None:
    """Write what was measured: as NAME.md, and with every answer as NAME.json."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.md").write_text(text + "\n")
    data = [measured.to_json() for measured in all_measured]
    (folder / f"{name}.json").write_text(json.dumps(data, indent=1) + "\n")


def main(
    name: str,
    doc: str | None,
    comparisons: Sequence[Comparison],
    extra: Callable[[bool], Data],
    details: Callable[[Sequence[Measured]], Sequence[str]] = lambda all_measured: (),
    num_repeats: int = 5,
    timeout_s: float = 300.0,
) -> None:
    """Run a benchmark from the command line. name: of its folder of results, and its files there.

    extra: for a quick run or another one, the keys of every work that say how long it is. details: lines for the
    report.
    """
    options = options_of(name, doc, [comparison.row for comparison in comparisons], num_repeats)
    all_measured = [
        Measured(c, threads) for c in comparisons if c.row in options.rows for threads in options.threads
    ]  # fmt: skip
    for measured in all_measured:
        measured.measure(options.repeats, extra(options.quick), timeout_s)
    text = report(all_measured, details(all_measured))
    write(name, all_measured, text, options.out)
    print(text)
