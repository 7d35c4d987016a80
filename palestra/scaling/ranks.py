"""Ranks: the processes that torchrun's launcher has started for one run, as its environment variables say."""

import os
from typing import NamedTuple, Self


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
