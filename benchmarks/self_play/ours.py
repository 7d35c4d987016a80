"""palestra: `python -m benchmarks.self_play.ours WORK`, with "num_worlds", "seed", "num_threads", "timed_seconds".

With "num_past_selves" those of ppo-connect_four play in place of random players, and in half of the worlds so many past
selves, half of them in each role.
"""

import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from benchmarks.measuring import ROOT
from benchmarks.peers.script import Work, answer, versions_of
from palestra import make_trainer
from palestra.config import load_yaml
from palestra.games import make_game
from palestra.games.game import TensorGame
from palestra.kinds.games.seating import Met
from palestra.players import make_script
from palestra.rollouts.fused import FusedGame

ROUNDS_PER_CALL = 50
CONNECT_FOUR = {"name": "connect_four", "num_columns": 7, "num_rows": 6, "num_connected": 4}


def measure(work: Work) -> dict[str, Any]:
    """Play rounds in all worlds, which begin anew as they end; each round is a move in each of them."""
    torch.set_num_threads(work["num_threads"])
    if "num_past_selves" in work:
        with TemporaryDirectory() as place:
            play = player_and_past_selves(Path(place) / "run", work)
            return timed(play, work)
    game = make_game(CONNECT_FOUR | {"observation": {"normalize": None, "clip": None}})
    assert isinstance(game, TensorGame)
    fused_game = FusedGame(game, {role: make_script("random", game, role) for role in game.roles})
    worlds = fused_game.new_worlds(work["num_worlds"], work["seed"], "benchmark")
    return timed(lambda: fused_game.collect(worlds, (), ROUNDS_PER_CALL), work)


def player_and_past_selves(run: Path, work: Work) -> Callable[[], object]:
    """What plays a call's rounds of a training, which is never trained: past selves have its first networks."""
    config = load_yaml(ROOT / "configs" / "ppo-connect_four.yml")
    config |= {"num_worlds": work["num_worlds"], "seed": work["seed"], "evaluations": [], "best": None}
    config["output"] |= {"display": "quiet", "recorders": []}
    if num := work["num_past_selves"]:
        past = {"past_of": "player", "interval": 100, "num_kept": num, "num_seated": num // 2, "explores": True}
        config["players"]["past"] = past | {"choice": {"name": "uniform"}}
        seats = [(0.5, "player", "player"), (0.25, "player", "past"), (0.25, "past", "player")]
        meets = [{"share": share, "pairing": {"first": one, "second": other}} for share, one, other in seats]
        config["players"]["player"]["meets"] = meets
    trainer: Any = make_trainer(config, run=run)
    player, seating = trainer.players["player"], trainer.seating
    if work["num_past_selves"]:
        copy = {"player": player.acting_state(), "game": trainer.game.state_dict()}
        seating.past["past"].kept.update(dict.fromkeys(range(work["num_past_selves"]), copy))
        for number, (block, seated) in enumerate(zip(seating.blocks["player"], seating.seated["player"], strict=True)):
            for role, shares in block.shares.items():
                seated[role] = seating.drawn("player", Met(number, role), len(shares), {})

    def play() -> None:
        seating.seat(trainer.fused_game, "player", player.worlds, 0)
        trainer.fused_game.collect(player.worlds, trainer.game.roles, ROUNDS_PER_CALL)

    return play


def timed(play: Callable[[], object], work: Work) -> dict[str, Any]:
    play()  # warm
    num_moves, begun = 0, time.process_time()
    while (seconds := time.process_time() - begun) < work["timed_seconds"]:
        play()
        num_moves += ROUNDS_PER_CALL * work["num_worlds"]
    return {"moves": num_moves, "cpu_seconds": seconds, "versions": versions_of("palestra", "torch")}


if __name__ == "__main__":
    answer(measure)
