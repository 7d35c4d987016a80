"""What lockstep costs: replicas in one process beside one training of the same config.

    python -m benchmarks.replicas [--quick] [--json FILE]

A replica's opt step is one of its batches; four replicas that made them at the rate of one training would have ratio 1.
README.md says what is counted.
"""

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.measuring import Row, alternate, rate_of, tell
from palestra import make_trainer

NET = {"name": "mlp", "net_arch": [256, 256], "activation": "tanh"}
WIDE = [f"players.agent.algorithm.body.{head}={json.dumps(NET)}" for head in ("policy", "value")]
# name: the config, its changes, and the opt steps of one piece of work
WORKS: dict[str, tuple[str, list[str], int]] = {
    "PPO, 4096 worlds x 64, nets 256 x 256": (
        "ppo-cartpole-batched",
        ["num_worlds=4096", "players.agent.algorithm.rollout_length=64", *WIDE],
        8,
    ),
    "DQN, batches of 64": ("dqn-cartpole", ["players.agent.algorithm.batch_size=64"], 256),
    "SAC, batches of 256": ("sac-pendulum", [], 64),
}
QUIET = ["evaluations=[]", "best=null", "output.save=null", "output.record=null", "output.display=quiet"]
NUMS = (1, 2, 4)


def rows_of(name: str, folder: Path, min_seconds: float, num_repeats: int) -> Iterator[Row]:
    """The rows of one work: several replicas beside one training."""
    config, changes, num_steps = WORKS[name]
    contenders: dict[str, Callable[[], float]] = {}
    for num in NUMS:
        overrides = [*changes, *QUIET, f"num_replicas={num}", "stop.after=1000000000", "stop.unit=opt_steps"]
        trainer = make_trainer(config, run=folder / f"{name.split(',')[0]}-{num}", overrides=overrides)
        trainer.fit(num_steps, "opt_steps")  # past the warm-up, and what is compiled

        def work(trainer: Any = trainer, num: int = num) -> float:
            before = trainer.opt_steps
            trainer.fit(num_steps, "opt_steps")
            return float(num * (trainer.opt_steps - before))

        contenders["one training" if num == 1 else f"{num} replicas"] = rate_of(work, min_seconds)
    values = alternate(contenders, num_repeats)
    yield from Row.of(name, "opt steps of all replicas", "opt steps/s", 1, values, "one training")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smoke run: its figures mean nothing")
    parser.add_argument("--json", type=Path, help="write every measured value to this file, too")
    arguments = parser.parse_args()
    min_seconds, num_repeats = (0.0, 1) if arguments.quick else (4.0, 5)
    with tempfile.TemporaryDirectory() as folder:
        rows = [row for name in WORKS for row in rows_of(name, Path(folder), min_seconds, num_repeats)]
    tell(rows, arguments.json)


if __name__ == "__main__":
    main()
