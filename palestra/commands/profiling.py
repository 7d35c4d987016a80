"""What `palestra profile` does: it trains a short while, in a temporary folder, under torch's profiler.

Training has three stretches of what recurs alike (`Training.recurs`), epochs or opt steps: a warm-up, one in which the
phases are timed, and one under the profiler, whose own cost would falsify those times.
"""

import os
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from torch.profiler import ProfilerActivity, profile, record_function

from palestra.config import reading_own
from palestra.recording.results import count_text, label
from palestra.run.base import BaseRunConfig, EvaluatedRunConfig
from palestra.run.kinds import read_config
from palestra.runtime.intervals import Limit
from palestra.runtime.timing import Phase, TimeLog
from palestra.training.checks import TrainingEnds, TrainingFailed, Watcher
from palestra.training.opening import make_trainer
from palestra.training.training import Training

NUM_WARM = 3  # epochs or opt steps with updates: the first ones compile
RANGE = "palestra."
NEVER = Limit(after=1e12, unit="opt_steps")


@dataclass(frozen=True)
class Profile:
    """A profile.

    seconds: by phase. counts: how much was done in them, by the counters whose rates are recorded. operators: torch's
    averages of them, the most expensive first, for `profiled_opt_steps` opt steps.
    """

    seconds: Mapping[str, float]
    counts: Mapping[str, int]
    operators: Sequence[Any]
    profiled_opt_steps: int


class Ranges(TimeLog):
    """A time log whose phases appear as ranges in torch's profiler, while that is on."""

    is_profiled = False
    range: record_function | None = None

    def switch(self, phase: Phase) -> None:
        super().switch(phase)
        if self.range is not None:
            self.range.__exit__(None, None, None)
            self.range = None
        if self.is_profiled:
            self.range = record_function(RANGE + phase)
            self.range.__enter__()


class Profiling(Watcher):
    """Watches a training, and ends it after the last of its three stretches.

    num_opt_steps: of the second and of the third stretch, at least. trace: the file for the profiler's trace.
    """

    def __init__(self, trainer: Training, num_opt_steps: int, trace: Path) -> None:
        self.trainer, self.num_opt_steps, self.trace = trainer, num_opt_steps, trace
        self.time_log = Ranges(trainer.run.device)
        self.result: Profile | None = None
        self.stretches = self._stretches()
        trainer.run.count_time_in(self.time_log, trainer.buffers())
        trainer.watcher = self

    def after_safe_point(self) -> None:
        if self.trainer.recurs == "opt_steps" or not self.trainer.in_epoch:
            next(self.stretches, None)
            if self.result is not None:
                self.trainer.lockstep.dismiss()
                raise TrainingEnds

    def _stretches(self) -> Generator[None]:
        """Go through the three stretches; each yield waits for the next safe point at which one may end."""
        trainer, time_log = self.trainer, self.time_log
        while not all(learner.opt_steps for learner in trainer.learners or [trainer]):
            yield
        for _ in range(NUM_WARM - 1):
            yield
        before = trainer.mark().counts
        time_log.take()
        yield from self._opt_steps()
        counts = {name: count - before[name] for name, count in trainer.mark().counts.items()}
        seconds, first = time_log.take(), trainer.opt_steps
        is_cuda = trainer.run.device.type == "cuda"
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else it prints when it starts and stops
        with profile(activities=[ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * is_cuda]) as profiler:
            time_log.is_profiled = True
            time_log.switch("other")
            yield from self._opt_steps()
            time_log.is_profiled = False
            time_log.switch("other")  # which ends the last range
        profiler.export_chrome_trace(str(self.trace))
        operators: list[Any] = [each for each in profiler.key_averages() if not each.key.startswith(RANGE)]
        operators.sort(key=lambda each: -(each.self_device_time_total or each.self_cpu_time_total))
        self.result = Profile(seconds, counts, operators, trainer.opt_steps - first)

    def _opt_steps(self) -> Generator[None]:
        """Wait until the opt steps of a stretch are made."""
        last = self.trainer.opt_steps + self.num_opt_steps
        while self.trainer.opt_steps < last:
            yield


def profile_config(
    config: str | Path | dict[str, Any] | BaseRunConfig, overrides: Sequence[str], num_opt_steps: int, trace: Path
) -> Profile | int:
    """Train a short while, and write `trace`, a file for chrome://tracing or ui.perfetto.dev.

    Nothing is evaluated, saved or recorded elsewhere.

    num_opt_steps: of the timed and of the profiled stretch, at least. Gives the profile, or the number of the signal if
    one has asked to leave. Raises ConfigError, TrainingFailed, and OSError if the trace cannot be written.
    """
    with reading_own():
        run_config = read_config(config, tuple(overrides)).in_one_process()
    output: dict[str, Any] = {"display": "quiet", "record": None, "recorders": [], "save": None, "mirror": None}
    changes: dict[str, Any] = {"stop": NEVER, "output": run_config.output.model_copy(update=output)}
    if isinstance(run_config, EvaluatedRunConfig):
        changes |= {"evaluations": [], "best": None, "evaluators": None}
    was_there = trace.exists()
    open(trace, "ab").close()  # raise now, not after the work, if it cannot be written
    with TemporaryDirectory(prefix="palestra-profile-") as place:
        trainer: Training = make_trainer(run_config.model_copy(update=changes), run=Path(place) / "run")
        profiling = Profiling(trainer, num_opt_steps, trace)
        try:
            trainer.fit()
        except TrainingFailed as failed:  # nothing of the run is kept
            raise TrainingFailed(failed.why) from failed
        finally:
            profiling.stretches.close()
            if profiling.result is None and not was_there:
                trace.unlink()
        if trainer.run.signals.received is not None:
            return trainer.run.signals.received
    assert profiling.result is not None
    return profiling.result


def render_profile(found: Profile, num_operators: int) -> RenderableType:
    """Draw a profile as two tables, of phases and of operators."""
    total = sum(found.seconds.values())
    phases = Table("phase", box=None, header_style="dim", padding=(0, 3, 0, 0))
    per_one = [label(name).removesuffix("s") for name in found.counts]
    for heading in ("share", "seconds", *(f"us per {one}" for one in per_one)):
        phases.add_column(heading, justify="right")
    for phase, seconds in sorted(found.seconds.items(), key=lambda item: -item[1]):
        per = [f"{seconds * 1e6 / max(count, 1):,.1f}" for count in found.counts.values()]
        if seconds:
            phases.add_row(phase, f"{seconds / total:.1%}", f"{seconds:.3f}", *per)
    operators = Table("operator", box=None, header_style="dim", padding=(0, 3, 0, 0))
    has_gpu = any(operator.self_device_time_total for operator in found.operators)
    for heading in ("calls", "CPU ms", *(["GPU ms"] if has_gpu else [])):
        operators.add_column(heading, justify="right")
    for operator in found.operators[:num_operators]:
        times = [operator.self_cpu_time_total, operator.self_device_time_total][: 1 + has_gpu]  # in microseconds
        operators.add_row(operator.key, count_text(operator.count), *(f"{time / 1000:.2f}" for time in times))
    played = found.seconds["play"]
    gain = ""
    if played and "env_steps" in found.counts and not found.seconds["waiting"]:
        most = f"{total / max(played, total - played):.2f} times as fast"
        gain = f"\nAn actor (actors.lag=1, execution.actor_processes=1) plays beside the rest: at most {most}.\n"
    return Group(
        f"{', '.join(f'{count_text(count)} {label(name)}' for name, count in found.counts.items())} in {total:.2f} s\n",
        phases,
        f"{gain}\nOperators of torch in {found.profiled_opt_steps} more opt steps, under the profiler, without the time"
        " of operators that they call.\nLoops compiled by numba are no operators: only the phases hold their time.\n",
        operators,
    )
