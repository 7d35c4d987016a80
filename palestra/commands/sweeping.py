"""What `palestra sweep` does: finds the sweep that its arguments mean, works on it, and says what was found.

With --dry-run it says how many runs and steps it is, and about how long they take, estimated from a short run.
"""

import math
import shlex
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

import typer
from rich.console import Console

from palestra.commands.shell import parse_numbers, refuse, say
from palestra.commands.starting import find_config, naming_remedies
from palestra.config import ConfigError, checking, load_yaml, reading_own, render
from palestra.config.files import full_key
from palestra.config.own_modules import reading_file
from palestra.recording.results import count_text, duration_text, label
from palestra.run.base import BaseRunConfig
from palestra.run.kinds import read_config
from palestra.runtime.intervals import Limit
from palestra.storage.disk import Folder, plain_path
from palestra.sweeps.config import SweepConfig, is_sweep, read_sweep
from palestra.sweeps.folder import SweepFolder, default_path, is_sweep_folder, require_optuna
from palestra.sweeps.places import LocalJob, last_line
from palestra.sweeps.plan import Plan, read_bases, starting_grid
from palestra.sweeps.search import EvolutionConfig
from palestra.sweeps.seed_runs import Growing

if TYPE_CHECKING:
    from palestra.sweeps.progress import SweepProgress

MEASURE_S = 10.0  # how long the run goes on after its first record
MOST_S = 60.0  # how long it is waited for
POLL_S = 0.05


def open_sweep(
    file: str,
    overrides: Sequence[str],
    run: Path | None,
    seeds: str | None,
    at: int | None,
    trust: bool,
    shown: Console,
) -> Any:
    """Open the sweep of a file or a folder, or a grid by hand over a config. Raises ConfigError, RunFolderError."""
    require_optuna()
    from palestra.sweeps.display import make_sweep_display
    from palestra.sweeps.sweep import Sweep

    display = make_sweep_display(shown)
    path = Path(file)
    if is_sweep_folder(path):
        refuse({"--run": run, "--seeds": seeds, "--at": at}, f"{path} is a sweep already")
        return Sweep.open(path, overrides, display, trust)
    with reading_own(), reading_file(path):
        config, bases, name = read_new(file, overrides, seeds, at)
        folder = run or default_path(name)
        if not is_sweep_folder(folder):
            return Sweep.create(folder, config, bases, display)
        change = f"palestra sweep {folder} KEY=VALUE changes a budget or a place"
        if (there := _differing_key(SweepFolder.open(folder), config, bases)) is not None:
            raise ConfigError.at(
                "--run", f"expected a new folder, got {folder}, a sweep with another {there}; {change}"
            )
    return Sweep.open(folder, [], display, trust=False)  # its place, which may differ, may be a stranger's


def read_new(
    file: str, overrides: Sequence[str], seeds: str | None, at: int | None
) -> tuple[SweepConfig, dict[str, BaseRunConfig], str]:
    """Read the sweep of a file, or make a grid by hand over a config; returns it, its bases by name, and its name."""
    path = Path(file)
    data = load_yaml(path) if path.is_file() else None
    if data is None or not is_sweep(data):
        return _grid_by_hand(file, overrides, seeds, at)
    refuse({"--seeds": seeds, "--at": at}, f"{path} says it (seeds=[0,1], place.cores=2)")
    config = read_sweep(data, overrides)
    return config, read_bases(config.base, path.parent), path.stem


def _differing_key(folder: SweepFolder, config: SweepConfig, bases: dict[str, BaseRunConfig]) -> str | None:
    """Return the first key in which the sweep of a folder differs from another one in a way that changes its trials."""
    ours = Plan(config, bases).config.model_dump()
    theirs = folder.data()
    for key in ours.keys() - {"base", "place"}:
        if ours[key] != theirs.get(key):
            return key
    there = {Path(file).stem for file in theirs["base"]}
    is_same = there == bases.keys() and all(
        load_yaml(plain_path(folder.bases, f"{name}.yml")) == load_yaml(render(base, type(base)))
        for name, base in bases.items()
    )
    return None if is_same else "base"


def _grid_by_hand(
    file: str, words: Sequence[str], seeds: str | None, at: int | None
) -> tuple[SweepConfig, dict[str, BaseRunConfig], str]:
    """Make a grid over the listed values of keys; keys with a single value are the same in all runs."""
    game = [word for word in words if "=" not in word][:1]
    listed = {key.strip(): _values(text) for word in words if "=" in word for key, _, text in [word.partition("=")]}
    fixed = [word for word in words if "=" in word and len(listed[word.partition("=")[0].strip()]) == 1]
    bases: dict[str, BaseRunConfig] = {}
    for name in file.split(","):
        found = find_config(name, [*game, *fixed])
        with naming_remedies(found):
            base = read_config(found.source, found.overrides)
        if not base.measured():
            raise ConfigError.at(name, "expected a run with evaluations, got another")
        if found.name in bases:
            raise ConfigError.at(name, f"expected configs of different names, got {found.name} twice")
        bases[found.name] = base
    usual, first = starting_grid(bases, at), next(iter(bases.values()))
    space: dict[str, Any] = {}
    for key, texts in listed.items():
        if len(texts) > 1 and not all(texts):
            raise ConfigError.at(key, f"expected a value before and after each comma, got {','.join(texts)!r}")
        if len(texts) > 1:
            key = full_key(first.model_dump(), key) if len(bases) == 1 else key
            space[key] = {"name": "choice", "values": []}
            for text in texts:
                try:
                    space[key]["values"].append(load_yaml(f"value: {text}")["value"])
                except ConfigError as error:
                    raise ConfigError.at(key, f"expected a value, got {text!r}: {error.errors[0].message}") from None
    if not space and len(bases) == 1:
        raise ConfigError.at(
            file, "expected a key with several values, as gamma=0.9,0.99, or several configs, got neither"
        )
    chosen = {} if seeds is None else {"seeds": parse_numbers(seeds, "--seeds", "seed")}
    return read_sweep(usual | {"space": space} | chosen, []), bases, f"{'-'.join(bases)}-sweep"


def _values(text: str) -> list[str]:
    """Split a list without brackets into its values; commas inside brackets do not part them."""
    values, depth = [""], 0
    for character in text:
        depth += (character in "[{") - (character in "]}")
        if character == "," and depth == 0:
            values.append("")
        else:
            values[-1] += character
    return values


def work_on(sweep: Any, shown: Console, retry_failed: bool = False) -> None:
    """Work on a sweep, and leave the process with 128 + n if signal n stopped it, with 1 if a trial has failed."""
    say(f"{sweep.folder.path}: {sweep.plan.extent_text(sweep.place.num_runs)}", shown)
    for note in sweep.plan.notes():
        say(note, shown)
    if retry_failed:
        num = sweep.retry_failed()
        again = f"{num:,} trial{'s' * (num != 1)} that failed begin{'s' * (num == 1)} again"
        say(again if num else "no trial has failed", shown)
    received = sweep.work()
    path = shlex.quote(str(sweep.folder.path))
    if received is not None:
        say(f"stopped; to go on: palestra resume {path}", shown)
        raise typer.Exit(128 + received)
    progress = sweep.progress()
    say(summary(progress, sweep.folder.best), shown)
    if num := len(sweep.failed()):
        say(f"to run {'it' if num == 1 else 'them'} again: palestra resume {path} --retry-failed", shown)
    if progress.counts.get("failed"):
        raise typer.Exit(1)


def summary(progress: "SweepProgress", best_config: Path) -> str:
    """Say how many trials ended how, which is the best one, and why the first ones failed."""
    from palestra.sweeps.display import counts_text, failures_text, point_text, seeds_text

    num = sum(progress.counts.values())
    lines = [f"{progress.path}: {num} trial{'s' * (num != 1)}, {counts_text(progress)}"]
    if (best := progress.best) is not None:
        seeds = f" ({seeds})" if (seeds := seeds_text(best)) else ""
        value = f"trial {best.number}, {progress.measure} {best.value:.6g}{seeds}"
        lines.append(f"best: {', '.join(filter(None, [value, point_text(best.point)]))}")
        lines.append(f"its config: {best_config}")
        if progress.generation is not None:
            lines.append(f"its run{'s' * (len(best.runs) > 1)}: {', '.join(map(str, best.runs))}")
    return "\n".join([*lines, *failures_text(progress)])


# ---- before anything begins ---------------------------------------------------------------------------------


def print_dry_run(file: str, overrides: Sequence[str], seeds: str | None, at: int | None) -> None:
    """Say what a sweep would be that has not begun. Raises ConfigError."""
    if is_sweep_folder(Path(file)):
        raise ConfigError.at("--dry-run", f"expected a sweep's file or a config, got {file}, a sweep that has begun")
    with checking(), reading_file(Path(file)):
        config, bases, _ = read_new(file, overrides, seeds, at)
        for line in dry_run(config, bases):
            say(line)


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
    for name, base in plan.bases.items():
        found = run_time(base, config.seeds[0])
        if isinstance(found, str):
            yield f"a run of {name} cannot be timed: {found}"
        else:
            times[name], whole = found, duration_text(found.seconds(base.stop))
            if isinstance(config.search, EvolutionConfig):
                start, train = duration_text(found.start_s), duration_text(found.train_s)
                parts = f"{start} to start and to evaluate, {train} to train"
                yield f"a run of {name} takes about {whole} for a generation: {parts}"
            else:
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
    search = plan.config.search
    size = search.size if isinstance(search, EvolutionConfig) else num_trials  # a generation waits for the one before
    rounds = math.ceil(num_trials / size) * math.ceil(size * len(plan.config.seeds) / num_at_once)
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
        # the process trusts what the config names, and that ends with the folder
        job = LocalJob(arguments, folder.path / "log", {"XDG_STATE_HOME": name})
        records, seen = Growing(path, config, {}), list[tuple[float, float]]()
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
