"""Connect Four on one thread: random legal play beside PettingZoo's and OpenSpiel's, and play with past selves.

    make peers
    python -m benchmarks.self_play [--rows S1,...,S4] [--repeats 5] [--quick] [--out FOLDER]

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


def with_past_selves(row: str, num: int, aim: str) -> Comparison:
    work = {"num_worlds": 1024}
    contenders: dict[str, tuple[Script, Data]] = {
        "without past selves": (OURS, work | {"num_past_selves": 0}),
        f"{num} past selves": (OURS, work | {"num_past_selves": num}),
    }
    title = f"play of ppo-connect_four, {num} past selves in half of the worlds"
    return Comparison(row, title, "moves/s", {}, contenders, moves_per_s, aim)


COMPARISONS = [
    comparison("S1", "PettingZoo", "100"),
    comparison("S2", "OpenSpiel", "10"),
    with_past_selves("S3", 4, "0.67"),
    with_past_selves("S4", 8, "0.56"),
]

if __name__ == "__main__":
    comparing.main(NAME, __doc__, COMPARISONS, lambda is_quick: {"timed_seconds": 0.2 if is_quick else 5.0})
