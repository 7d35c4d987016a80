"""Starts a run in several processes, and starts them again when one is lost."""

import math
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import parent_process, resource_tracker
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import typer

from palestra.commands.shell import mistake
from palestra.runtime.signals import STOPPING, end_with_parent, exit_text, exiting_on_signals, heeded
from palestra.scaling.ranks import Board, Ranks

LOST = os.EX_TEMPFAIL
"""the exit code of a process that cannot go on because another one was lost"""
CODES = "codes"  # the folder of the exit codes of those that have left in order
LOOK_S = 0.1  # between looks at signals, for which nothing wakes the launcher
LEAVE_S = 30.0  # within which the others leave once one has ended before its time


class Job(NamedTuple):
    """What each process does: train the run in a folder, which begins there unless it exists.

    config: as plain data, to begin with. origin: the checkpoint that it branches off. quiet: whether nothing is shown.
    """

    run: Path
    name: str
    config: Mapping[str, Any]
    origin: Path | None
    quiet: bool


def begun_before(run: Path | None, seeds: str | None) -> Path | None:
    """Return the run with which a process goes on that torchrun has started again; None if it begins one.

    Raises ConfigError for options of `train` that do not fit what torchrun has started.
    """
    ranks = Ranks.here()
    if seeds is not None and ranks.num > 1:
        raise mistake("--seeds", f"expected no such option in processes of torchrun, got {seeds}")
    if run is None and ranks.max_restarts:
        raise mistake(
            "--run", f"expected the run's folder, by which torchrun's {ranks.max_restarts} restarts go on, got none"
        )
    return run if run is not None and ranks.restart and is_begun(run) else None


def fit(trainer: Any) -> None:
    """Train, in as many processes as the config asks for; leave with 128 + n if signal n stopped the run."""
    if trainer.config.count_processes() > 1 and Ranks.here().num == 1:
        if code := launch(trainer, quiet=trainer.run.console.quiet):
            raise typer.Exit(code)
        return
    trainer.fit()
    if trainer.run.signals.received is not None:
        raise typer.Exit(128 + trainer.run.signals.received)


def launch(trainer: Any, quiet: bool) -> int:
    """Train in the processes that the config asks for. Returns the exit code of the command.

    trainer: a training that was made by the config, and that did not begin; its run then has the folder and what it
    has recorded. Raises ConfigError, RunFolderError.
    """
    from palestra.run.copies import files_of_copies
    from palestra.run.run import default_folder
    from palestra.storage.disk import RunFolderError
    from palestra.storage.run_folder import RunFolder

    trainer.require_ready()
    run, execution = trainer.run, trainer.config.execution
    copies = files_of_copies(trainer.config.copied())
    folder = run.place if isinstance(run.place, RunFolder) else default_folder(run.place, run.name, copies)
    job = Job(folder.path, run.name, trainer.config.model_dump(mode="json"), run.origin, quiet)
    try:
        code = _run_ranks(job, execution.num_processes)
        for restart in range(1, execution.max_restarts + 1):
            if code != LOST:
                break
            told = f"its {execution.num_processes} processes are started again, {restart} of {execution.max_restarts}"
            print(f"{job.run}: {told} times", file=sys.stderr, flush=True)
            code = _run_ranks(job, execution.num_processes)
        return 1 if code == LOST else code
    finally:
        if is_begun(folder.path):
            run.place = RunFolder.open(folder.path)
            run.records.read_back()
        else:
            with suppress(RunFolderError), folder.beginning(copies):  # unless another command begins the run there
                folder.discard()


def is_begun(path: Path) -> bool:
    """Return whether a folder is that of a run that has begun."""
    from palestra.storage.disk import RunFolderError
    from palestra.storage.run_folder import RunFolder

    try:
        RunFolder.open(path).facts()
    except RunFolderError:
        return False
    return True


def _run_ranks(job: Job, num: int) -> int:
    """Start the processes, and wait for them. Returns the exit code; LOST if one has ended before the others."""
    from palestra.sweeps.places import last_line

    with _forwarding() as received, tempfile.TemporaryDirectory(prefix="palestra-ranks-") as folder:
        spawning, codes = multiprocessing.get_context("spawn"), Board(Path(folder, CODES))
        ranks = [spawning.Process(target=_work, args=(job, rank, num, folder, received)) for rank in range(num)]
        for each in ranks:
            each.start()
        lost = _await(ranks, codes)
        if lost is None:
            return max(int(codes.get(str(rank))) for rank in range(num))
    code = ranks[lost].exitcode or 0
    if received:
        return 128 + received[-1]
    if code - 128 in STOPPING:  # it alone was asked to leave
        return code
    if code != LOST:
        print(f"{job.run}: rank {lost} {exit_text(code)}", file=sys.stderr, flush=True)
    elif ranks[0].exitcode != LOST:  # rank 0, which prints here, could not say why
        print(last_line(job.run / "ranks" / f"{lost}.log"), file=sys.stderr, flush=True)
    return LOST


def _await(ranks: Sequence[BaseProcess], codes: Board) -> int | None:
    """Wait until all processes have ended. Returns the first that has not left in order; None: there is none.

    The others then have LEAVE_S to leave.
    """
    lost, deadline, running = None, math.inf, ranks
    while running:
        wait([each.sentinel for each in running], LOOK_S)
        running = [each for each in ranks if each.is_alive()]
        ended = [rank for rank, each in enumerate(ranks) if each not in running]
        if lost is None and (found := [r for r in ended if ranks[r].exitcode or not codes.check([str(r)])]):
            lost, deadline = found[0], time.monotonic() + LEAVE_S
            for each in running:
                each.terminate()
        for each in running if time.monotonic() > deadline else ():
            each.kill()
    return lost


@contextmanager
def _forwarding() -> Iterator[list[int]]:
    """A context in which signals go to all processes. Gives the list of those received.

    Processes begin with signals blocked, until their imports are done and they can leave in order.
    """
    received: list[int] = []

    def forward(number: int, frame: FrameType | None) -> None:
        received.append(number)
        for process in multiprocessing.active_children():
            os.kill(process.pid, number)  # type: ignore[arg-type]

    before = {number: signal.signal(number, forward) for number in heeded()}
    resource_tracker.ensure_running()  # which unblocks signals when it starts
    is_over = threading.Event()
    threading.Thread(target=is_over.wait, daemon=True).start()  # takes signals, now that this thread blocks them
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        yield received
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
        is_over.set()
        for number, handler in before.items():
            signal.signal(number, handler)


def _work(job: Job, rank: int, num: int, folder: str, received: Sequence[int]) -> None:
    """Train in one of the processes. folder: where they meet. received: signals that came before it was started."""
    os.setsid()  # signals from a terminal come by the launcher, once
    end_with_parent(parent_process().sentinel)  # type: ignore[union-attr]
    os.environ.update(Ranks(rank, num, rank, num).variables(folder))
    with exiting_on_signals():
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
        for number in received:
            os.kill(os.getpid(), number)
        code = _train(job)
        Board(Path(folder, CODES)).set(str(rank), str(code))


def _train(job: Job) -> int:
    from palestra.commands.failures import errors, one_line_errors, silent
    from palestra.commands.shell import console

    try:
        with one_line_errors(job.quiet):
            from palestra.storage.secrets import redacted
            from palestra.training.processes import ProcessLost

            trainer = _trainer_of(job, silent if job.quiet else console)
            try:
                trainer.fit()
            except ProcessLost as error:  # the process ends at once, as one that may be started again
                errors.print(redacted(str(error)))
                sys.stdout.flush()
                os._exit(LOST)
            return 128 + (trainer.run.signals.received or -128)
    except typer.Exit as left:
        return left.exit_code
    except Exception:
        traceback.print_exc()
        return 1


def _trainer_of(job: Job, shown: Any) -> Any:
    from palestra.config import reading_own
    from palestra.run.kinds import read_config
    from palestra.training.opening import named_classes
    from palestra.training.training import Training

    if is_begun(job.run):
        return Training.load(job.run, console=shown, trust=True)
    with reading_own():
        config = read_config(dict(job.config), [])
        trainer = named_classes(config)[0](config, console=shown, origin=job.origin)
    trainer.run.name, trainer.run.place = job.name, job.run
    return trainer
