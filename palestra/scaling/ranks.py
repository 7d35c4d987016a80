"""Ranks: the processes of one run, as the environment variables say that their launcher sets, torchrun or palestra.

Those of palestra's own launcher meet in a folder that nobody else may enter, those of torchrun in its store.
"""

import os
import sys
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple, Self

CONNECTING_S = 2.0  # of one try to reach the store of the run
TELLING_S = 5.0  # to reach the store of the run, for a process that has failed
PLACE = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
FOLDER = "PALESTRA_RANKS"  # the variable that names the folder where processes of palestra's launcher meet


class Board:
    """What processes of one machine write for each other: a file for each key, in a folder that is theirs alone.

    Unlike torch's FileStore it knows no lock, which a process that is stopped could keep. Raises OSError.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)

    def set(self, key: str, value: str) -> None:
        self._written(key, value).replace(self.folder / key)

    def compare_set(self, key: str, expected: str, value: str) -> None:
        """Set a key that has no value yet; `expected` is empty."""
        written = self._written(key, value)
        with suppress(FileExistsError):
            (self.folder / key).hardlink_to(written)
        written.unlink()

    def get(self, key: str) -> bytes:
        return (self.folder / key).read_bytes()

    def check(self, keys: list[str]) -> bool:
        return all((self.folder / key).exists() for key in keys)

    def _written(self, key: str, value: str) -> Path:
        path = self.folder / f"{key}.{os.getpid()}"
        path.write_text(value)
        return path


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
        """Return the place that a launcher has given to this process; alone if none has started it."""
        said = os.environ
        if "TORCHELASTIC_RUN_ID" not in said and FOLDER not in said:
            return cls()
        restarts = ("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS")
        return cls(*(int(said[name]) for name in PLACE), *(int(said.get(name, 0)) for name in restarts))

    def variables(self, folder: str) -> dict[str, str]:
        """Return the environment variables of one of palestra's launcher: what `here` reads, and loopback alone.

        folder: where the processes meet.
        """
        lo = "lo" if sys.platform == "linux" else "lo0"
        place = dict(zip(PLACE, map(str, self), strict=False))
        return {FOLDER: folder, "GLOO_SOCKET_IFNAME": lo, "NCCL_SOCKET_IFNAME": lo, **place}

    def stores(self, number: int, timeout_s: float) -> tuple[Any, Any]:
        """Return what all processes read and write about their number-th connection, counted from 1, and torch's part.

        Raises RuntimeError if the launcher, or rank 0, that keeps it is not there within the time.
        """
        from torch.distributed import FileStore, PrefixStore, TCPStore

        if folder := os.environ.get(FOLDER):
            return Board(Path(folder, str(number))), FileStore(f"{folder}/{number}.torch")
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        keeps = self.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        limit = timedelta(seconds=min(CONNECTING_S, timeout_s))
        deadline = time.monotonic() + timeout_s
        while True:  # in short pieces, for signals are handled between them
            try:
                store = TCPStore(address, port, None, keeps, limit, wait_for_workers=False, multi_tenant=True)
                store.set_timeout(timedelta(seconds=timeout_s))
                own: Any = PrefixStore(f"palestra/{self.restart}/{number}", store)
                return own, PrefixStore("group", own.clone())
            except RuntimeError:
                if time.monotonic() > deadline:
                    raise

    def notes(self) -> list[str]:
        """Return what rank 0 tells at the start: who else reaches the store of torchrun."""
        if self.rank or self.num == 1 or FOLDER in os.environ:
            return []
        store = f"torchrun's store, {os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']},"
        return [f"{store} listens on every interface, and whoever reaches it can run code as you (docs/replicas.md)"]

    def tell_failure(self, error: Exception) -> None:
        """Let the others know why this process cannot begin with them; one that has connected has told it already."""
        if self.num > 1:
            with suppress(RuntimeError, OSError):  # the launcher may have ended
                fail(
                    self.stores(1, TELLING_S)[0], f"rank {self.rank} has failed: {type(error).__name__}: {error}", True
                )


def fail(store: Any, why: str, has_failed: bool) -> None:
    """Write into a store why a process cannot go on, unless another one has. has_failed: itself, and not another."""
    store.compare_set("failed", "", f"{int(has_failed)}{why}")
