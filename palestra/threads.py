"""How many threads operations on a CPU may take."""

from collections.abc import Iterator
from contextlib import contextmanager

import scipy.linalg.cython_blas  # noqa: F401 (its BLAS is what compiled loops multiply with: loaded, it can be limited)
import torch
from threadpoolctl import threadpool_limits


@contextmanager
def limited_threads(num_threads: int) -> Iterator[None]:
    """As many for torch as for BLAS; afterwards as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        with threadpool_limits(num_threads, user_api="blas"):
            yield
    finally:
        torch.set_num_threads(before)
