"""palestra: `python -m benchmarks.self_play.ours WORK`, with "num_worlds", "seed", "num_threads", "timed_seconds"."""

import time
from typing import Any

import torch

from benchmarks.peers.script import Work, answer, versions_of
from palestra.games import make_game
from palestra.games.game import TensorGame
from palestra.players import make_script
from palestra.rollouts.fused import FusedGame

ROUNDS_PER_CALL = 50
CONNECT_FOUR = {"name": "connect_four", "num_columns": 7, "num_rows": 6, "num_connected": 4}


def measure(work: Work) -> dict[str, Any]:
    """Play rounds in all worlds, which begin anew as they end; each round is a move in each of them."""
    torch.set_num_threads(work["num_threads"])
    game = make_game(CONNECT_FOUR | {"observation": {"normalize": None, "clip": None}})
    assert isinstance(game, TensorGame)
    fused_game = FusedGame(game, {role: make_script("random", game, role) for role in game.roles})
    worlds = fused_game.new_worlds(work["num_worlds"], work["seed"], "benchmark")
    fused_game.collect(worlds, (), ROUNDS_PER_CALL)  # warm
    num_moves, begun = 0, time.process_time()
    while (seconds := time.process_time() - begun) < work["timed_seconds"]:
        fused_game.collect(worlds, (), ROUNDS_PER_CALL)
        num_moves += ROUNDS_PER_CALL * work["num_worlds"]
    return {"moves": num_moves, "cpu_seconds": seconds, "versions": versions_of("palestra", "torch")}


if __name__ == "__main__":
    answer(measure)
