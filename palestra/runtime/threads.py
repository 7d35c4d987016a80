"""What training asks of its process, for as long as it lasts."""

import gc
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import scipy.linalg.cython_blas  # noqa: F401 (its BLAS is what compiled loops multiply with: loaded, it can be limited)
import torch
from numba.core.event import Event, Listener, install_listener
from threadpoolctl import threadpool_limits

from palestra.config import ConfigError, ConfigErrorItem

COMPILING = "compiling kernels; this takes up to ten seconds, the first time only"


@contextmanager
def limited_threads(num_threads: int) -> Iterator[None]:
    """Operations on a CPU may take so many, of torch as of BLAS; afterwards as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        with threadpool_limits(num_threads, user_api="blas"):
            yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def memory_needed(path: str) -> Iterator[None]:
    """Let a lack of memory be an error of the config, at a path. Each library has its own way to say it."""
    try:
        yield
    except (MemoryError, OverflowError, RuntimeError) as error:
        first = str(error).splitlines()[0] if str(error) else "out of memory"
        if isinstance(error, RuntimeError) and not re.search("allocat|out of memory|overflow", first):
            raise
        raise ConfigError(
            [ConfigErrorItem(path, f"expected a smaller number, because this does not fit in memory: {first}")]
        ) from error


@contextmanager
def frozen_garbage() -> Iterator[None]:
    """The garbage collector looks at new objects alone: walking again and again over all that the libraries hold costs
    a short step of training several percent."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


class CompilingNotice(Listener):
    """Says once that kernels are compiled, when the first one is: those that lie in numba's cache are not."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._is_told = False

    @contextmanager
    def given(self) -> Iterator[None]:
        with install_listener("numba:compile", self):
            yield

    def on_start(self, event: Event) -> None:
        if not self._is_told:
            self._is_told = True
            self._say(COMPILING)

    def on_end(self, event: Event) -> None:
        pass
