"""Locks between processes: a locked file with the id and the machine of the process that holds it."""

import fcntl
import logging
import math
import os
import platform
import re
import time
from contextlib import suppress
from pathlib import Path

from palestra.storage.disk import Folder, OpenFile, RefusedPathError, RunFolderError

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

        Raises OSError, and RefusedPathError for anything but a file, and where files cannot be locked.
        """
        file = folder.append(name)
        tell_at_s = time.monotonic() + TELL_S
        while not _is_locked(file, folder.path / name, fcntl.LOCK_EX):
            if not wait:
                file.close()
                return None
            if time.monotonic() > tell_at_s:
                tell_at_s = math.inf
                logger.warning("waiting for process %s, which holds %s", holder(folder, name), folder.path / name)
            time.sleep(POLL_S)
        with suppress(OSError):  # on a full disk the lock holds, only its file does not name the holder
            file.truncate(0)
            file.append(f"{os.getpid()} on {platform.node()}".encode())
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
        return not _is_locked(file, folder.path / name, fcntl.LOCK_SH)


def in_use(folder: Folder) -> str:
    """Say that another process holds the lock of a folder, for a message."""
    return f"{folder.path} is in use by process {holder(folder, 'lock')}; wait for it or stop it"


def holder(folder: Folder, name: str) -> str:
    """The id of the process that holds a lock, and its machine if that is another one, for a message."""
    end_s = time.monotonic() + NAME_S
    while time.monotonic() < end_s:
        with folder.reading(name) as file:
            if match := re.fullmatch(rb"([0-9]{1,19}) on ([\w.-]{0,255})", b"".join(file.pieces(300))):
                return (match[1] if match[2].decode() == platform.node() else match[0]).decode()
        time.sleep(POLL_S)
    return "of unknown id"


def lock_within(file: OpenFile, path: Path, seconds: float) -> bool:
    """Lock a file that has content of its own, until it is closed.

    Gives False if another process still holds it after so many seconds.
    """
    end_s = time.monotonic() + seconds
    while not _is_locked(file, path, fcntl.LOCK_EX):
        if time.monotonic() > end_s:
            return False
        time.sleep(POLL_S)
    return True


def _is_locked(file: OpenFile, path: Path, how: int) -> bool:
    """Lock a file, unless another process holds it. Gives whether it is locked.

    Raises RefusedPathError where files cannot be locked, as on some file systems of clusters.
    """
    try:
        fcntl.flock(file.descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        expected = "expected a file system on which files can be locked (flock)"
        raise RefusedPathError(f"{path}: {expected}, got one that answers: {error.strerror}") from error
    return True
