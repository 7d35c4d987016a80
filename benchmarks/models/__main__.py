"""A model that learns from data: `fit` beside a bare loop of torch, skorch and Hugging Face's Trainer.

    python -m benchmarks.models [--rows M1,M2] [--threads 1] [--repeats 5] [--quick] [--out FOLDER]

`make peers` builds the virtual environment of the other libraries first. README.md says what is measured, and how.
"""

import argparse
import json
import platform
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.measuring import ROOT, Row, markdown
from benchmarks.peers.processes import OWN_PYTHON, PEERS_PYTHON, Failed, Script

TIMEOUT_S = 300.0  # of one measurement
Data = dict[str, Any]
WORK: Data = {"hidden": 128, "batch_size": 64, "learning_rate": 1e-3, "record_every": 500}
BARE, OURS = (Script(f"benchmarks.models.{name}", OWN_PYTHON) for name in ("bare", "ours"))
SKORCH, HUGGING_FACE = (Script(f"benchmarks.models.{name}", PEERS_PYTHON) for name in ("skorch", "huggingface"))


@dataclass(frozen=True)
class Comparison:
    """One work and those who do it, the baseline first: the script, and what of the work is different for it."""

    row: str
    title: str
    contenders: dict[str, tuple[Script, Data]]


COMPARISONS = (
    Comparison(
        "M1",
        "digits in batches of 64, AdamW",
        {"bare loop": (BARE, {}), "palestra": (OURS, {}), "skorch": (SKORCH, {}), "Trainer": (HUGGING_FACE, {})},
    ),
    Comparison(
        "M2",
        "the same, and what more costs",
        {
            "palestra": (OURS, {}),
            "seeding per_item": (OURS, {"seeding": "per_item"}),
            "ema": (OURS, {"ema": {"decay": 0.99}}),
            "a checkpoint in 500 opt steps": (OURS, {"save": {"every": 500, "unit": "opt_steps"}}),
            "two workers": (OURS, {"num_workers": 2}),
        },
    ),
)


@dataclass
class Measured:
    """What came of a comparison: seconds per epoch and answer of each contender per repeat, and who is left out."""

    comparison: Comparison
    num_threads: int
    values: dict[str, list[float]] = field(default_factory=dict)
    answers: dict[str, list[Data]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    def rows(self) -> list[Row]:
        c = self.comparison
        return Row.of(c.row, c.title, "s per epoch", self.num_threads, self.values, next(iter(c.contenders)))

    def to_json(self) -> Data:
        c = self.comparison
        head = {"row": c.row, "work": c.title, "num_threads": self.num_threads}
        ratios = {row.contender: row.ratio for row in self.rows()}
        return head | {"ratios": ratios, "values": self.values, "answers": self.answers, "left_out": self.left_out}


def measure(comparison: Comparison, num_threads: int, num_repeats: int, timed_seconds: float) -> Measured:
    """Every contender once per repeat, in a fresh process; every second repeat in reverse order."""
    measured = Measured(comparison, num_threads)
    for repeat in range(num_repeats):
        for name in list(comparison.contenders)[:: -1 if repeat % 2 else 1]:
            script, own = comparison.contenders[name]
            extra = {"seed": repeat, "num_threads": num_threads, "timed_seconds": timed_seconds}
            try:
                answer = script.run(WORK | own | extra, num_threads, TIMEOUT_S)
            except Failed as error:
                measured.left_out[name] = str(error)
                measured.values.pop(name, None)
                continue
            if name in measured.left_out:
                continue
            value = answer["seconds"] / answer["epochs"]
            measured.values.setdefault(name, []).append(value)
            measured.answers.setdefault(name, []).append(answer)
            print(f"{comparison.row} repeat {repeat + 1}: {name}: {value:.4g} s", file=sys.stderr, flush=True)
    return measured


def report(all_measured: list[Measured]) -> str:
    """Markdown: the table, memory and open files, who is left out and why, the versions."""
    lines = [markdown([row for measured in all_measured for row in measured.rows()]), ""]
    numbers = sorted({len(values) for measured in all_measured for values in measured.values.values()})
    repeats = " or ".join(map(str, numbers))
    lines += [f"Medians of {repeats} repeats; ratios are medians of the ratios within a repeat.", ""]
    for measured in all_measured:
        for name, answers in measured.answers.items():
            if "used" in answers[0]:
                used = "; ".join(
                    f"{each['epochs']} epochs: {each['used']['mib'][0]} to {each['used']['mib'][1]} MiB, "
                    f"{each['used']['files'][0]} to {each['used']['files'][1]} files"
                    for each in answers[:1]
                )
                lines.append(f"- {measured.comparison.row}, {name}, from the tenth epoch to the last: {used}")
    lines += [f"- left out: {name}: {why}" for measured in all_measured for name, why in measured.left_out.items()]
    answers = [answer for m in all_measured for answers in m.answers.values() for answer in answers]
    versions = {package: version for answer in answers for package, version in answer["versions"].items()}
    lines += ["", f"{platform.machine()}, {', '.join(f'{k} {v}' for k, v in sorted(versions.items()))}"]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [comparison.row for comparison in COMPARISONS]
    parser.add_argument("--rows", type=lambda text: text.split(","), default=names, metavar="M1,M2")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one repeat, a second long: a smoke run, no figures")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "models")
    options = parser.parse_args()
    unknown = [row for row in options.rows if row not in names]
    if unknown:
        parser.error(f"--rows: {unknown[0]} is none of {', '.join(names)}")
    repeats, seconds = (1, 1.0) if options.quick else (options.repeats, 10.0)
    all_measured = [measure(c, options.threads, repeats, seconds) for c in COMPARISONS if c.row in options.rows]
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "models.md").write_text(report(all_measured) + "\n")
    (options.out / "models.json").write_text(json.dumps([each.to_json() for each in all_measured], indent=1) + "\n")
    print(report(all_measured))


if __name__ == "__main__":
    main()
