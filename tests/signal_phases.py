"""SIGINT and SIGTERM in every phase of `palestra train` and `palestra resume`, each in a process of its own.

    python tests/signal_phases.py [--both]

Each child sends itself the signal in that phase; a phase that is "stuck" never comes to a safe point. Whatever was
left is resumed and compared with an uninterrupted run. Prints a JSON object per child. Children are forked, so that
each costs a fraction of a second.
"""

import argparse
import copy
import json
import os
import signal
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from conftest import TINY
from resuming import all_checkpoints, assert_same_bits, at_call, fit, stopping_at

import palestra.runs.run
import palestra.training.trainer
from palestra.cli import main
from palestra.evaluation.evaluations import Evaluations
from palestra.games.polyhedra.game import PolyhedraConfig
from palestra.runs.run_checkpoints import RunCheckpoints
from palestra.training.trainer import Trainer

Stop = Callable[[Callable[..., None]], AbstractContextManager[Any]]

PHASES: dict[str, Stop] = {
    "building": lambda deed: at_call(PolyhedraConfig, "build", 1, deed),
    "before the first epoch": lambda deed: at_call(Trainer, "before_train", 1, deed),
    "first evaluation": lambda deed: at_call(Evaluations, "_play", 1, deed),
    "first save": lambda deed: at_call(palestra.runs.run_checkpoints.RunCheckpoints, "save", 1, deed),
    "warm-up": lambda deed: at_call(Trainer, "_roll_out", 2, deed),
    "roll-out": lambda deed: at_call(Trainer, "_roll_out", 9, deed),
    "update": lambda deed: at_call(Trainer, "before_step", 11, deed),
    "evaluation": lambda deed: at_call(Evaluations, "_play", 6, deed),
    "save": lambda deed: at_call(os, "fsync", 40, deed),
    "restoring": lambda deed: at_call(RunCheckpoints, "go_back_to", 1, deed),
    "stuck in a roll-out": lambda deed: at_call(Trainer, "_roll_out", 9, deed),
    "stuck in an update": lambda deed: at_call(Trainer, "before_step", 11, deed),
    "stuck in a save": lambda deed: at_call(os, "fsync", 40, deed),
    "stuck after the last save": lambda deed: at_call(palestra.runs.run.Run, "conclude", 1, deed),
    "stuck, and a second signal": lambda deed: at_call(Trainer, "_roll_out", 9, deed),
}
BOUND_S, LONG_S = 0.3, 600.0


def deed(phase: str, number: int) -> Callable[..., None]:
    def do(*_: Any) -> None:
        os.kill(os.getpid(), number)
        while phase.startswith("stuck"):
            time.sleep(0.01)
            if "second" in phase:
                os.kill(os.getpid(), number)

    return do


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


def try_phase(phase: str, number: int, folder: Path, uninterrupted: Path) -> dict[str, Any]:
    """One child, and what became of its run."""
    config, run = copy.deepcopy(TINY), folder / "run"
    config["output"]["stop_within_s"] = BOUND_S if phase.startswith("stuck") and "second" not in phase else LONG_S
    arguments = ["train", str(folder / "run.yml"), "--run", str(run), "--quiet"]
    (folder / "run.yml").write_text(json.dumps(config))
    if phase == "restoring":
        with stopping_at(30):
            fit(run, config)
        arguments = ["resume", str(run), "--quiet"]
    started = time.monotonic()
    status = in_a_child(phase, number, arguments)
    seconds = time.monotonic() - started
    num_saved = len(all_checkpoints(run)) if run.exists() else 0
    if (run / "config.yml").exists():
        assert fit(run).finished
        assert_same_bits(run, uninterrupted)
    return {"phase": phase, "signal": number, "status": status, "seconds": seconds, "checkpoints": num_saved}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--both", action="store_true", help="both signals in every phase, not one or the other")
    both = parser.parse_args().both
    torch.set_num_threads(1)  # a fork must not inherit a pool of threads
    palestra.runs.run.plot_scores = lambda *_: None
    signals = [signal.SIGINT, signal.SIGTERM]
    with tempfile.TemporaryDirectory(prefix="palestra-signals-") as whole:
        fit(uninterrupted := Path(whole) / "run", copy.deepcopy(TINY))
        for index, phase in enumerate(PHASES):
            for number in signals if both else [signals[index % 2]]:
                with tempfile.TemporaryDirectory(prefix="palestra-signals-") as folder:
                    print(json.dumps(try_phase(phase, number, Path(folder), uninterrupted)), flush=True)
