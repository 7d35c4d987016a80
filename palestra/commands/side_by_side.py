"""What `palestra train FILE --seeds 0..4 --at 2` does: runs that differ in their seed, some at a time.

Each run is a process of its own.
"""

import shlex
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from palestra.commands.shell import say
from palestra.config import Config, ConfigError, PositiveInt, check, load_yaml, render
from palestra.config.own_modules import reading_stored
from palestra.recording.results import Evaluation
from palestra.recording.summary import render_seeds_summary
from palestra.runs.base import BaseRunConfig
from palestra.runs.kinds import read_config
from palestra.runtime.signals import StopSignals, exit_text
from palestra.runtime.threads import available_cores
from palestra.storage.disk import Folder, RunFolderError, plain_path, written_name
from palestra.storage.lock import Lock, in_use
from palestra.storage.records_file import iterate_records
from palestra.sweeps.config import Seeds
from palestra.sweeps.folder import SEEDS, default_path, make_new
from palestra.sweeps.places import Job, LocalConfig, LocalPlace, last_line
from palestra.sweeps.seed_runs import arguments_for
from palestra.sweeps.watching import Growing

POLL_S = 0.1
BASE = "base.yml"  # the config of all runs
LOCK = "lock"


class _Seeds(Config):
    seeds: Seeds
    at: PositiveInt


class SeedRun:
    """The run of one seed. arguments: with which palestra begins it or goes on with it."""

    def __init__(self, folder: Path, seed: int, config: BaseRunConfig) -> None:
        self.seed, self.path, self.log = seed, folder / f"seed-{seed}", folder / f"seed-{seed}.log"
        self.records = Growing(self.path, config)
        self.arguments: list[str] = []
        self.job: Job | None = None
        self.code: int | None = None


def train_side_by_side(
    config: BaseRunConfig, name: str, folder: Path | None, seeds: Sequence[int], at: int, shown: Console
) -> None:
    """Train, show how far the runs are, and print the summary over the seeds.

    A folder of the same config is gone on with. Raises ConfigError, RunFolderError; leaves with 1 if a run has failed,
    128 + n at signal n.
    """
    threads = config.cores()
    if at * threads > (available := available_cores()):
        most = max(1, available // threads)
        what = f"{threads} thread{'s' * (threads != 1)} each on {available} cores (execution.num_threads)"
        raise ConfigError.at("--at", f"expected at most {most}, because the runs use {what}, got {at}")
    place = LocalConfig(name="local", cores=at * threads, cores_per_run=threads, gpus=[], runs_per_gpu=1).build()
    while folder is None:
        free = default_path(name)
        folder = free if make_new(free) else None
    with _held(folder, config):
        runs = [SeedRun(folder, seed, config) for seed in seeds]
        data = load_yaml(folder / BASE)
        for run in runs:
            run.arguments = arguments_for(Folder(folder), run.seed, folder / BASE, config, data)
        Folder(folder).write(SEEDS, render(_Seeds(seeds=list(seeds), at=at), _Seeds).encode())
        _train(runs, folder, config, place, shown)


def _train(runs: Sequence[SeedRun], folder: Path, config: BaseRunConfig, place: LocalPlace, shown: Console) -> None:
    signals = StopSignals()
    with (
        signals.caught(config.output.stop_within_s, lambda why: _signal(runs, signal.SIGKILL)),
        _bars(runs, shown) as show,
    ):
        while signals.received is None and any(run.code is None for run in runs):
            for run in runs:
                if run.job is None and run.code is None and sum(map(_is_running, runs)) < place.num_runs:
                    _start(run, place, shown)
                _look(run, shown)
            show()
            time.sleep(POLL_S)
        if signals.received is not None:
            shown.print("saving the runs")
            _signal(runs, signal.SIGTERM)
        while any(_is_running(run) for run in runs):
            time.sleep(POLL_S)
    if signals.received is not None:
        say(f"stopped; to go on: palestra resume {shlex.quote(str(folder))}", shown)
        raise typer.Exit(128 + signals.received)
    done = {run.seed: _evaluations(run.path, shown) for run in runs if run.code == 0}
    if done:
        render_seeds_summary(shown, done)
    if len(done) < len(runs):
        raise typer.Exit(1)


def resume_side_by_side(folder: Path, trust: bool, shown: Console) -> None:
    """Go on with the runs of a folder, which another person may have made.

    Raises ConfigError, RunFolderError, UntrustedError.
    """
    stored = check(load_yaml(plain_path(Folder(folder), SEEDS)), _Seeds)
    with reading_stored(folder / BASE, trust):
        config = read_config(plain_path(Folder(folder), BASE))
    train_side_by_side(config, folder.name, folder, stored.seeds, stored.at, shown)


@contextmanager
def _held(path: Path, config: BaseRunConfig) -> Iterator[None]:
    """Make a context in which this process alone works on the folder of the runs, which holds BASE.

    Raises RunFolderError, and changes nothing, if the folder is that of something else, or another process works on it.
    """
    folder, text = Folder(path), render(config, type(config))
    make_new(path)
    try:
        _require_ours(folder, text)
        lock = Lock.take(folder, LOCK)
    except (NotADirectoryError, FileNotFoundError) as error:
        raise RunFolderError(f"{path} cannot be used: {error.strerror}") from error
    if lock is None:
        raise RunFolderError(in_use(folder))
    try:
        _require_ours(folder, text)  # as the process left it that was faster
        if folder.kind(BASE) is None:
            folder.write(BASE, text.encode())
        yield
    finally:
        lock.free()


def _require_ours(folder: Folder, text: str) -> None:
    """Raise RunFolderError for a folder of something else than this config.

    A folder is also ours if a process was killed before it had written the config there.
    """
    if folder.kind(BASE) is None:
        is_ours = all(written_name(name) in (LOCK, BASE) for name in folder.names())
    else:
        is_ours = load_yaml(plain_path(folder, BASE)) == load_yaml(text)
    if not is_ours:
        raise RunFolderError(f"{folder.path} exists already, and does not hold runs of this config")


def _is_running(run: SeedRun) -> bool:
    return run.job is not None and run.job.poll() is None


def _start(run: SeedRun, place: LocalPlace, shown: Console) -> None:
    try:
        run.job = place.start(run.arguments, run.log)
    except RunFolderError as error:  # its log is no file of ours
        run.code = 2
        say(f"seed {run.seed}: failed: {error}", shown)


def _look(run: SeedRun, shown: Console) -> None:
    if run.job is None or run.code is not None:
        return
    run.records.look()
    run.code = run.job.poll()
    if run.code is not None:
        end = "finished" if run.code == 0 else f"failed: {last_line(run.log) or 'its process ' + exit_text(run.code)}"
        say(f"seed {run.seed}: {end}", shown)


def _signal(runs: Sequence[SeedRun], number: int) -> None:
    for run in runs:
        if run.job is not None:
            run.job.signal(number)


def _evaluations(run: Path, shown: Console) -> list[Evaluation]:
    """Read the evaluations of a run; each damaged line is told, and left out."""
    records = iterate_records(run / "records.jsonl", lambda fault: say(f"{fault}; this line is left out", shown))
    return [Evaluation.from_record(record) for record in records if record.get("kind") == "evaluation"]


@contextmanager
def _bars(runs: Sequence[SeedRun], console: Console) -> Iterator[Callable[[], None]]:
    """Draw a bar for each run on a terminal; gives the function that moves the bars."""
    if console.quiet or not console.is_terminal:
        yield lambda: None
        return
    columns = TextColumn("seed {task.fields[seed]}"), BarColumn(), TextColumn("{task.percentage:3.0f}%")
    with Progress(*columns, console=console) as progress:
        tasks = {progress.add_task("", total=1.0, seed=run.seed): run for run in runs}

        def show() -> None:
            for task, run in tasks.items():
                progress.update(task, completed=1.0 if run.code == 0 else run.records.share)

        yield show
