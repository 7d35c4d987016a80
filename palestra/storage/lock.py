"""Locks between processes: a locked file with the id of the process that holds it."""

import fcntl
import logging
import math
import os
import re
import time
from contextlib import suppress

from palestra.storage.disk import Folder, OpenFile, RunFolderError

POLL_S = 0.01
TELL_S = 10.0  # after this time, a process that waits says which one it waits for
NAME_S = 0.5  # within this time, a process that has taken a lock has written its id

logger = logging.getLogger(__name__)


class Lock:
    """A lock that this process holds. The kernel frees it however the process ends."""

    def __init__(self, file: OpenFile) -> None:
        self.file = file

    @classmethod
    def take(cls, folder: Folder, name: str, wait: bool = False) -> "Lock | None":
        """Take the lock of that name; None if another process holds it and `wait` is False.

        Raises OSError, and RefusedPathError for anything but a file.
        """
        file = folder.append(name)
        tell_at_s = time.monotonic() + TELL_S
        while not _is_locked(file, fcntl.LOCK_EX):
            if not wait:
                file.close()
                return None
            if time.monotonic() > tell_at_s:
                tell_at_s = math.inf
                logger.warning("waiting for process %s, which holds %s", holder(folder, name), folder.path / name)
            time.sleep(POLL_S)
        with suppress(OSError):  # on a full disk the lock holds, only its file does not name the holder
            file.truncate(0)
            file.append(str(os.getpid()).encode())
        return cls(file)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *failure: object) -> None:
        self.free()

    def free(self) -> None:
        fcntl.flock(self.file.descriptor, fcntl.LOCK_UN)  # closing is not enough where a forked child shares the file
        self.file.close()


def take_or_refuse(folder: Folder, name: str, refusal: str | None = None) -> Lock:
    """Take the lock of that name. Raises RunFolderError if another process holds it.

    refusal: the message; None: that the folder is in use.
    """
    if (lock := Lock.take(folder, name)) is None:
        raise RunFolderError(refusal or in_use(folder))
    return lock


def is_held(folder: Folder, name: str) -> bool:
    """Whether a process holds the lock of that name; nothing is written. Raises OSError, RefusedPathError."""
    if folder.kind(name) is None:
        return False
    with folder.reading(name) as file:
        return not _is_locked(file, fcntl.LOCK_SH)


def in_use(folder: Folder) -> str:
    """Say that another process holds the lock of a folder, for a message."""
    return f"{folder.path} is in use by process {holder(folder, 'lock')}; wait for it or stop it"


def holder(folder: Folder, name: str) -> str:
    """The id of the process that holds a lock, for a message."""
    end_s = time.monotonic() + NAME_S
    while time.monotonic() < end_s:
        with folder.reading(name) as file:
            if match := re.fullmatch(rb"[0-9]{1,19}", b"".join(file.pieces(20))):
                return match[0].decode()
        time.sleep(POLL_S)
    return "of unknown id"


def lock_within(file: OpenFile, seconds: float) -> bool:
    """Lock a file that has content of its own, until it is closed.

    Gives False if another process still holds it after so many seconds.
    """
    end_s = time.monotonic() + seconds
    while not _is_locked(file, fcntl.LOCK_EX):
        if time.monotonic() > end_s:
            return False
        time.sleep(POLL_S)
    return True


def _is_locked(file: OpenFile, how: int) -> bool:
    """Lock a file, unless another process holds it. Gives whether it is locked."""
    try:
        fcntl.flock(file.descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
