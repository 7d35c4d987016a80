"""The benchmark of Connect Four: palestra's side counts the moves that it plays.

Covers benchmarks.self_play.
"""

from benchmarks.self_play.__main__ import moves_per_s
from benchmarks.self_play.ours import ROUNDS_PER_CALL, measure


def test_every_move_of_every_world_is_counted() -> None:
    found = measure({"num_worlds": 8, "seed": 0, "num_threads": 1, "timed_seconds": 0.01})
    assert found["moves"] > 0
    assert found["moves"] % (8 * ROUNDS_PER_CALL) == 0
    assert moves_per_s(found) == found["moves"] / found["cpu_seconds"]
