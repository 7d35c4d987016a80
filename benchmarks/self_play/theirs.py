"""PettingZoo and OpenSpiel: `python -m benchmarks.self_play.theirs WORK`, with "library", "seed", "timed_seconds"."""

import random
import time
from collections.abc import Callable
from typing import Any

from benchmarks.peers.script import Work, answer, versions_of


def pettingzoo_game() -> tuple[Callable[[], int], str]:
    """A call that plays a game and returns the number of its moves, and the name of the package."""
    from pettingzoo.classic import connect_four_v3

    env = connect_four_v3.env()

    def play() -> int:
        env.reset()
        num_moves = 0
        while True:
            observation, _, terminated, truncated, _ = env.last()
            if terminated or truncated:
                return num_moves
            env.step(random.choice(observation["action_mask"].nonzero()[0]))
            num_moves += 1

    return play, "pettingzoo"


def openspiel_game() -> tuple[Callable[[], int], str]:
    """As `pettingzoo_game`, with OpenSpiel's rules in C++, which Python calls move by move."""
    import pyspiel

    game = pyspiel.load_game("connect_four")

    def play() -> int:
        state = game.new_initial_state()
        num_moves = 0
        while not state.is_terminal():
            state.apply_action(random.choice(state.legal_actions()))
            num_moves += 1
        state.returns()
        return num_moves

    return play, "open_spiel"


def measure(work: Work) -> dict[str, Any]:
    random.seed(work["seed"])
    play, package = {"PettingZoo": pettingzoo_game, "OpenSpiel": openspiel_game}[work["library"]]()
    play()  # warm
    num_moves, begun = 0, time.process_time()
    while (seconds := time.process_time() - begun) < work["timed_seconds"]:
        num_moves += play()
    return {"moves": num_moves, "cpu_seconds": seconds, "versions": versions_of(package)}


if __name__ == "__main__":
    answer(measure)
