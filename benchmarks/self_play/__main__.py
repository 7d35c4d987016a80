"""Random legal play of Connect Four, on one thread, beside PettingZoo's and OpenSpiel's: one run, one table.

    make peers
    python -m benchmarks.self_play [--rows S1,S2] [--repeats 5] [--quick] [--out FOLDER]

README.md says what is counted, and how.
"""

from benchmarks import comparing
from benchmarks.comparing import Comparison, Data
from benchmarks.peers.processes import OWN_PYTHON, PEERS_PYTHON, Script

NAME = "self_play"
OURS = Script("benchmarks.self_play.ours", OWN_PYTHON)
THEIRS = Script("benchmarks.self_play.theirs", PEERS_PYTHON)
NUM_WORLDS = 4096


def moves_per_s(answer: Data) -> float:
    return float(answer["moves"] / answer["cpu_seconds"])


def comparison(row: str, library: str, aim: str) -> Comparison:
    contenders: dict[str, tuple[Script, Data]] = {
        library: (THEIRS, {"library": library}),
        "palestra": (OURS, {"num_worlds": NUM_WORLDS}),
    }
    return Comparison(row, "random play of Connect Four", "moves/s", {}, contenders, moves_per_s, aim)


COMPARISONS = [comparison("S1", "PettingZoo", "100"), comparison("S2", "OpenSpiel", "10")]

if __name__ == "__main__":
    comparing.main(NAME, __doc__, COMPARISONS, lambda is_quick: {"timed_seconds": 0.2 if is_quick else 5.0})
