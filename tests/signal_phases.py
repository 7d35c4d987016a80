"""SIGINT, SIGTERM and SIGHUP in every phase of `palestra train` and `palestra resume`, each in a process of its own.

    python tests/signal_phases.py [--all] [--ranks] [PHASE...]

Each child sends itself the signal in that phase; a phase that is "stuck" never comes to a safe point. Whatever was
left is resumed and compared with an uninterrupted run. Prints a JSON object per child. Children are forked, so that
each costs a fraction of a second. With --ranks, two processes train the run, and one of them gets the signal.
"""

import argparse
import copy
import json
import os
import signal
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from conftest import TINY
from resuming import all_checkpoints, assert_same_bits, at_call, fit, stopping_at

import palestra.kinds.games.trainer
import palestra.run.run
from palestra.cli import main
from palestra.evaluation.evaluations import Evaluations
from palestra.games.polyhedra.game import PolyhedraConfig
from palestra.kinds.games.trainer import Trainer
from palestra.run.run_checkpoints import RunCheckpoints
from tests.ranked import Ranked

Stop = Callable[[Callable[..., None]], AbstractContextManager[Any]]

PHASES: dict[str, Stop] = {
    "building": lambda deed: at_call(PolyhedraConfig, "build", 1, deed),
    "before the first epoch": lambda deed: at_call(Trainer, "before_train", 1, deed),
    "first evaluation": lambda deed: at_call(Evaluations, "_play", 1, deed),
    "first save": lambda deed: at_call(palestra.run.run_checkpoints.RunCheckpoints, "save", 1, deed),
    "warm-up": lambda deed: at_call(Trainer, "roll_out_of", 2, deed),
    "roll-out": lambda deed: at_call(Trainer, "roll_out_of", 9, deed),
    "update": lambda deed: at_call(Trainer, "before_step", 11, deed),
    "evaluation": lambda deed: at_call(Evaluations, "_play", 6, deed),
    "save": lambda deed: at_call(os, "fsync", 40, deed),
    "restoring": lambda deed: at_call(RunCheckpoints, "go_back_to", 1, deed),
    "stuck in a roll-out": lambda deed: at_call(Trainer, "roll_out_of", 9, deed),
    "stuck in an update": lambda deed: at_call(Trainer, "before_step", 11, deed),
    "stuck in a save": lambda deed: at_call(os, "fsync", 40, deed),
    "stuck after the last save": lambda deed: at_call(palestra.run.run.Run, "conclude", 1, deed),
    "stuck, and a second signal": lambda deed: at_call(Trainer, "roll_out_of", 9, deed),
}
OF_RANK_0 = {"first evaluation", "first save", "evaluation", "save", "restoring", "stuck in a save"}
OF_RANK_0 |= {"stuck after the last save"}
BOUND_S, LONG_S = 0.3, 600.0
TIMEOUT_S = 5.0  # of a process that waits for one which has ended before it began


def second(number: int) -> int:
    """The second signal that ends a process at once: the same again, but for SIGHUP."""
    return signal.SIGTERM if number == signal.SIGHUP else number


def deed(phase: str, number: int) -> Callable[..., None]:
    def do(*_: Any) -> None:
        os.kill(os.getpid(), number)
        if number == signal.SIGHUP:  # as it often comes
            os.kill(os.getpid(), number)
        while phase.startswith("stuck"):
            time.sleep(0.01)
            if "second" in phase:
                os.kill(os.getpid(), second(number))

    return do


def in_ranks(phase: str, number: int, arguments: list[str], folder: Path) -> list[int]:
    """The exit statuses of two processes of one run: of the one that gets a signal in a phase, and of the other."""
    receiver = 0 if phase in OF_RANK_0 else 1

    def body(rank: int) -> None:
        with PHASES[phase](deed(phase, number)) if rank == receiver else nullcontext():
            main(arguments)

    codes = Ranked(2, body, folder / "said").wait()
    return [codes[receiver], codes[1 - receiver]]


def in_a_child(phase: str, number: int, arguments: list[str]) -> int:
    """The exit status of a palestra that gets a signal in a phase, as a shell tells it."""
    child = os.fork()
    if child == 0:
        try:
            with PHASES[phase](deed(phase, number)):
                main(arguments)
        except SystemExit as left:
            os._exit(left.code if isinstance(left.code, int) else 99)
        finally:
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def try_phase(phase: str, number: int, config: dict[str, Any], folder: Path, uninterrupted: Path) -> dict[str, Any]:
    """One child, or two of one run, and what became of the run."""
    config, run = copy.deepcopy(config), folder / "run"
    config["output"]["stop_within_s"] = BOUND_S if phase.startswith("stuck") and "second" not in phase else LONG_S
    arguments = ["train", str(folder / "run.yml"), "--run", str(run), "--quiet"]
    (folder / "run.yml").write_text(json.dumps(config))
    if phase == "restoring":
        with stopping_at(30):
            fit(run, config)
        arguments = ["resume", str(run), "--quiet"]
    started = time.monotonic()
    if config["num_replicas"] > 1:
        status, other = in_ranks(phase, number, arguments, folder)
    else:
        status, other = in_a_child(phase, number, arguments), None
    seconds = time.monotonic() - started
    num_saved = len(all_checkpoints(run)) if run.exists() else 0
    if (run / "config.yml").exists():
        assert fit(run).finished
        assert_same_bits(run, uninterrupted)
    number = second(number) if "second" in phase else number
    found = {"phase": phase, "signal": number, "status": status, "seconds": seconds, "checkpoints": num_saved}
    return found | ({} if other is None else {"other": other})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("phases", nargs="*", metavar="PHASE", help="[all]")
    parser.add_argument("--all", action="store_true", help="all signals in every phase, not one of them")
    parser.add_argument("--ranks", action="store_true", help="two processes train the run")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # a fork must not inherit a pool of threads
    palestra.run.run.plot_scores = lambda *_: None
    signals, config = [signal.SIGINT, signal.SIGHUP, signal.SIGTERM], copy.deepcopy(TINY)
    if arguments.ranks:
        config |= {"num_replicas": 2, "execution": config["execution"] | {"timeout_s": TIMEOUT_S}}
    with tempfile.TemporaryDirectory(prefix="palestra-signals-") as whole:
        fit(uninterrupted := Path(whole) / "run", config)
        for index, phase in enumerate(arguments.phases or PHASES):
            for number in signals if arguments.all else [signals[index % 3]]:
                with tempfile.TemporaryDirectory(prefix="palestra-signals-") as folder:
                    print(json.dumps(try_phase(phase, number, config, Path(folder), uninterrupted)), flush=True)
