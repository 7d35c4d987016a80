"""Processes in which torch's loaders read: they end with the run, which hears of their end where it awaits a batch.

torch tells of the death of a worker by a RuntimeError that its handler of SIGCHLD raises wherever the program is just
then, so also while a model computes. Inside `deaths_held`, that error waits for `next_of`.
"""

import errno
import io
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing import parent_process
from multiprocessing.queues import Queue
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data._utils import signal_handling

from palestra.runtime.signals import STOPPING, end_with_parent

MOST_SHARED = 100  # memories of tensors that a worker shares; each takes a file descriptor, and some 250 can be sent


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
    """Return the next batch.

    Raises StopIteration, what the loader raises, and RuntimeError if a worker has died, OSError if of too many files.
    """
    deaths.is_awaited = True
    try:
        if deaths.error is not None:
            raise deaths.error
        try:
            return next(batches)
        except (EOFError, ConnectionError):
            time.sleep(1.0)  # the death of a worker that was just sending is heard
            raise
    except RuntimeError as error:
        if f"exit code {errno.EMFILE}." in f"{error} {error.__cause__}":
            raise OSError(errno.EMFILE, f"a worker has ended: {os.strerror(errno.EMFILE)}") from error
        raise
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
    for number in set(STOPPING) - {signal.SIGTERM}:
        signal.signal(number, signal.SIG_IGN)
    torch.set_num_threads(1)
    Queue._on_queue_feeder_error = staticmethod(_end_without_files(Queue._on_queue_feeder_error))  # type: ignore[attr-defined]
    sys.excepthook = _end_without_files(sys.excepthook)
    owner = parent_process()
    assert owner is not None
    os.setpgid(0, 0)
    end_with_parent(owner.sentinel)


def _end_without_files(tell: Callable[..., Any]) -> Callable[..., Any]:
    """Let threads that send batches end the worker where no more files may be opened: no batch would come any more."""

    def hear(*arguments: Any) -> None:
        if any(isinstance(each, Exception) and os.strerror(errno.EMFILE) in f"{each}" for each in arguments):
            os._exit(errno.EMFILE)
        tell(*arguments)

    return hear


def end_workers_with_run(loader: Any) -> None:
    """Let the workers of a loader of the user's own begin as ours do, if it is one of torch's."""
    if isinstance(loader, DataLoader):
        loader.worker_init_fn = partial(_begin_both, loader.worker_init_fn)


def _begin_both(own: Callable[[int], Any] | None, worker: int) -> None:
    begin_worker(worker)
    if own is not None:
        own(worker)


def packed(state: Any) -> bytes:
    """Return what a worker is sent in place of a state with any number of tensors; ForkingPickler.loads unpacks it.

    The first memories of tensors are shared, as torch does it, and all others are copied.
    """
    file = io.BytesIO()
    _Packing(file).dump(state)
    return file.getvalue()


class _Packing(ForkingPickler):
    """Sends a plain tensor as a view of a memory, which several tensors may have in common.

    memories: each as bytes, uint8, by the address of the storage.
    """

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.memories: dict[int, Tensor] = {}

    def reducer_override(self, thing: Any) -> Any:
        is_dense = type(thing) is Tensor and thing.layout == torch.strided and thing.device.type == "cpu"
        if not is_dense or thing.requires_grad or thing.is_quantized or thing.is_conj() or thing.is_neg():
            return NotImplemented
        storage = thing.untyped_storage()
        if (memory := self.memories.get(storage._cdata)) is None:
            memory = self.memories[storage._cdata] = torch.empty(0, dtype=torch.uint8).set_(storage)
        if thing is not memory:
            return _view, (memory, thing.dtype, thing.storage_offset(), tuple(thing.shape), thing.stride())
        is_shared = len(self.memories) <= MOST_SHARED
        return NotImplemented if is_shared else (_memory, (memory.numpy().tobytes(),))


def _view(memory: Tensor, dtype: torch.dtype, *where: Any) -> Tensor:
    return torch.empty(0, dtype=dtype).set_(memory.untyped_storage(), *where)


def _memory(content: bytes) -> Tensor:
    return torch.tensor(bytearray(content), dtype=torch.uint8)
