"""What `palestra sweep FILE --dry-run` says: how many runs and env steps, and about how long, from a short run."""

import math
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from palestra.config import render
from palestra.recording.results import count_text, duration_text
from palestra.runs.config import RunConfig
from palestra.storage.disk import Folder
from palestra.sweeps.config import SweepConfig
from palestra.sweeps.places import LocalJob, last_line
from palestra.sweeps.plan import MOST_CORNERS, Plan
from palestra.sweeps.watching import Growing

MEASURE_S = 10.0  # how long the run goes on after its first record
MOST_S = 60.0  # how long it is waited for
POLL_S = 0.05


def dry_run(config: SweepConfig, bases: dict[str, RunConfig]) -> Iterator[str]:
    """The lines, each as soon as it is known. Raises ConfigError for what `sweep` would refuse."""
    plan = Plan(config, bases)
    plan.config.storage.require()
    yield from plan.notes()
    num_at_once = plan.config.place.build().num_runs
    num_trials = plan.num_trials()
    yield plan.extent_text(num_at_once)
    if num_trials is not None:
        yield f"{count_text(num_trials * len(config.seeds))} runs{_unless_pruned(config)}"
    stops = [plan.space.config_at(point)["stop"] for point in plan.space.corners(MOST_CORNERS)]
    if num_trials is not None and all(stop["unit"] == "env_steps" for stop in stops):
        most = num_trials * len(config.seeds) * max(stop["after"] for stop in stops)
        yield f"{count_text(most)} env steps{_unless_pruned(config)}"
    seconds = []
    for name, base in bases.items():
        found = run_seconds(base, config.seeds[0])
        if isinstance(found, str):
            yield f"a run of {name} cannot be timed: {found}"
            continue
        seconds.append(found)
        yield f"a run of {name} as it is takes about {duration_text(found)}, its start and evaluations included"
    if num_trials is not None and len(seconds) == len(bases):
        rounds = math.ceil(num_trials * len(config.seeds) / num_at_once)
        yield f"the sweep takes about {duration_text(rounds * sum(seconds) / len(seconds))}{_unless_pruned(config)}"


def _unless_pruned(config: SweepConfig) -> str:
    return "" if config.pruning is None else " at most, for trials are pruned"


def run_seconds(config: RunConfig, seed: int) -> float | str:
    """About how long a run takes as a process of its own, from its first seconds; or why that cannot be said."""
    with tempfile.TemporaryDirectory(prefix="palestra-") as name:
        folder, path = Folder(Path(name)), Path(name) / "run"
        folder.write("config.yml", render(config, RunConfig).encode())
        began = time.monotonic()
        arguments = ["train", str(folder.path / "config.yml"), f"seed={seed}", "--run", str(path), "--quiet"]
        unkept = {"XDG_STATE_HOME": name}  # the process trusts what the config names, and that ends with the folder
        job = LocalJob(arguments, folder.path / "log", unkept)
        records, seen = Growing(path, config.stop), list[tuple[float, float]]()
        try:
            while job.poll() is None and not _is_enough(seen, now := time.monotonic() - began) and now < MOST_S:
                records.look()
                if records.share > (seen[-1][1] if seen else 0.0):
                    seen.append((time.monotonic() - began, records.share))
                time.sleep(POLL_S)
            code = job.poll()
        finally:
            job.signal(signal.SIGKILL)
            while job.poll() is None:
                time.sleep(POLL_S)
        if code is None:
            return _extrapolated(seen, 60 * records.minutes)
        return time.monotonic() - began if code == 0 else last_line(folder.path / "log")


def _is_enough(seen: list[tuple[float, float]], now: float) -> bool:
    return len(seen) > 1 and now - seen[0][0] > MEASURE_S


def _extrapolated(seen: list[tuple[float, float]], trained_s: float) -> float | str:
    """seen: moments in seconds, each with the share that was done. trained_s: how long it had trained at the last."""
    if not seen:
        return f"it recorded nothing within {MOST_S:g} s (output.record, evaluations)"
    (last, done), (first, earlier) = seen[-1], (seen[0] if len(seen) > 1 else (seen[-1][0] - trained_s, 0.0))
    return last + (1.0 - done) * (last - first) / (done - earlier)
