"""The journal of a study: a file to which Optuna adds a line of JSON for each change, under a lock that the kernel
frees however a process ends.

Each line is on the disk before the next one is added. So only the last line can be torn, by a full disk or a power cut:
no reader takes it, and whoever adds a line cuts it off first.
"""

import json
import os
from collections.abc import Iterable
from typing import Any

from optuna.storages.journal import BaseJournalBackend

from palestra.storage.disk import Folder, OpenFile, RunFolderError
from palestra.storage.lock import lock_within

WAIT_S = 30.0  # for another process that adds a line
BLOCK = 4096  # bytes of the end that are looked at first


class JournalFile(BaseJournalBackend):
    """The journal in a file of a folder. A link, and a file with a second name, is refused."""

    def __init__(self, folder: Folder, name: str) -> None:
        self.folder, self.name = folder, name
        self.path = folder.path / name
        self._read = (0, 0)  # so many lines have been read, which have so many bytes
        self._sound_size: int | None = None  # that of the file when this process had added a line

    def make(self) -> None:
        """Make the file if it does not exist. Raises OSError, RefusedPathError."""
        self.folder.append(self.name).close()

    def read_logs(self, log_number_from: int) -> list[dict[str, Any]]:
        """The lines from a number on. Raises RunFolderError if one is damaged that is not the last."""
        number, offset = self._read if self._read[0] <= log_number_from else (0, 0)
        with self.folder.reading(self.name) as file:
            content = os.pread(file.descriptor, max(file.size - offset, 0), offset)
        lines = content.split(b"\n")[:-1]  # what comes after the last newline is not a whole line yet
        logs = []
        for place, line in enumerate(lines):
            log = _parsed(line)
            if log is None and place == len(lines) - 1:
                break
            if log is None:
                raise RunFolderError(f"{self.path} is damaged in line {number + 1}: expected a mapping in JSON")
            number, offset = number + 1, offset + len(line) + 1
            if number > log_number_from:
                logs.append(log)
        self._read = (number, offset)
        return logs

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Raises OSError, and RunFolderError if another process holds the file for too long."""
        file = self.folder.append(self.name)
        try:
            if not lock_within(file, WAIT_S):
                raise RunFolderError(f"{self.path} has been locked by another process for {WAIT_S:g} s")
            if file.size != self._sound_size and (sound := _sound_size(file)) < file.size:
                file.truncate(sound)
                file.sync()
            self._add(file, logs)
            self._sound_size = file.size
        finally:
            file.close()

    def _add(self, file: OpenFile, logs: Iterable[dict[str, Any]]) -> None:
        for log in logs:
            file.append(json.dumps(log, separators=(",", ":")).encode() + b"\n")
            file.sync()


def _parsed(line: bytes) -> dict[str, Any] | None:
    """The mapping in a line; None if there is none."""
    try:
        log = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return log if isinstance(log, dict) else None


def _sound_size(file: OpenFile) -> int:
    """The size of a file without its last line, if that is torn."""
    size, length = file.size, BLOCK
    while True:
        start = max(size - length, 0)
        tail = os.pread(file.descriptor, size - start, start)
        before, newline, last = tail.removesuffix(b"\n").rpartition(b"\n")
        if newline or start == 0:
            break
        length *= 2
    is_sound = not tail or (tail.endswith(b"\n") and _parsed(last) is not None)
    return size if is_sound else start + len(before) + len(newline)
