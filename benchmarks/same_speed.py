"""Is a commit as fast as another one? palestra's own rates in the rows of both tables, old and new by turns.

    python -m benchmarks.same_speed OLD NEW [--rows P1,O1,...] [--repeats 11] [--cache FOLDER]

OLD, NEW: a commit, or a folder with a working tree. Every measurement is a fresh process in the commit's own tree, on
one thread; every other pair is measured in reverse order. Printed are the geometric mean of the ratios new / old, and
its 90% t interval. benchmarks/same_speed_side.py says what is measured.
"""

import argparse
import math
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from statistics import fmean, median, stdev
from tempfile import TemporaryDirectory

from scipy.stats import t as student

from benchmarks.peers.rows import COMPARISONS
from benchmarks.same_bits import Side, side_of

SCRIPT = Path(__file__).with_name("same_speed_side.py")
PEERS = [(each.row, each.title) for each in COMPARISONS if each.row in ("P1", "P2", "P4", "P5", "P7", "P8")]
PLAY = [
    (row, f"random play, {reduction}, batch {batch}")
    for row, reduction in (("H1", "minimal"), ("H2", "vertices"))
    for batch in (1024, 16384)
]
GAMES = [*PEERS, *PLAY, ("H4", "DQN, the original's test config"), ("O1", "DQN, dqn-polyhedra.yml")]
AGENTS = [("A1", "PPO, nip on witness, both learn"), ("A2", "play, debate on witness, three learn")]
TEXT = [("T1", each) for each in ("sampling", "supervised", "policy gradient")]
ROWS = [*GAMES, *AGENTS, ("M1", "fit, digits in batches of 64"), *TEXT]
THREADS = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


def rate(side: Side, row: str, title: str, repeat: int) -> float:
    """Work per second."""
    environ = os.environ | THREADS | {"PYTHONPATH": str(side.tree), "NUMBA_CACHE_DIR": str(side.numba_cache)}
    with TemporaryDirectory() as folder:  # for runs
        command = [sys.executable, "-P", str(SCRIPT), row, title, str(repeat)]
        done = subprocess.run(command, cwd=folder, env=environ, check=True, stdout=subprocess.PIPE, text=True)
    return float(done.stdout.split()[-1])


def interval(ratios: list[float]) -> tuple[float, float, float]:
    """The geometric mean, and its 90% t interval."""
    logs = [math.log(ratio) for ratio in ratios]
    half = float(student.ppf(0.95, len(logs) - 1)) * stdev(logs) / math.sqrt(len(logs))
    return math.exp(fmean(logs)), math.exp(fmean(logs) - half), math.exp(fmean(logs) + half)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.same_speed", description=__doc__)
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--rows", metavar="P1,O1,...", default=",".join(sorted({row for row, _ in ROWS})))
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--cache", type=Path, metavar="FOLDER")
    options = parser.parse_args()
    with ExitStack() as stack:
        spare = Path(stack.enter_context(TemporaryDirectory()))
        cache = spare if options.cache is None else options.cache.resolve()
        sides = [side_of(name, cache, spare) for name in (options.old, options.new)]
        print(
            "| row | work | new / old | 90% interval | old, per second | new, per second |\n|---|---|---|---|---|---|"
        )
        for row, title in ROWS:
            if row not in options.rows.split(","):
                continue
            for side in sides:  # compiled kernels are stored
                rate(side, row, title, 0)
            rates: dict[str, list[float]] = {side.label: [] for side in sides}
            for repeat in range(options.repeats):
                for side in sides[:: -1 if repeat % 2 else 1]:
                    rates[side.label].append(rate(side, row, title, repeat))
            old, new = (rates[side.label] for side in sides)
            mean, low, high = interval([b / a for a, b in zip(old, new, strict=True)])
            cells = [
                row,
                title,
                f"{mean:.3f}",
                f"{low:.3f} to {high:.3f}",
                f"{median(old):,.4g}",
                f"{median(new):,.4g}",
            ]
            print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
