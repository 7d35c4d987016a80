"""Memory that is reserved at once and taken little by little, as it is touched."""

import mmap
import os
from pathlib import Path
from tempfile import TemporaryFile

import numpy as np

NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if os.uname().sysname == "Linux" else 0)  # named since Python 3.13
STEP = 1 << 26


class Reserved:
    """`num_bytes` bytes, 0 at first: in memory or, for more than fits there, in a file in `folder`.

    The file has no name: it is gone with the process, however that ends. Raises OSError where there is no room.
    """

    def __init__(self, num_bytes: int, folder: Path | None) -> None:
        self.file = None if folder is None else TemporaryFile(dir=folder)  # noqa: SIM115 (as long as this lives)
        self.taken = 0
        if self.file is None:
            self.pages = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE)
            if hasattr(mmap, "MADV_HUGEPAGE"):  # what is drawn at random from much memory comes a third faster
                self.pages.madvise(mmap.MADV_HUGEPAGE)
        else:
            self.file.truncate(num_bytes)
            self.pages = mmap.mmap(self.file.fileno(), num_bytes)
        self.octets = np.frombuffer(self.pages, dtype=np.uint8)

    def take(self, num_bytes: int) -> None:
        """Say that the first `num_bytes` will be written: a disk without room is an error here, not a crash there."""
        num_bytes = min(num_bytes, len(self.octets))
        if self.file is not None and num_bytes > self.taken and hasattr(os, "posix_fallocate"):
            wanted = min(num_bytes + STEP, len(self.octets))
            os.posix_fallocate(self.file.fileno(), self.taken, wanted - self.taken)
            self.taken = wanted
