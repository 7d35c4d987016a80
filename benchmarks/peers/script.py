"""What the scripts of all libraries share. Standard library alone: each runs in an interpreter of its own."""

import json
import os
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
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


class Stopwatch:
    """Env steps per second between two marks, and the seconds from the start of the process to the first opt step.

    Times start at the first mark that finds `warmup_env_steps` done, and end at the first one that finds
    `timed_env_steps` more.
    """

    def __init__(self, work: Work) -> None:
        self.launched: float = work["launched"]  # time.time() of whoever started this process
        self.warmup, self.timed = work["warmup_env_steps"], work["timed_env_steps"]
        self.startup_seconds = float("nan")
        self.opt_steps = 0
        self.begun: tuple[float, int, int] | None = None  # time, env steps, opt steps
        self.ended: tuple[float, int, int] | None = None

    @property
    def total_env_steps(self) -> int:
        return self.warmup + self.timed

    def opt_step(self) -> None:
        """Tell of an opt step done."""
        self.opt_steps += 1
        if self.opt_steps == 1:
            self.startup_seconds = time.time() - self.launched

    def mark(self, env_steps: int) -> bool:
        """Look at the watch between an update and the next roll-out; True once all has been timed."""
        if self.begun is None and env_steps >= self.warmup and self.opt_steps:
            self.begun = (time.perf_counter(), env_steps, self.opt_steps)
        elif self.begun is not None and self.ended is None and env_steps >= self.begun[1] + self.timed:
            self.ended = (time.perf_counter(), env_steps, self.opt_steps)
        return self.ended is not None

    def result(self) -> dict[str, Any]:
        assert self.begun is not None, "the training ended before its warm-up did"
        assert self.ended is not None, "the training ended before all was timed"
        seconds, env_steps, opt_steps = (b - a for a, b in zip(self.begun, self.ended, strict=True))
        return {
            "env_steps": env_steps,
            "opt_steps": opt_steps,
            "seconds": seconds,
            "startup_seconds": self.startup_seconds,
        }


def count_torch_opt_steps(tell: Callable[[], None]) -> None:
    """Call `tell` at every step of the torch optimizer that steps first (of SAC's three, one counts)."""
    from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

    counted: list[Optimizer] = []

    def count(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not counted:
            counted.append(optimizer)
        if optimizer is counted[0]:
            tell()

    register_optimizer_step_post_hook(count)
