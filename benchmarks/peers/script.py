"""What the scripts of all libraries share. Standard library alone: each runs in an interpreter of its own."""

import json
import os
import sys
import time
from collections.abc import Callable, Collection
from importlib.metadata import version
from statistics import fmean
from typing import Any

Work = dict[str, Any]


def answer(measure: Callable[[Work], dict[str, Any]]) -> None:
    """Do the work that stands as JSON in the first argument, and print what came of it as one line of JSON.

    Whatever the library prints goes to stderr, so that the line is alone on stdout.
    """
    work = json.loads(sys.argv[1])
    with os.fdopen(os.dup(1), "w") as stdout:
        os.dup2(2, 1)
        result = measure(work)
        print(json.dumps(result), file=stdout)


def versions_of(*packages: str) -> dict[str, str]:
    """The installed versions of packages, and Python's."""
    return {"python": sys.version.split()[0]} | {package: version(package) for package in packages}


def keep_to_cores(num: int) -> None:
    """Let this process run on `num` cores alone: for libraries that take no number of threads."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:num])


class Done(Exception):
    """Raised where a library has no way to be told that enough has been trained."""


class Stopwatch:
    """Tells when a training has been measured, and what came of it.

    Without "solved_at" in the work, env steps per second are measured: from the first mark after `warmup_env_steps` and
    the first opt step to the first one `timed_seconds` later. With it, the seconds from the start of the process until
    the mean return of the last 100 episodes of training reaches it. start-up: the seconds from the start of the
    process to the first opt step.
    """

    def __init__(self, work: Work) -> None:
        self.launched: float = work["launched"]  # time.time() of whoever started this process
        self.warmup_env_steps: int = work["warmup_env_steps"]
        self.timed_seconds: float = work["timed_seconds"]
        self.solved_at: float | None = work["solved_at"]
        self.startup_seconds = float("nan")
        self.opt_steps = 0
        self.begun: tuple[float, int, int] | None = None  # time, env steps, opt steps
        self.ended: tuple[float, int, int] | None = None

    def opt_step(self) -> None:
        """Tell of an opt step done."""
        self.opt_steps += 1
        if self.opt_steps == 1:
            self.startup_seconds = time.time() - self.launched

    def mark(self, env_steps: int, returns: Collection[float]) -> bool:
        """Look at the watch between an update and the next roll-out; True once all has been measured.

        returns: of the last 100 episodes of training, where the work is to be solved.
        """
        now = (time.time(), env_steps, self.opt_steps)
        if self.solved_at is not None:
            self.begun = (self.launched, 0, 0)
            if len(returns) == 100 and fmean(returns) >= self.solved_at:
                self.ended = now
        elif self.begun is None:
            if env_steps >= self.warmup_env_steps and self.opt_steps:
                self.begun = now
        elif now[0] >= self.begun[0] + self.timed_seconds:
            self.ended = now
        return self.ended is not None

    def result(self) -> dict[str, Any]:
        assert self.begun is not None, "the training ended before its warm-up did"
        assert self.ended is not None, "the training ended before all was measured"
        seconds, env_steps, opt_steps = (b - a for a, b in zip(self.begun, self.ended, strict=True))
        return {
            "env_steps": env_steps,
            "opt_steps": opt_steps,
            "seconds": seconds,
            "startup_seconds": self.startup_seconds,
        }


def time_batches(draw: Callable[[], object], timed_seconds: float) -> dict[str, Any]:
    """Seconds that drawing batches takes; a batch is called an opt step, for one needs one."""
    for _ in range(50):
        draw()
    num, started = 0, time.perf_counter()
    while (seconds := time.perf_counter() - started) < timed_seconds:
        for _ in range(20):
            draw()
        num += 20
    return {"env_steps": 0, "opt_steps": num, "seconds": seconds, "startup_seconds": None}


def count_torch_opt_steps(tell: Callable[[], object]) -> None:
    """Call `tell` at every step of the torch optimizer that steps first (of SAC's three, one counts)."""
    from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

    counted: list[Optimizer] = []

    def count(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not counted:
            counted.append(optimizer)
        if optimizer is counted[0]:
            tell()

    register_optimizer_step_post_hook(count)
