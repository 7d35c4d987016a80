"""One side of benchmarks/same_speed: measures one row in the tree of a commit, by that commit's own palestra.

    python same_speed_side.py ROW TITLE REPEAT

same_speed starts this file in the commit's tree, which need not be the tree that this file lies in: it uses only what
both commits have. The last line on stdout is work per second.
"""

import sys
import time

import torch

from benchmarks import text, text_steps
from benchmarks.agents import __main__ as agents
from benchmarks.agents import ours as players
from benchmarks.measuring import rate_of
from benchmarks.models import __main__ as models
from benchmarks.models import ours as fitting
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


def agents_rate(row: str, repeat: int) -> float:
    """What palestra does in a row of the table of many agents, per second; of A2 together."""
    comparison = next(each for each in agents.comparisons() if each.row == row)
    work = comparison.work | [*comparison.contenders.values()][-1][1]
    work |= {
        "seed": repeat,
        "timed_seconds": TIMED_SECONDS,
        "num_epochs": 20,
        "num_threads": 1,
        "launched": time.time(),
    }
    answer = players.measure(work)
    return float(answer["env_steps"] / answer["seconds"])


def epochs_rate(repeat: int) -> float:
    """Epochs of the digits per second."""
    work = models.WORK | {"seed": repeat, "timed_seconds": TIMED_SECONDS, "num_threads": 1, "launched": time.time()}
    return 1.0 / models.seconds_per_epoch(fitting.train(work))


def text_rate(title: str) -> float:
    """Tokens that a byte model draws in a second, 64 answers at once, or opt steps of one of its losses."""
    if title == "sampling":
        prompts = [list(row.prompt_ids) for row in text_steps.examples()[:64]]
        return rate_of(text.ours(text_steps.new_model(), prompts, text.STOPS), TIMED_SECONDS)()
    loss = {"supervised": text_steps.SUPERVISED, "policy gradient": text_steps.GRADIENT}[title]
    return text_steps.ours(loss, 30)()


def rate(row: str, title: str, repeat: int) -> float:
    torch.set_num_threads(1)
    if row in ("A1", "A2"):
        return agents_rate(row, repeat)
    if row == "M1":
        return epochs_rate(repeat)
    if row == "T1":
        return text_rate(title)
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
