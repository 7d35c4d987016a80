"""What hand-written kernels earn: palestra's rates in rows of the tables, with all of them and without each.

    python -m benchmarks.kernels [--repeats 7] [--rows P2,P4]

Every measurement is a fresh process on one thread (benchmarks/same_speed_side.py says what is measured); a repeat
measures all ways of a row, every other one in reverse order. Printed are the geometric mean of the ratios
with / without, and its 90% t interval: a kernel stays if it earns more than a quarter on a row.
"""

import argparse
import os
import subprocess
import sys
from functools import partial
from tempfile import TemporaryDirectory

from benchmarks.measuring import ROOT, alternate
from benchmarks.same_speed import PEERS, THREADS, interval

OF_DQN = ("dqn_gradient", "greedy_choice", "mlp")
OF_PPO = ("ppo_gradient", "categorical_draw", "generalized_advantages", "mlp")
OF_ROWS = {"P1": OF_PPO, "P2": OF_PPO, "P4": OF_DQN, "O1": ("dqn_gradient", "greedy_choice", "sets")}
EVERYTHING = "all kernels"


def rate(without: str, row: str, title: str) -> float:
    """Work per second, measured in a fresh process."""
    environ = os.environ | THREADS | {"PYTHONPATH": str(ROOT)}
    with TemporaryDirectory() as folder:  # for runs
        command = [sys.executable, "-m", "benchmarks.kernels", "--without", without, row, title]
        done = subprocess.run(command, cwd=folder, env=environ, check=True, stdout=subprocess.PIPE, text=True)
    return float(done.stdout.split()[-1])


def measure_without(without: str, row: str, title: str) -> float:
    """Work per second in this process, in which the kernel steps aside as if what it mirrors had been edited."""
    from palestra.runtime import guard

    assert "palestra.algorithms.algorithm" not in sys.modules  # else it would have the function below already
    find_edit = guard.find_edit

    def find_edit_or_left_out(kernel: guard.Kernel, owner: object) -> str | None:
        return "left out" if kernel.name == without else find_edit(kernel, owner)

    guard.find_edit = find_edit_or_left_out
    from benchmarks import same_speed_side

    return same_speed_side.rate(row, title, 0)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kernels", description=__doc__)
    parser.add_argument("--rows", metavar="P2,P4", default=",".join(OF_ROWS))
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--without", nargs=3, metavar=("KERNEL", "ROW", "WORK"), help="measure in this process")
    options = parser.parse_args()
    if options.without is not None:
        print(measure_without(*options.without))
        return
    print("| row | work | kernel | with / without | 90% interval |\n|---|---|---|---|---|")
    for row, title in [*PEERS, ("O1", "DQN, dqn-polyhedra.yml")]:
        if row not in OF_ROWS or row not in options.rows.split(","):
            continue
        ways = {without: partial(rate, without, row, title) for without in (EVERYTHING, *OF_ROWS[row])}
        ways[EVERYTHING]()  # compiled kernels are stored
        rates = alternate(ways, options.repeats)
        for kernel in OF_ROWS[row]:
            ratios = [b / a for a, b in zip(rates[kernel], rates[EVERYTHING], strict=True)]
            mean, low, high = interval(ratios)
            print(f"| {row} | {title} | {kernel} | {mean:.2f} | {low:.2f} to {high:.2f} |", flush=True)


if __name__ == "__main__":
    main()
