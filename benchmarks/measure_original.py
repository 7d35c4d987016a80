"""How fast is the rewrite (legacy.py) beside the original? They alternate in one run.

    git clone https://github.com/honglu2875/hironaka CHECKOUT
    python -m benchmarks.measure_original CHECKOUT [--quick]

Nothing else needs the original. Packages that its trainer imports but does not use (jax) are not needed either.
"""

import argparse
import importlib
import os
import sys
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import MagicMock

import torch

from benchmarks.legacy import LegacyDQN, LegacyGame, RandomAgent, RandomHost, reduce_boards
from benchmarks.measuring import Row, alternate, in_fresh_process, markdown, peak_growth_mib, rate_of

CPU = torch.device("cpu")
DIMENSION, MAX_NUM_POINTS, MAX_VALUE = 3, 20, 20
MEMORY_BATCH = 16384
REWRITE = "rewrite"


class Original:
    """The original's modules, imported from a checkout."""

    def __init__(self, checkout: Path) -> None:
        self.checkout = checkout
        if find_spec("jax") is None:
            sys.modules |= {name: MagicMock() for name in ("jax", "jax.numpy", "jaxlib", "chex")}
        sys.path.insert(0, str(checkout))
        self.core: Any = importlib.import_module("hironaka.core")
        self.trainer: Any = importlib.import_module("hironaka.trainer")
        self.fused_game: Any = importlib.import_module("hironaka.trainer.fused_game")
        self.modules: Any = importlib.import_module("hironaka.trainer.player_modules")

    def boards(self, num_games: int) -> Any:
        """Random boards, not yet reduced."""
        shape = (num_games, MAX_NUM_POINTS, DIMENSION)
        return self.core.TensorPoints(torch.randint(MAX_VALUE + 1, shape, dtype=torch.float32))

    def play(self, num_games: int) -> Callable[[], float]:
        """A call that plays new games until all have ended, random against random, and gives the env steps of games
        that had not."""
        host = self.modules.RandomHostModule(DIMENSION, MAX_NUM_POINTS, CPU)
        agent = self.modules.RandomAgentModule(DIMENSION, MAX_NUM_POINTS, CPU)
        game = self.fused_game.FusedGame(host, agent, log_time=False)

        @torch.inference_mode()
        def play() -> float:
            points, num_steps = self.boards(num_games).get_newton_polytope().rescale(), 0
            while not points.ended:
                num_steps += int((~points.ended_batch_in_tensor).sum())
                chosen, _ = game.host_move(points)
                game.agent_move(points, chosen)
            return float(num_steps)

        return play

    def train(self, num_steps: int, as_shipped: bool) -> Callable[[], float]:
        """A call that makes train steps with the original's test config; as shipped it logs to TensorBoard and times
        itself."""
        config = self.trainer.DQNTrainer.load_yaml(str(self.checkout / "test" / "dqn_config_test.yml"))
        if not as_shipped:
            config |= {"use_tensorboard": False, "log_time": False}
        trainer = self.trainer.DQNTrainer(config)

        def train() -> float:
            trainer.train(num_steps)
            return float(num_steps)

        return train


def memory_mib(which: str, checkout: str) -> float:
    """Peak memory of one reduction in place. which: original or rewrite."""
    torch.set_num_threads(1)
    points = Original(Path(checkout)).boards(MEMORY_BATCH)
    if which == "original":
        return peak_growth_mib(points.get_newton_polytope)
    return peak_growth_mib(lambda: reduce_boards(points.points))


def speed_rows(original: Original, num_threads: int, quick: bool) -> list[Row]:
    """Random play, and train steps."""
    torch.set_num_threads(num_threads)
    seconds, num_repeats, batches = (0.0, 1, (1, 64)) if quick else (0.5, 3, (1, 64, 1024, 16384))
    num_steps = 2 if quick else 20
    rows = []
    for batch in batches:
        game = LegacyGame(RandomHost(), RandomAgent(), CPU)
        contenders = {
            "original": rate_of(original.play(batch), seconds),
            REWRITE: rate_of(partial(game.play, batch), seconds),
        }
        values = alternate(contenders, num_repeats)
        rows += Row.of("H1", f"random play, batch {batch}", "env steps/s", num_threads, values, "original")

    legacy = LegacyDQN(CPU)

    def train_rewrite() -> float:
        legacy.train(num_steps)
        return float(num_steps)

    contenders = {
        "original": rate_of(original.train(num_steps, as_shipped=False), seconds),
        "original, logging as shipped": rate_of(original.train(num_steps, as_shipped=True), seconds),
        REWRITE: rate_of(train_rewrite, seconds),
    }
    for measure in contenders.values():
        measure()
    values = alternate(contenders, num_repeats)
    for baseline in ("original", "original, logging as shipped"):
        pair = {name: values[name] for name in (baseline, REWRITE)}
        rows += Row.of("H4", "DQN, its test config", "train steps/s", num_threads, pair, baseline)
    return rows


def memory_rows(original: Original) -> list[Row]:
    values = {
        name: [in_fresh_process("benchmarks.measure_original", "memory_mib", name, str(original.checkout))]
        for name in ("original", REWRITE)
    }
    return Row.of("H3", f"memory of one reduction, batch {MEMORY_BATCH}", "MiB", 1, values, "original")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, help="a checkout of github.com/honglu2875/hironaka")
    parser.add_argument("--quick", action="store_true", help="a smoke run: its figures mean nothing")
    arguments = parser.parse_args()
    original = Original(arguments.checkout.resolve())
    with TemporaryDirectory() as folder:
        os.chdir(folder)  # the original writes TensorBoard files where it runs
        rows = [row for num_threads in (1, 2) for row in speed_rows(original, num_threads, arguments.quick)]
        rows += memory_rows(original)
    print(markdown(sorted(rows, key=lambda row: row.row)))


if __name__ == "__main__":
    main()
