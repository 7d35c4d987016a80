"""Ranks: the processes that torchrun's launcher has started for one run, as its environment variables say."""

import os
import time
from contextlib import suppress
from datetime import timedelta
from typing import Any, NamedTuple, Self

CONNECTING_S = 2.0  # of one try to reach the store of the run
TELLING_S = 5.0  # to reach the store of the run, for a process that has failed


class Ranks(NamedTuple):
    """The place of this process among those of its run.

    rank: its number; rank 0 leads. num: of processes. local_rank, num_local: the same among those of this machine.
    restart: how often the launcher has started them again. max_restarts: how often it may.
    """

    rank: int = 0
    num: int = 1
    local_rank: int = 0
    num_local: int = 1
    restart: int = 0
    max_restarts: int = 0

    @classmethod
    def here(cls) -> Self:
        """Return the place that torchrun has given to this process; alone if torchrun has not started it."""
        said = os.environ
        if "TORCHELASTIC_RUN_ID" not in said:
            return cls()
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
        restarts = ("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS")
        return cls(*(int(said[name]) for name in names), *(int(said.get(name, 0)) for name in restarts))

    def store(self, number: int, timeout_s: float) -> Any:
        """Return what all processes read and write about their number-th connection, counted from 1.

        Raises RuntimeError if the launcher, or rank 0, that keeps it is not there within the time.
        """
        from torch.distributed import PrefixStore, TCPStore

        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        keeps = self.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        limit, deadline = timedelta(seconds=min(CONNECTING_S, timeout_s)), time.monotonic() + timeout_s
        while True:  # in short pieces, for signals are handled between them
            try:
                store = TCPStore(address, port, None, keeps, limit, wait_for_workers=False, multi_tenant=True)
                store.set_timeout(timedelta(seconds=timeout_s))
                return PrefixStore(f"palestra/{self.restart}/{number}", store)
            except RuntimeError:
                if time.monotonic() > deadline:
                    raise

    def tell_failure(self, error: Exception) -> None:
        """Let the others know why this process cannot begin with them; one that has connected has told it already."""
        if self.num > 1:
            with suppress(RuntimeError):  # the launcher may have ended
                fail(self.store(1, TELLING_S), f"rank {self.rank} has failed: {type(error).__name__}: {error}", True)


def fail(store: Any, why: str, has_failed: bool) -> None:
    """Write into a store why a process cannot go on, unless another one has. has_failed: itself, and not another."""
    store.compare_set("failed", "", f"{int(has_failed)}{why}")
