"""What `palestra sweep FILE --dry-run` says: how many runs and steps, and about how long they take.

The time is estimated from a short run.
"""

import math
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from palestra.config import render
from palestra.recording.results import count_text, duration_text, label
from palestra.runs.base import BaseRunConfig
from palestra.runtime.intervals import Limit
from palestra.storage.disk import Folder
from palestra.sweeps.config import SweepConfig
from palestra.sweeps.places import LocalJob, last_line
from palestra.sweeps.plan import Plan
from palestra.sweeps.seed_runs import Growing

MEASURE_S = 10.0  # how long the run goes on after its first record
MOST_S = 60.0  # how long it is waited for
POLL_S = 0.05


def dry_run(config: SweepConfig, bases: dict[str, BaseRunConfig]) -> Iterator[str]:
    """Yield the lines, each as soon as it is known. Raises ConfigError for what `sweep` would refuse."""
    plan = Plan(config, bases)
    plan.config.storage.require()
    yield from plan.notes()
    num_at_once = plan.config.place.build().num_runs
    num_trials = plan.num_trials()
    yield plan.extent_text(num_at_once)
    if num_trials is not None:
        yield f"{count_text(num_trials * len(config.seeds))} runs{_unless_pruned(config)}"
    stops = plan.stops()
    units = {stop.unit for _, stop in stops}
    if num_trials is not None and len(units) == 1 and units != {"minutes"}:
        about = "" if plan.has_all_points or len({stop.after for _, stop in stops}) == 1 else "about "
        num = num_trials * len(config.seeds) * fmean(stop.after for _, stop in stops)
        yield f"{about}{count_text(num)} {label(*units)}{_unless_pruned(config)}"
    times = {}
    for name, base in bases.items():
        found = run_time(base, config.seeds[0])
        if isinstance(found, str):
            yield f"a run of {name} cannot be timed: {found}"
            continue
        times[name] = found
        whole = duration_text(found.seconds(base.stop))
        yield f"a run of {name} as it is takes about {whole}, its start and evaluations included"
    if num_trials is not None and len(times) == len(bases):
        yield from _whole_time([times[name].seconds(stop) for name, stop in stops], plan, num_trials, num_at_once)


def _whole_time(seconds: Sequence[float], plan: Plan, num_trials: int, num_at_once: int) -> Iterator[str]:
    """Yield how long the sweep takes.

    seconds: of runs of trials, as likely as they are; nan where a run stops by another unit than its base.
    """
    least, most = min(seconds), max(seconds)
    if any(map(math.isnan, seconds)):
        yield "how long the sweep takes is unknown, because trials stop by another unit than their base (stop.unit)"
        return
    if duration_text(least) != duration_text(most):
        yield f"runs of trials take about {duration_text(least)} to {duration_text(most)}, by their base and their stop"
    rounds = math.ceil(num_trials * len(plan.config.seeds) / num_at_once)
    yield f"the sweep takes about {duration_text(rounds * fmean(seconds))}{_unless_pruned(plan.config)}"


def _unless_pruned(config: SweepConfig) -> str:
    return "" if config.pruning is None else " at most, because trials are pruned"


class RunTime(NamedTuple):
    """How long a run takes: start_s outside of training, and train_s to train until the limit `stop`."""

    start_s: float
    train_s: float
    stop: Limit

    def seconds(self, stop: Limit) -> float:
        """Return the seconds of a run that trains to another limit; nan if that limit counts something else."""
        if stop.unit == "minutes":
            return self.start_s + 60 * stop.after
        return self.start_s + self.train_s * stop.after / self.stop.after if stop.unit == self.stop.unit else math.nan


def run_time(config: BaseRunConfig, seed: int) -> RunTime | str:
    """Estimate from its first seconds how long a run takes as a process of its own, or return why that is unknown."""
    with tempfile.TemporaryDirectory(prefix="palestra-") as name:
        folder, path = Folder(Path(name)), Path(name) / "run"
        folder.write("config.yml", render(config, type(config)).encode())
        began = time.monotonic()
        arguments = ["train", str(folder.path / "config.yml"), f"seed={seed}", "--run", str(path), "--quiet"]
        unkept = {"XDG_STATE_HOME": name}  # the process trusts what the config names, and that ends with the folder
        job = LocalJob(arguments, folder.path / "log", unkept)
        records, seen = Growing(path, config), list[tuple[float, float]]()
        try:
            while job.poll() is None and (now := time.monotonic() - began) < MOST_S:
                if len(seen) > 1 and now - seen[0][0] > MEASURE_S:
                    break
                records.look()
                if records.share > (seen[-1][1] if seen else 0.0):
                    seen.append((time.monotonic() - began, records.share))
                time.sleep(POLL_S)
            code = job.poll()
        finally:
            job.signal(signal.SIGKILL)
            while job.poll() is None:
                time.sleep(POLL_S)
        trained_s = 60 * records.minutes
        if code is None:
            return _extrapolated(seen, trained_s, config.stop)
        if code != 0:
            return last_line(folder.path / "log")
        return RunTime(max(0.0, time.monotonic() - began - trained_s), trained_s, config.stop)


def _extrapolated(seen: list[tuple[float, float]], trained_s: float, stop: Limit) -> RunTime | str:
    """Estimate how long a run takes that was ended early.

    seen: moments in seconds, each with the share that was done. trained_s: how long it had trained at the last.
    """
    if not seen:
        return f"it recorded nothing within {MOST_S:g} s (output.record, evaluations)"
    (last, done), (first, earlier) = seen[-1], (seen[0] if len(seen) > 1 else (seen[-1][0] - trained_s, 0.0))
    train_s = (last - first) / (done - earlier)
    return RunTime(last - done * train_s, train_s, stop)
