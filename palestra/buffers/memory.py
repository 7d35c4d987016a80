"""Memory for the rows of buffers: the address space is reserved at once, the memory is taken as rows arrive."""

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile

import numpy as np

NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if os.uname().sysname == "Linux" else 0)  # named since Python 3.13
STEP = 64 << 20


class NoRoom(Exception):
    """Rows do not fit in memory or on the disk. The message names size, place and remedy."""

    def __init__(self, num_bytes: int, folder: Path | None) -> None:
        where = "in memory" if folder is None else f"in replay_buffer.scratch_folder {folder}"
        less = "a smaller replay_buffer.capacity needs less"
        if folder is None:
            less += ", and a folder as replay_buffer.scratch_folder keeps the rows on its disk"
        gib = f"{num_bytes / (1 << 30):.3g} GiB"
        super().__init__(f"there is no room {where} for {gib} of the replay buffer: {less}")


@contextmanager
def room_for(num_bytes: int) -> Iterator[None]:
    """Turn allocation errors inside the block, for which numpy and torch raise different types, into NoRoom."""
    try:
        yield
    except (MemoryError, RuntimeError, ValueError, TypeError) as error:
        raise NoRoom(num_bytes, None) from error


class Reserved:
    """Reserves `num_bytes` bytes, 0 at first: in memory or, for more than fits there, in a file in `folder`.

    The file has no name, so that it vanishes with the process however that ends. Raises NoRoom.
    """

    def __init__(self, num_bytes: int, folder: Path | None) -> None:
        self.folder, self.taken = folder, 0
        try:
            if folder is None:
                self.pages = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE)
            else:
                self.file = TemporaryFile(dir=folder)  # noqa: SIM115 (open as long as this lives)
                self.file.truncate(num_bytes)
                self.pages = mmap.mmap(self.file.fileno(), num_bytes)
        except (OSError, OverflowError) as error:
            raise NoRoom(num_bytes, folder) from error
        if folder is None and hasattr(mmap, "MADV_HUGEPAGE"):  # reads rows drawn at random a third faster
            self.pages.madvise(mmap.MADV_HUGEPAGE)
        self.octets = np.frombuffer(self.pages, dtype=np.uint8)

    def take(self, num_bytes: int) -> None:
        """Announce that the first `num_bytes` will be written. A full disk raises NoRoom here; writing would crash."""
        num_bytes = min(num_bytes, len(self.octets))
        if self.folder is not None and num_bytes > self.taken and hasattr(os, "posix_fallocate"):
            wanted = min(num_bytes + STEP, len(self.octets))
            try:
                os.posix_fallocate(self.file.fileno(), self.taken, wanted - self.taken)
            except OSError as error:
                raise NoRoom(wanted, self.folder) from error
            self.taken = wanted
