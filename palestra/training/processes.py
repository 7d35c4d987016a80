"""A training in one of several processes: how it begins with the others, and how the failures of all are told."""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import chain
from pathlib import Path
from typing import Any

from palestra.config import ConfigError, user_class_hashes
from palestra.run.branching import tree_differences
from palestra.run.run_checkpoints import stored_config
from palestra.scaling.link import Link, Notice, RankLost
from palestra.scaling.means import LockstepError
from palestra.storage.disk import RunFolderError
from palestra.storage.facts import versions
from palestra.storage.manifest import StoredRows
from palestra.storage.run_folder import RunFolder
from palestra.training.checks import AnyTraining, TrainingFailed, resume_hint


class ProcessLost(TrainingFailed):
    """Another process of the run has ended, or is late; those that are started again go on from the last checkpoint."""


NOTHING = Notice(False, 0.0)
WATCH_S = 0.5  # between looks at the process that has started this one


@contextmanager
def linked(training: AnyTraining) -> Iterator[None]:
    """The context of one `fit` in which this process is connected to the others of its run.

    Raises ConfigError if there are none although the config has several, or if another has another config, versions or
    classes; TrainingFailed if another process ends or fails, or comes too late.
    """
    replica, config = training.replica, training.config
    if not replica.heads:
        yield
        return
    if replica.ranks.num == 1:
        if (num := config.count_processes()) > 1:
            ways = f"`palestra train FILE` and `torchrun --nproc-per-node {num} -m palestra -- train FILE --run DIR`"
            expected = f"expected 1 in a program that torchrun has not started, got {num}; {ways} start them"
            raise ConfigError.at("execution.num_processes", expected)
        yield
        return
    link = replica.link = replica.link or _make_link(training)
    try:
        _require_the_same(training, link)
        yield
        link.gather("the end of a fit", None, NOTHING)
    except RankLost as error:
        link.fail(str(error), error.has_failed)
        raise _failed(error, training) from error
    except LockstepError as error:
        link.fail(str(error), has_failed=True)
        raise TrainingFailed(str(error), *_hints(training)) from error
    except BaseException as error:
        why = error.why if isinstance(error, TrainingFailed) else f"{type(error).__name__}: {error}"
        link.fail(f"rank {replica.ranks.rank} has failed: {why}", has_failed=True)
        raise


def _hints(training: AnyTraining) -> list[str]:
    return [resume_hint(training.run.folder)] if isinstance(training.run.place, RunFolder) else []


def _failed(error: RankLost, training: AnyTraining) -> TrainingFailed:
    return (TrainingFailed if error.has_failed else ProcessLost)(str(error), *_hints(training))


def _make_link(training: AnyTraining) -> Link:
    ranks = training.replica.ranks
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    link = Link(ranks, training.config.execution.timeout_s, lambda: f"opt step {training.opt_steps}")
    link.waiting = lambda: training.run.time_log.during("waiting")
    try:
        link.open()
    except RankLost as error:
        if error.has_failed and ranks.local_rank:  # one process of each machine says it
            _print_to(os.open(os.devnull, os.O_WRONLY))
        raise _failed(error, training) from error
    return link


def _end_with(parent: int) -> None:
    """End this process once the launcher that has started it is gone."""
    while os.getppid() == parent:
        time.sleep(WATCH_S)
    os._exit(1)


def _require_the_same(training: AnyTraining, link: Link) -> None:
    """Raise ConfigError if another process computes something else than rank 0."""
    config = training.config
    own = {"config": stored_config(config), "versions": versions(), "user_classes": user_class_hashes(config)}
    of_all, _ = link.gather("what is computed", own, NOTHING)
    for rank, each in enumerate(of_all):
        for change in tree_differences(of_all[0], each):
            key = change.key.removeprefix("config.")
            raise ConfigError.at(
                key, f"expected {change.before} in every process, as in rank 0, got {change.after} in rank {rank}"
            )


@contextmanager
def led(training: AnyTraining, open_run: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
    """A context in which the leader has opened the run, of which all processes then know the folder."""
    replica = training.replica
    if replica.leads:
        with open_run():
            if replica.link is not None:
                _share_folder(training, replica.link)
            yield
    else:
        with _beside(training) if replica.heads else nullcontext():
            yield


@contextmanager
def _beside(training: AnyTraining) -> Iterator[None]:
    """The context of one `fit` in the head of a process that does not lead: it prints to a file in the run's folder."""
    run, link = training.run, training.replica.link
    assert link is not None
    _share_folder(training, link)
    if not link.prints_apart:
        log = run.folder.root.below("ranks").make().append(f"{training.replica.ranks.rank}.log")
        os.lseek(log.descriptor, 0, os.SEEK_END)
        _print_to(log.descriptor)
        log.close()
        link.prints_apart = True
    training.checkpoints.open_beside()
    with run.computing(training.is_saved):
        yield


def _print_to(descriptor: int) -> None:
    """Let all that this process prints go to an open file."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        os.dup2(descriptor, stream.fileno())


def _share_folder(training: AnyTraining, link: Link) -> None:
    """Let all processes know the run's folder, which rank 0 has made. Raises RunFolderError if one does not see it."""
    run, leads = training.run, training.replica.leads
    path = link.gather("the run's folder", str(run.folder.path.resolve()) if leads else None, NOTHING)[0][0]
    why = None
    if not leads:
        try:
            run.place = run.place if isinstance(run.place, RunFolder) else RunFolder.open(Path(path))
        except RunFolderError as error:
            why = f"rank {training.replica.ranks.rank} does not see the run's folder: {error}"
    for each in link.gather("who sees the run's folder", why, NOTHING)[0]:
        if each is not None:
            raise RunFolderError(each)


class RowsElsewhere:
    """Lets the processes of a run write the rows of their replay buffers into one checkpoint."""

    def __init__(self, link: Link) -> None:
        self.link, self.was_asked = link, False

    def ask(self, unfinished: str | None) -> dict[str, Any]:
        """In rank 0: let the others write into this folder, and return what they have written. Raises OSError.

        unfinished: None if the checkpoint cannot be saved.
        """
        self.was_asked = True
        self.link.gather("where rows go", unfinished, NOTHING)
        answers = self.link.gather("the rows", None, NOTHING)[0][1:] if unfinished is not None else []
        for answer in answers:
            if isinstance(answer, str):
                raise OSError(answer)
        rows = chain.from_iterable(answer.items() for answer in answers)
        return {name: StoredRows.model_validate(each) for name, each in rows}

    def answer(self, training: AnyTraining, buffers: dict[str, Any]) -> dict[str, Any] | None:
        """In other processes: write the rows of buffers where rank 0 says. Returns what is written; None if nothing."""
        unfinished = self.link.gather("where rows go", None, NOTHING)[0][0]
        if unfinished is None:
            return None
        stored, why = None, None
        try:
            stored = training.checkpoints.stored.store_rows(unfinished, buffers)
        except OSError as error:
            why = f"rank {self.link.ranks.rank}: {error}"
        told = {name: each.model_dump(mode="json") for name, each in (stored or {}).items()}
        self.link.gather("the rows", told if why is None else why, NOTHING)
        return stored
