"""The polyhedra game and DQN on it, beside a rewrite of hironaka.trainer: one run, one table.

    python -m benchmarks.polyhedra [--rows H1,O1] [--quick] [--device cuda] [--json FILE]

Rows: H1, H2 random play; H3 memory of a reduction; H4 DQN train steps; O1 what the trainer costs beside a bare loop.
README.md says what is counted, and how.
"""

import argparse
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, cast

import torch
from rich.console import Console

from benchmarks.legacy import LegacyDQN, LegacyGame, RandomAgent, RandomHost, reduce_boards
from benchmarks.measuring import ROOT, Row, alternate, in_fresh_process, peak_growth_mib, rate_of, tell
from palestra import Callback, RunConfig, Trainer, load_config
from palestra.algorithms.dqn import DQN
from palestra.config import load_yaml
from palestra.games.game import Kernel, TensorGame
from palestra.games.polyhedra.newton import Reduction, reduce_points
from palestra.kinds.games.parts import build_parts
from palestra.players import make_script
from palestra.players.player import Metrics, Player
from palestra.rollouts.fused import FusedGame
from palestra.rollouts.transitions import join_roles
from palestra.run.kinds import read_config
from palestra.runtime.threads import limited_threads

CONFIG = ROOT / "configs" / "dqn-polyhedra.yml"
LEGACY = "rewrite"
MEMORY_BATCH = 16384
ROUNDS_PER_CALL = 5


class Steps(NamedTuple):
    """Opt steps of one training: the first ones are not timed."""

    skipped: int
    timed: int


@dataclass(frozen=True)
class Size:
    """How much is measured. min_seconds: of one rate."""

    num_threads: tuple[int, ...]
    batches: tuple[int, ...]
    min_seconds: float
    dqn_steps: Steps
    overhead_steps: Steps
    num_repeats: int
    num_overhead_repeats: int
    with_compiled: bool


FULL = Size((1, 2), (1, 64, 1024, 16384), 0.5, Steps(400, 2000), Steps(100, 400), 3, 9, with_compiled=True)
QUICK = Size((1,), (64,), 0.0, Steps(4, 8), Steps(2, 2), 1, 1, with_compiled=False)


# ---- H1, H2: random play -------------------------------------------------------------------------------


def play_rows(size: Size, device: torch.device, num_threads: int) -> list[Row]:
    """Live env steps per second, random host against random agent."""
    kernels: tuple[Kernel, ...] = ("numba", "torch") if device.type == "cpu" else ("torch",)
    contenders = (LEGACY, *(f"{reduction}, {kernel}" for reduction in ("minimal", "vertices") for kernel in kernels))
    rows = []
    for batch in size.batches:

        def rate(contender: str, batch: int = batch) -> float:
            # An earlier batch would leave memory behind, with which the rewrite is several times as fast.
            arguments = (contender, str(batch), str(device), str(num_threads), str(size.min_seconds))
            return in_fresh_process("benchmarks.polyhedra", "play_rate", *arguments)

        values = alternate({name: partial(rate, name) for name in contenders}, size.num_repeats)
        for row, reduction in (("H1", "minimal"), ("H2", "vertices")):
            ours = {f"palestra, {k}": values[f"{reduction}, {k}"] for k in kernels}
            work = f"random play, {reduction}, batch {batch}"
            rows += Row.of(row, work, "env steps/s", num_threads, {LEGACY: values[LEGACY]} | ours, LEGACY)
    return rows


def play_rate(contender: str, batch: str, device: str, num_threads: str, min_seconds: str) -> float:
    """Env steps per second. contender: the rewrite, or 'REDUCTION, KERNEL'."""
    torch.set_num_threads(int(num_threads))
    if contender == LEGACY:
        work = legacy_play(int(batch), torch.device(device))
    else:
        reduction, kernel = contender.split(", ")
        work = random_play(cast(Reduction, reduction), cast(Kernel, kernel), int(batch), torch.device(device))
    measure = rate_of(work, float(min_seconds))
    measure()  # warm
    return measure()


def legacy_play(num_games: int, device: torch.device) -> Callable[[], float]:
    """A call that plays new games until all have ended and gives the env steps of games that had not."""
    game = LegacyGame(RandomHost(), RandomAgent(), device)
    game.play(1)
    return partial(game.play, num_games)


def random_play(reduction: Reduction, kernel: Kernel, num_worlds: int, device: torch.device) -> Callable[[], float]:
    """A call that plays some rounds and gives their live env steps; worlds are refilled as they end. Warmed up."""
    game = load_config(CONFIG, (f"game.reduction={reduction}",)).game.build(device, kernel)
    assert isinstance(game, TensorGame)
    fused_game = FusedGame(game, {role: make_script("random", game) for role in game.roles})
    worlds = fused_game.new_worlds(num_worlds, 0, "benchmark")

    def play() -> float:
        before = worlds.lengths.sum()
        fused_game.collect(worlds, (), ROUNDS_PER_CALL)
        finished = fused_game.take_totals(worlds)["length"]  # waits for the device
        return finished + float(worlds.lengths.sum() - before)

    play()
    return play


# ---- H3: memory ----------------------------------------------------------------------------------------


def memory_rows(num_threads: int) -> list[Row]:
    """Peak memory of one reduction, each in a process of its own."""
    names = {LEGACY: "legacy", "palestra, minimal": "minimal", "palestra, vertices": "vertices"}
    values = {
        name: [in_fresh_process("benchmarks.polyhedra", "reduction_memory_mib", which, str(num_threads))]
        for name, which in names.items()
    }
    return Row.of("H3", f"memory of one reduction, batch {MEMORY_BATCH}", "MiB", num_threads, values, LEGACY)


def reduction_memory_mib(which: str, num_threads: str) -> float:
    """which: legacy, or one of palestra's reductions. The boards themselves are not counted, a result beside them
    is."""
    torch.set_num_threads(int(num_threads))
    generator = torch.Generator().manual_seed(0)
    boards = torch.randint(21, (MEMORY_BATCH, 20, 3), generator=generator)
    if which == "legacy":
        points = boards.to(torch.float32)
        reduce_boards(points[:8].clone())
        return peak_growth_mib(lambda: reduce_boards(points))
    reduction: Reduction = "minimal" if which == "minimal" else "vertices"
    points = boards.to(torch.float64)
    reduce_points(points[:8], reduction, "numba")
    return peak_growth_mib(lambda: reduce_points(points, reduction, "numba"))


# ---- H4: DQN -------------------------------------------------------------------------------------------


def dqn_rows(size: Size, device: torch.device, num_threads: int) -> list[Row]:
    """Train steps per second: an opt step of the host, one of the agent, and the roll-outs that belong to them."""
    legacy = LegacyDQN(device)
    legacy.train(size.dqn_steps.skipped // 2)

    def train_legacy() -> float:
        legacy.train(10)
        return 10.0

    def train_palestra(num_worlds: int, rollout_length: int, compiled: bool) -> Callable[[], float]:
        config = original_test_config(size.dqn_steps, num_worlds, rollout_length, device, num_threads, compiled)
        # An opt step of each player makes one train step.
        return lambda: train(config, size.dqn_steps).opt_steps_per_s / 2

    contenders = {
        LEGACY: rate_of(train_legacy, size.min_seconds),
        "palestra": train_palestra(20, 1, compiled=False),
        "palestra, 2 worlds x 10 rounds": train_palestra(2, 10, compiled=False),
    }
    if size.with_compiled:
        contenders["palestra, compiled"] = train_palestra(20, 1, compiled=True)
    values = alternate(contenders, size.num_repeats)
    return Row.of("H4", "DQN, the original's test config", "train steps/s", num_threads, values, LEGACY)


def original_test_config(
    steps: Steps, num_worlds: int, rollout_length: int, device: torch.device, num_threads: int, compiled: bool
) -> RunConfig:
    """The original's test/dqn_config_test.yml in our words; records as shipped, nothing shown, nothing saved."""
    algorithm = {
        "name": "dqn",
        "gamma": 0.99,
        "double": False,
        "dueling": False,
        "value": {"name": "expected", "huber_delta": 1.0},
        "transitions": {"name": "one_step"},
        "rollout_length": rollout_length,
        "updates_per_turn": 2,
        "warmup_env_steps": 40,
        "batch_size": 2,
        "target": {"name": "polyak", "tau": 1.0, "interval": 2},
        "max_grad_norm": 10.0,
        "net": {
            "name": "mlp",
            "net_arch": [16, "b", {"repeat": 2, "net_arch": [32, "b"]}, 16, "b"],
            "activation": "relu",
        },
        "optimizer": {"name": "adam", "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0},
        "learning_rate": {"name": "exponential", "initial": 1e-3, "final": 1e-8, "rate": 0.996},
        "exploration": {
            "name": "epsilon_greedy",
            "epsilon": {"name": "exponential", "initial": 0.5, "final": 0.2, "rate": 0.996},
        },
        "replay_buffer": {"name": "uniform", "capacity": 100, "layout": "whole", "scratch_folder": None},
    }
    config = _bare_run(steps, device, num_threads)
    config["game"]["max_rounds"] = 10
    config["num_worlds"] = num_worlds
    learner = {"algorithm": algorithm, "warm_start": None, "updates": {"name": "constant"}, "meets": None}
    config["players"] = {"host": learner, "agent": learner}
    config["execution"]["compile"] = compiled
    config["output"]["display"] = "quiet"
    return read_config(config)


def _bare_run(steps: Steps, device: torch.device, num_threads: int) -> dict[str, Any]:
    """The shipped config without evaluations and checkpoints."""
    config = load_yaml(CONFIG)
    config["stop"] = {"after": sum(steps), "unit": "opt_steps"}
    config |= {"evaluations": [], "best": None}
    config["output"]["save"] = None
    kernel = "numba" if device.type == "cpu" else "torch"
    config["execution"] |= {"device": str(device), "num_threads": num_threads, "kernel": kernel}
    return config


# ---- O1: the trainer beside a bare loop -----------------------------------------------------------------


def overhead_rows(size: Size, num_threads: int) -> list[Row]:
    """Opt steps per second of the shipped config: the trainer, plain display and JSONL on, beside a bare loop."""
    steps = size.overhead_steps
    config = overhead_config(steps, num_threads)
    contenders = {
        "bare loop": lambda: bare_rate(config, steps, num_threads),
        "palestra's trainer": lambda: train(config, steps).opt_steps_per_s,
    }
    values = alternate(contenders, size.num_overhead_repeats)
    return Row.of("O1", f"DQN, {CONFIG.name}", "opt steps/s", num_threads, values, "bare loop")


def bare_rate(config: RunConfig, steps: Steps, num_threads: int) -> float:
    with limited_threads(num_threads):  # as a trainer is
        return train_bare(config, steps).opt_steps_per_s


def overhead_config(steps: Steps, num_threads: int) -> RunConfig:
    """The shipped sizes, a short warm-up."""
    config = _bare_run(steps, torch.device("cpu"), num_threads)
    for player in config["players"].values():
        player["algorithm"]["warmup_env_steps"] = 2 * config["num_worlds"]
    config["output"] |= {"display": "plain", "recorders": []}
    return read_config(config)


@dataclass(frozen=True)
class Training:
    """What came of a training: its speed, and the players."""

    opt_steps_per_s: float
    players: dict[str, Player]


class Stopwatch(Callback):
    """Seconds of training after the first opt steps, so that start-up and compiling do not count."""

    def __init__(self, skipped_opt_steps: int) -> None:
        self.skipped_opt_steps = skipped_opt_steps
        self.started = self.seconds = 0.0

    def after_step(self, trainer: Any, player: Player, metrics: Metrics) -> None:
        if trainer.opt_steps == self.skipped_opt_steps:
            self.started = time.perf_counter()

    def after_train(self, trainer: Any) -> None:
        self.seconds = time.perf_counter() - self.started


def train(config: RunConfig, steps: Steps) -> Training:
    """A whole run of the trainer, in a folder that is thrown away, its display written to nowhere."""
    stopwatch = Stopwatch(steps.skipped)
    with TemporaryDirectory() as folder, open(os.devnull, "w") as nowhere:
        trainer = Trainer(config, run=Path(folder) / "run", callbacks=[stopwatch], console=Console(file=nowhere))
        trainer.fit()
    return Training((trainer.opt_steps - steps.skipped) / stopwatch.seconds, trainer.players)


def train_bare(config: RunConfig, steps: Steps) -> Training:
    """The same players, games and opt steps in the same order, and nothing else. Players must all learn by DQN."""
    device = torch.device(config.execution.device)
    parts = build_parts(config, device, None)
    game, players = parts.game, parts.players
    assert isinstance(game, TensorGame)
    fused_game = FusedGame(game, {})
    worlds = {n: fused_game.new_worlds(config.worlds_of(n), config.seed, f"player/{n}/play") for n in players}
    num_opt_steps, started = 0, 0.0
    while num_opt_steps < config.stop.after:
        for name, player in players.items():
            dqn, buffer = player.algorithm, player.replay_buffer
            assert isinstance(dqn, DQN)
            assert buffer is not None
            assert dqn.config.rollout_length is not None
            fused_game.policies = {p.roles[0]: p.policy(explore=True) for p in players.values()}
            by_role = fused_game.collect(worlds[name], player.roles, dqn.config.rollout_length)
            transitions = join_roles(by_role, player.moves, player.num_worlds)
            buffer.add(transitions.rows(), transitions.valid)
            player.env_steps += player.num_worlds * dqn.config.rollout_length
            if player.env_steps < dqn.config.warmup_env_steps:
                continue
            for _ in range(dqn.config.updates_per_turn):
                dqn.opt_step(buffer.sample(dqn.config.batch_size))
                player.opt_steps += 1
                num_opt_steps += 1
                if num_opt_steps == steps.skipped:
                    started = time.perf_counter()
    seconds = time.perf_counter() - started
    return Training((num_opt_steps - steps.skipped) / seconds, players)


# ---- the table -----------------------------------------------------------------------------------------


def rows_of(names: set[str], size: Size, device: torch.device, num_threads: int) -> list[Row]:
    torch.set_num_threads(num_threads)
    rows: list[Row] = []
    if names & {"H1", "H2"}:
        rows += [row for row in play_rows(size, device, num_threads) if row.row in names]
    if "H3" in names and device.type == "cpu":
        rows += memory_rows(num_threads)
    if "H4" in names:
        rows += dqn_rows(size, device, num_threads)
    if "O1" in names and device.type == "cpu":
        rows += overhead_rows(size, num_threads)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="H1,H2,H3,H4,O1", help="some of them alone")
    parser.add_argument("--quick", action="store_true", help="a smoke run: its figures mean nothing")
    parser.add_argument("--device", default="cpu", help="cpu, or cuda for H1, H2 and H4 there")
    parser.add_argument("--json", type=Path, help="write every measured value to this file, too")
    arguments = parser.parse_args()
    size, device = QUICK if arguments.quick else FULL, torch.device(arguments.device)
    threads = size.num_threads if device.type == "cpu" else (1,)
    names = set(arguments.rows.split(","))
    rows = sorted((row for n in threads for row in rows_of(names, size, device, n)), key=lambda row: row.row)
    tell(rows, arguments.json)


if __name__ == "__main__":
    main()
