"""What `palestra profile` does: it trains a short while, in a temporary folder, under torch's profiler.

Training has three stretches of what recurs alike (`Training.recurs`), epochs or opt steps: a warm-up, one in which the
phases are timed, and one under the profiler, whose own cost would falsify those times.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from rich.console import Group, RenderableType
from rich.table import Table
from torch.profiler import ProfilerActivity, profile, record_function

from palestra.config import reading_own
from palestra.recording.results import count_text, label
from palestra.runs.base import BaseRunConfig
from palestra.runs.kinds import read_config
from palestra.runtime.intervals import Limit
from palestra.runtime.timing import Phase, TimeLog
from palestra.training import make_trainer
from palestra.training.checks import TrainingEnds, TrainingFailed
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


class Moment(NamedTuple):
    """How much was done at one moment. counts: by the counters whose rates are recorded."""

    counts: Mapping[str, int]
    opt_steps: int


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


class Profiling:
    """Watches a training, and ends it after the last of its three stretches.

    num_opt_steps: of the second and of the third stretch, at least. trace: the file for the profiler's trace.
    """

    def __init__(self, trainer: Training, num_opt_steps: int, trace: Path) -> None:
        self.trainer, self.num_opt_steps, self.trace = trainer, num_opt_steps, trace
        self.time_log = Ranges(trainer.run.device)
        self.num_warm = 0
        self.first: Moment | None = None  # the beginning of the second stretch
        self.timed: Moment | None = None  # its end
        self.seconds: Mapping[str, float] = {}
        self.profiler: profile | None = None
        self.result: Profile | None = None
        trainer.run.count_time_in(self.time_log, trainer.buffers())
        trainer.watcher = self

    def before_safe_point(self) -> None:
        pass

    def after_safe_point(self) -> None:
        if self.trainer.recurs == "opt_steps" or not self.trainer.in_epoch:
            self._begin_next_part()

    def _begin_next_part(self) -> None:
        opt_steps = self.trainer.opt_steps
        here = Moment(self.trainer.mark().counts, opt_steps)
        if self.first is None:
            self.num_warm += all(learner.opt_steps for learner in self.trainer.learners or [self.trainer])
            if self.num_warm == NUM_WARM:
                self.first = here
                self.time_log.take()
        elif self.timed is None:
            if opt_steps - self.first.opt_steps >= self.num_opt_steps:
                self.timed, self.seconds = here, self.time_log.take()
                is_cuda = self.trainer.run.device.type == "cuda"
                self.profiler = profile(
                    activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if is_cuda else [])]
                )
                os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else it prints when it starts and stops
                self.profiler.start()
                self.time_log.is_profiled = True
                self.time_log.switch("other")
        elif opt_steps - self.timed.opt_steps >= self.num_opt_steps:
            self._conclude(self.first, self.timed)
            self.trainer.lockstep.dismiss()
            raise TrainingEnds

    def _conclude(self, first: Moment, timed: Moment) -> None:
        assert self.profiler is not None
        self.time_log.is_profiled = False
        self.time_log.switch("other")  # which ends the last range
        self.profiler.stop()
        self.profiler.export_chrome_trace(str(self.trace))
        operators: list[Any] = [each for each in self.profiler.key_averages() if not each.key.startswith(RANGE)]
        operators.sort(key=lambda each: -(each.self_device_time_total or each.self_cpu_time_total))
        self.profiler = None
        counts = {name: count - first.counts[name] for name, count in timed.counts.items()}
        self.result = Profile(self.seconds, counts, operators, self.trainer.opt_steps - timed.opt_steps)


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
    was_there = trace.exists()
    open(trace, "ab").close()  # raise now, not after the work, if it cannot be written
    with TemporaryDirectory(prefix="palestra-profile-") as place:
        trainer: Training = make_trainer(
            run_config.without_evaluations().model_copy(update=changes), run=Path(place) / "run"
        )
        profiling = Profiling(trainer, num_opt_steps, trace)
        try:
            trainer.fit()
        except TrainingFailed as failed:  # nothing of the run is kept
            raise TrainingFailed(failed.why) from failed
        finally:
            if profiling.profiler is not None:
                profiling.profiler.stop()
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
    return Group(
        f"{', '.join(f'{count_text(count)} {label(name)}' for name, count in found.counts.items())} in {total:.2f} s\n",
        phases,
        f"\nOperators of torch in {found.profiled_opt_steps} more opt steps, under the profiler, without the time"
        " of operators that they call.\nLoops compiled by numba are no operators: only the phases hold their time.\n",
        operators,
    )
