"""Many agents: `nip` on `witness` beside the same loop built from TorchRL, and play `together` beside `in_turn`.

    python -m benchmarks.agents [--rows A1,A2] [--threads 1] [--repeats 5] [--quick] [--out FOLDER]

TorchRL is the extra `torchrl`. README.md says what is measured, and how.
"""

import argparse
import json
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.agents.ours import config_of, hyperparameters
from benchmarks.measuring import ROOT, Row, markdown
from benchmarks.peers.processes import OWN_PYTHON, Script

TIMEOUT_S = 600.0  # of one measurement
Data = dict[str, Any]
OURS, TORCHRL = (Script(f"benchmarks.agents.{name}", OWN_PYTHON) for name in ("ours", "torchrl"))
NIP: Data = {"kind": "train", "protocol": "nip", "trainer": "together", "solved_at": None, "warmup_env_steps": 16_384}
DEBATE: Data = {"kind": "play", "protocol": "debate"}


@dataclass(frozen=True)
class Comparison:
    """One work and those who do it, the baseline first: the script, and what of the work is different for it. value:
    what an answer comes to, in the unit. aim: of the ratio, in words."""

    row: str
    title: str
    unit: str
    work: Data
    contenders: dict[str, tuple[Script, Data]]
    value: Callable[[Data], float]
    aim: str


COMPARISONS = (
    Comparison(
        "A1",
        "PPO, nip on witness, both learn",
        "env steps/s",
        NIP,
        {"torchrl": (TORCHRL, {}), "palestra": (OURS, {})},
        lambda answer: float(answer["env_steps"] / answer["seconds"]),
        "at least 5",
    ),
    Comparison(
        "A2",
        "play, debate on witness, three learn",
        "s per 100,000 env steps of each learner",
        DEBATE,
        {name: (OURS, {"trainer": name}) for name in ("in_turn", "together")},
        lambda answer: float(answer["seconds"] * 100_000 / answer["env_steps"]),
        "at most 0.45",
    ),
)


@dataclass
class Measured:
    """What came of a comparison: value and answer of each contender per repeat."""

    comparison: Comparison
    num_threads: int
    values: dict[str, list[float]] = field(default_factory=dict)
    answers: dict[str, list[Data]] = field(default_factory=dict)

    def rows(self) -> list[Row]:
        c = self.comparison
        return Row.of(c.row, c.title, c.unit, self.num_threads, self.values, next(iter(c.contenders)))

    def to_json(self) -> Data:
        c = self.comparison
        head = {"row": c.row, "work": c.title, "unit": c.unit, "aim": c.aim, "num_threads": self.num_threads}
        return head | {"ratio": self.rows()[0].ratio, "values": self.values, "answers": self.answers}


def measure(comparison: Comparison, num_threads: int, num_repeats: int, is_quick: bool) -> Measured:
    """Every contender once per repeat, in a fresh process; every second repeat in reverse order."""
    measured = Measured(comparison, num_threads)
    timed = {"timed_seconds": 1.0 if is_quick else 10.0, "num_epochs": 4 if is_quick else 60}
    for repeat in range(num_repeats):
        for name in list(comparison.contenders)[:: -1 if repeat % 2 else 1]:
            script, own = comparison.contenders[name]
            work = comparison.work | own | timed | {"seed": repeat, "num_threads": num_threads}
            if work["kind"] == "train":
                work |= hyperparameters(config_of(work))
            answer = script.run(work, num_threads, TIMEOUT_S)
            measured.values.setdefault(name, []).append(value := comparison.value(answer))
            measured.answers.setdefault(name, []).append(answer)
            print(
                f"{comparison.row} repeat {repeat + 1}: {name}: {value:,.4g} {comparison.unit}",
                file=sys.stderr,
                flush=True,
            )
    return measured


def report(all_measured: list[Measured]) -> str:
    """Markdown: the table, what is aimed at, the versions."""
    lines = [markdown([row for measured in all_measured for row in measured.rows()]), ""]
    numbers = sorted({len(values) for measured in all_measured for values in measured.values.values()})
    repeats = " or ".join(map(str, numbers))
    lines.append(f"Medians of {repeats} repeats; ratios are medians of the ratios within a repeat.")
    lines += [
        f"{measured.comparison.row}: aimed at is a ratio of {measured.comparison.aim}." for measured in all_measured
    ]
    answers = [answer for m in all_measured for answers in m.answers.values() for answer in answers]
    versions = {package: version for answer in answers for package, version in answer["versions"].items()}
    lines += ["", f"{platform.machine()}, {', '.join(f'{k} {v}' for k, v in sorted(versions.items()))}"]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [comparison.row for comparison in COMPARISONS]
    parser.add_argument("--rows", type=lambda text: text.split(","), default=names, metavar="A1,A2")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one repeat, a second long: a smoke run, no figures")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "agents")
    options = parser.parse_args()
    unknown = [row for row in options.rows if row not in names]
    if unknown:
        parser.error(f"--rows: {unknown[0]} is none of {', '.join(names)}")
    all_measured = [
        measure(comparison, options.threads, 1 if options.quick else options.repeats, options.quick)
        for comparison in COMPARISONS
        if comparison.row in options.rows
    ]
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "agents.md").write_text(report(all_measured) + "\n")
    (options.out / "agents.json").write_text(json.dumps([each.to_json() for each in all_measured], indent=1) + "\n")
    print(report(all_measured))


if __name__ == "__main__":
    main()
