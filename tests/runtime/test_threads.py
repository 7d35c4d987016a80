"""How many threads a training takes, and when they are over."""

import os
import sys
import threading
from collections import Counter

import pytest
import torch
from threadpoolctl import threadpool_info

from palestra.runtime.threads import join_all, limited_threads


def threads_of_blas() -> Counter[tuple[str, int]]:
    """How the libraries make their threads, and how many."""
    infos = (info for info in threadpool_info() if info["user_api"] == "blas")
    return Counter((info.get("threading_layer", "openmp"), info["num_threads"]) for info in infos)


def test_torch_takes_what_the_config_says_and_products_of_compiled_loops_one() -> None:
    """Whose libraries make threads by themselves: torch's would spin on the cores that these wait for."""
    before = torch.get_num_threads(), threads_of_blas()
    with limited_threads(2):
        assert torch.get_num_threads() == 2
        assert threads_of_blas().keys() <= {("pthreads", 1), ("openmp", 2)}
        assert threads_of_blas()["pthreads", 1] >= 1
        with limited_threads(1):
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    assert (torch.get_num_threads(), threads_of_blas()) == before


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells which threads of a process there are")
def test_a_thread_that_was_waited_for_is_over_for_the_system_too() -> None:
    threads = [threading.Thread(target=lambda: torch.ones(64, 64) @ torch.ones(64, 64)) for _ in range(20)]
    for thread in threads:  # most of those that are only joined are still there
        thread.start()
        join_all([thread])
        assert str(thread.native_id) not in os.listdir("/proc/self/task")
