"""Settings of the process while it trains: threads, garbage collection, a message about compilation."""

import gc
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager

import scipy.linalg.cython_blas  # noqa: F401 (kernels multiply with its BLAS, whose threads can be limited once it is loaded)
import torch
from numba.core.event import Event, Listener, install_listener
from threadpoolctl import ThreadpoolController

from palestra.runtime.starting import without_garbage_collection

COMPILING = "compiling kernels; this takes up to twenty seconds, the first time only"


def available_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def limited_threads(num_threads: int) -> Iterator[None]:
    """Limit torch's operations on a CPU to so many threads inside the block, and products of compiled loops to one.

    The BLAS of compiled loops has threads of its own. They would wait for the cores on which torch's threads still spin
    after an operation: with two threads on two cores an opt step of any network would take several times as long.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    pools = ThreadpoolController()
    others = pools.select(threading_layer="pthreads")
    try:
        with pools.limit(limits=num_threads, user_api="blas"), others.limit(limits=1):
            yield
    finally:
        torch.set_num_threads(before)


def join_all(threads: Iterable[threading.Thread]) -> None:
    """Wait until threads have ended, for the operating system too, where it tells (Linux).

    A thread is over for Python before its libraries have cleaned up after it, and what is forked meanwhile finds their
    locks locked for ever: those of MKL's memory, for instance, without which no matrices are multiplied.
    """
    for thread in threads:
        thread.join()
        while os.path.exists(f"/proc/self/task/{thread.native_id}"):
            time.sleep(0.0001)


@contextmanager
def frozen_garbage() -> Iterator[None]:
    """Exempt all objects that exist now from garbage collection inside the block.

    Searching those of the libraries again and again costs several percent of a short opt step.
    """
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


class CompilingNotice(Listener):
    """Calls `say` once, when the first kernel is compiled.

    Kernels in numba's cache are not compiled. Meanwhile there is no garbage collection: it would search a million
    objects again and again that numba still needs.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._was_said = False
        self._depth = 0  # a kernel that another one calls is compiled inside of it
        self._outermost = ExitStack()

    @contextmanager
    def listening(self) -> Iterator[None]:
        with install_listener("numba:compile", self):
            yield

    def on_start(self, event: Event) -> None:
        if not self._was_said:
            self._was_said = True
            self._say(COMPILING)
        if self._depth == 0:
            self._outermost.enter_context(without_garbage_collection())
        self._depth += 1

    def on_end(self, event: Event) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._outermost.close()
