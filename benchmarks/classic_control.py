"""Classic control beside Gymnasium's: random steps of many worlds, one run, one table.

    python -m benchmarks.classic_control [--quick] [--json FILE]

README.md says what is counted, and how.
"""

import argparse
from collections.abc import Callable
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import VectorEnv

from benchmarks.measuring import Row, alternate, rate_of, tell
from palestra.games.classic_control import AcrobotConfig, CartPoleConfig, MountainCarConfig, PendulumConfig
from palestra.games.classic_control.bodies import ClassicControlConfig
from palestra.games.game import Kernel, TensorGame
from palestra.games.normalization import UNCHANGED
from palestra.games.spaces import Box
from palestra.games.world import TensorWorld
from palestra.randomness import base_key, fold, random_floats, random_integers, world_keys

SYNC, BATCHED, OURS, PLAIN = "gymnasium, sync", "gymnasium, batched", "palestra, numba", "palestra, torch"
NUM_ACTIONS = 20  # drawn before, then played round and round
ENV_STEPS_PER_CALL = 10_000
CPU = torch.device("cpu")

# with Gymnasium's own settings
GAMES: dict[str, ClassicControlConfig] = {
    "CartPole-v1": CartPoleConfig(
        name="cartpole",
        max_rounds=500,
        initial_low=-0.05,
        initial_high=0.05,
        sutton_barto_reward=False,
        observation=UNCHANGED,
    ),
    "Pendulum-v1": PendulumConfig(
        name="pendulum", max_rounds=200, g=10.0, initial_angle=np.pi, initial_speed=1.0, observation=UNCHANGED
    ),
    "Acrobot-v1": AcrobotConfig(
        name="acrobot", max_rounds=500, initial_low=-0.1, initial_high=0.1, observation=UNCHANGED
    ),
    "MountainCar-v0": MountainCarConfig(
        name="mountain_car", max_rounds=200, initial_low=-0.6, initial_high=-0.4, goal_speed=0.0, observation=UNCHANGED
    ),
}


def rows_of(name: str, batch: int, min_seconds: float, num_repeats: int) -> list[Row]:
    """Env steps per second of one game at one batch size."""
    works = {SYNC: gymnasium_steps(name, "sync", batch)}
    if name == "CartPole-v1":  # the only one of which Gymnasium has arrays
        works[BATCHED] = gymnasium_steps(name, "vector_entry_point", batch)
    works |= {OURS: our_steps(GAMES[name], batch, "numba"), PLAIN: our_steps(GAMES[name], batch, "torch")}
    for play in works.values():
        for _ in range(3):
            play()
    values = alternate({who: rate_of(work, min_seconds) for who, work in works.items()}, num_repeats)
    work = f"{batch} worlds"
    rows = Row.of(name, work, "env steps/s", 1, values, SYNC)
    if BATCHED in values:
        rows += Row.of(name, work, "env steps/s", 1, {who: values[who] for who in (BATCHED, OURS)}, BATCHED)
    return rows


def gymnasium_steps(name: str, mode: str, batch: int) -> Callable[[], float]:
    envs: VectorEnv[Any, Any, Any] = gymnasium.make_vec(name, batch, vectorization_mode=mode)
    envs.reset(seed=0)
    envs.action_space.seed(0)
    actions = [envs.action_space.sample() for _ in range(NUM_ACTIONS)]
    return calls(envs.step, [(action,) for action in actions], batch)


def our_steps(config: ClassicControlConfig, batch: int, kernel: Kernel) -> Callable[[], float]:
    game = config.build(CPU, kernel)
    assert isinstance(game, TensorGame)
    keys = world_keys(base_key(0, "play"), batch, CPU)
    world, space = TensorWorld(game, keys), game.action_spaces["agent"]
    step_keys = [fold(keys, t) for t in range(NUM_ACTIONS)]
    if isinstance(space, Box):
        actions = [random_floats(key, 1) * (space.high[0] - space.low[0]) + space.low[0] for key in step_keys]
    else:
        actions = [random_integers(key, 1, space.num_flags).squeeze(1) for key in step_keys]
    return calls(world.step, list(zip(actions, step_keys, strict=True)), batch)


def calls(step: Callable[..., object], arguments: list[tuple[Any, ...]], batch: int) -> Callable[[], float]:
    """A call that steps on, with one of the arguments after the other, and gives the number of env steps."""
    coming, num_steps = cycle(arguments), max(1, ENV_STEPS_PER_CALL // batch)

    def work() -> float:
        for given in islice(coming, num_steps):
            step(*given)
        return batch * num_steps

    return work


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smoke run: its figures mean nothing")
    parser.add_argument("--json", type=Path, help="write every measured value to this file, too")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    batches, min_seconds, num_repeats = ((8,), 0.0, 1) if arguments.quick else ((8, 1024, 16384), 0.2, 3)
    rows = [row for name in GAMES for batch in batches for row in rows_of(name, batch, min_seconds, num_repeats)]
    tell(rows, arguments.json)


if __name__ == "__main__":
    main()
