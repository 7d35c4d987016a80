"""Processes in which torch's loaders read: they end with the run, which hears of their end where it awaits a batch.

torch tells of the death of a worker by a RuntimeError that its handler of SIGCHLD raises wherever the program is just
then, so also while a model computes. Inside `deaths_held`, that error waits for `next_of`.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing import parent_process
from typing import Any

import torch
from torch.utils.data import DataLoader
from torch.utils.data._utils import signal_handling

from palestra.runtime.signals import end_with_parent


class Deaths:
    """What is known of the deaths of workers.

    is_held: whether they are told by `next_of` alone. error: one that was not told yet.
    """

    def __init__(self) -> None:
        self.is_held = self.is_awaited = False
        self.error: RuntimeError | None = None

    def hear(self, tell: Callable[..., Any], *arguments: Any) -> None:
        """Let torch's handler tell of a death; its error is kept unless a batch is awaited."""
        try:
            tell(*arguments)
        except RuntimeError as error:
            if self.is_awaited:
                raise
            self.error = error


deaths = Deaths()  # a process has one handler of a signal


def next_of(batches: Iterator[Any]) -> Any:
    """Return the next batch. Raises StopIteration, what the loader raises, and RuntimeError if a worker has died."""
    deaths.is_awaited = True
    try:
        if deaths.error is not None:
            raise deaths.error
        return next(batches)
    finally:
        deaths.is_awaited, deaths.error = False, None


@contextmanager
def deaths_held() -> Iterator[None]:
    """A context in which the death of a worker is told by `next_of` alone; only the main thread has such handlers."""
    if deaths.is_held or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal_handling._set_SIGCHLD_handler()  # which torch itself calls once, at its first loader with workers
    before = signal.getsignal(signal.SIGCHLD)
    assert callable(before)
    signal.signal(signal.SIGCHLD, partial(deaths.hear, before))
    deaths.is_held = True
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, before)
        deaths.is_held, deaths.error = False, None


def begin_worker(worker: int) -> None:
    """Let a worker ignore Ctrl-C, which reaches every process of a terminal, and end with the process that trains.

    A forked worker holds the lock of the run, too: it must not outlive the process that trains.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    owner = parent_process()
    assert owner is not None
    os.setpgid(0, 0)
    end_with_parent(owner.sentinel)


def end_workers_with_run(loader: Any) -> None:
    """Let the workers of a loader of the user's own begin as ours do, if it is one of torch's."""
    if isinstance(loader, DataLoader):
        loader.worker_init_fn = partial(_begin_both, loader.worker_init_fn)


def _begin_both(own: Callable[[int], Any] | None, worker: int) -> None:
    begin_worker(worker)
    if own is not None:
        own(worker)
