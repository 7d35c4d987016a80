"""One side of benchmarks/same_speed: measures one row in the tree of a commit, by that commit's own palestra.

    python same_speed_side.py ROW TITLE REPEAT

same_speed starts this file in the commit's tree, which need not be the tree that this file lies in: it uses only what
both commits have. The last line on stdout is work per second.
"""

import sys
import time

import torch

from benchmarks.peers import ours
from benchmarks.peers.rows import COMPARISONS, PALESTRA
from benchmarks.polyhedra import Steps, original_test_config, overhead_config, play_rate, train

TIMED_SECONDS = 3.0
OPT_STEPS, OVERHEAD_STEPS = Steps(400, 2000), Steps(100, 400)


def peers_rate(row: str, title: str, repeat: int) -> float:
    """What palestra does in a row of the peers' table; a replay buffer's batches per second."""
    comparison = next(each for each in COMPARISONS if (each.row, each.title) == (row, title))
    own = next(extra for name, (_, extra) in comparison.contenders.items() if name.startswith(PALESTRA))
    measured = {"seed": repeat, "timed_seconds": TIMED_SECONDS, "num_threads": 1, "launched": time.time()}
    value = comparison.value(ours.measure(comparison.work | own | measured))
    return value if comparison.unit == "env steps/s" else 1e6 / value  # of microseconds


def rate(row: str, title: str, repeat: int) -> float:
    cpu = torch.device("cpu")
    if row in ("H1", "H2"):
        _, reduction, batch = title.split(", ")
        return play_rate(f"{reduction}, numba", batch.split()[1], "cpu", "1", str(TIMED_SECONDS))
    if row == "H4":
        return train(original_test_config(OPT_STEPS, 20, 1, cpu, 1, False), OPT_STEPS).opt_steps_per_s
    if row == "O1":
        return train(overhead_config(OVERHEAD_STEPS, 1), OVERHEAD_STEPS).opt_steps_per_s
    return peers_rate(row, title, repeat)


if __name__ == "__main__":
    print(rate(sys.argv[1], sys.argv[2], int(sys.argv[3])))
