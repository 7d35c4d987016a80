"""What `palestra train FILE --seeds 0..4 --at 2` does: runs that differ in their seed, some at a time.

Each run is a process of its own.
"""

import shlex
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from palestra.run.base import BaseRunConfig
from palestra.run.kinds import read_config
from palestra.runtime.signals import StopSignals
from palestra.runtime.threads import available_cores
from palestra.storage.disk import Folder, RunFolderError, plain_path, written_name
from palestra.storage.lock import Lock, in_use
from palestra.storage.records_file import iterate_records
from palestra.sweeps.config import Seeds
from palestra.sweeps.folder import SEEDS, default_path, make_new
from palestra.sweeps.places import LocalConfig, Place
from palestra.sweeps.seed_runs import POLL_S, Growing, SeedRun, SeedRuns, let_end

BASE = "base.yml"  # the config of all runs
LOCK = "lock"


class _Seeds(Config):
    seeds: Seeds
    at: PositiveInt


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
    path = folder or default_path(name)
    while not make_new(path) and folder is None:  # another process was faster
        path = default_path(name)
    paths = {seed: path / f"seed-{seed}" for seed in seeds}
    runs = [SeedRun(run, seed, Growing(run, config, {})) for seed, run in paths.items()]
    work = SeedRuns(Folder(path), BASE, config, runs)
    with _held(work):
        for run in runs:
            work.arguments(run)  # raises before any begins
        work.folder.write(SEEDS, render(_Seeds(seeds=list(seeds), at=at), _Seeds).encode())
        _train(work, place, shown)


def _train(work: SeedRuns[SeedRun], place: Place, shown: Console) -> None:
    signals, codes = StopSignals(), dict[int, int]()
    with (
        signals.caught(work.config.output.stop_within_s, lambda why: work.signal(signal.SIGKILL)),
        _bars(work.runs, codes, shown) as show,
    ):
        while signals.received is None and len(codes) < len(work.runs):
            for run in work.runs:
                if run.job is None and run.seed not in codes and work.num_running < place.num_runs:
                    try:
                        work.start(run, place)
                    except (ConfigError, RunFolderError) as error:  # its log is no file of ours, say
                        codes[run.seed] = 2
                        say(f"seed {run.seed}: failed: {error}", shown)
                if run.job is not None and (code := run.look()) is not None:
                    codes[run.seed] = code
                    say(f"seed {run.seed}: {'finished' if code == 0 else f'failed: {run.why(code)}'}", shown)
            show()
            time.sleep(POLL_S)
        if signals.received is not None:
            shown.print("saving the runs")
            let_end([work], lambda: None)
    if signals.received is not None:
        say(f"stopped; to go on: palestra resume {shlex.quote(str(work.folder.path))}", shown)
        raise typer.Exit(128 + signals.received)
    done = {run.seed: _evaluations(run.path, shown) for run in work.runs if codes[run.seed] == 0}
    if done:
        render_seeds_summary(shown, done)
    if len(done) < len(work.runs):
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
def _held(work: SeedRuns[SeedRun]) -> Iterator[None]:
    """Make a context in which this process alone works on the folder of the runs, which holds BASE.

    Raises RunFolderError, and changes nothing, if the folder is that of something else, or another process works on it.
    """
    folder = work.folder
    try:
        _require_ours(work)
        lock = Lock.take(folder, LOCK)
    except (NotADirectoryError, FileNotFoundError) as error:
        raise RunFolderError(f"{folder.path} cannot be used: {error.strerror}") from error
    if lock is None:
        raise RunFolderError(in_use(folder))
    with lock:
        _require_ours(work)  # as the process left it that was faster
        work.difference()  # writes BASE
        yield


def _require_ours(work: SeedRuns[SeedRun]) -> None:
    """Raise RunFolderError for a folder of something else than this config.

    A folder is also ours if a process was killed before it had written the config there.
    """
    other = f"{work.folder.path} exists already, and does not hold runs of this config"
    if work.folder.kind(BASE) is None:
        if not all(written_name(name) in (LOCK, BASE) for name in work.folder.names()):
            raise RunFolderError(other)
    elif (difference := work.difference()) is not None:
        raise RunFolderError(f"{other}: expected the one in which {difference}")


def _evaluations(run: Path, shown: Console) -> list[Evaluation]:
    """Read the evaluations of a run; each damaged line is told, and left out."""
    records = iterate_records(run / "records.jsonl", lambda fault: say(f"{fault}; this line is left out", shown))
    return [Evaluation.from_record(record) for record in records if record.get("kind") == "evaluation"]


@contextmanager
def _bars(runs: Sequence[SeedRun], codes: Mapping[int, int], console: Console) -> Iterator[Callable[[], None]]:
    """Draw a bar for each run on a terminal; gives the function that moves the bars."""
    if console.quiet or not console.is_terminal:
        yield lambda: None
        return
    columns = TextColumn("seed {task.fields[seed]}"), BarColumn(), TextColumn("{task.percentage:3.0f}%")
    with Progress(*columns, console=console) as progress:
        tasks = {progress.add_task("", total=1.0, seed=run.seed): run for run in runs}

        def show() -> None:
            for task, run in tasks.items():
                progress.update(task, completed=1.0 if codes.get(run.seed) == 0 else run.records.share)

        yield show
