"""The journal of a study: a file to which Optuna adds a line of JSON for each change.

It adds them under a lock that the kernel frees however a process ends. Each line is on the disk before the next one is
added. So only the last line can be torn, by a full disk or a power cut: no reader takes it, and whoever adds a line
cuts it off first.
"""

import json
import os
from contextlib import closing, suppress
from typing import Any

from optuna.storages.journal import BaseJournalBackend

from palestra.storage.disk import Folder, OpenFile, RunFolderError
from palestra.storage.lock import lock_within
from palestra.storage.records_file import MAX_LINE, lines_of

WAIT_S = 30.0  # for another process that adds a line
MAX_BYTES = 1 << 30  # that are read at once: millions of lines
BLOCK = 1 << 16  # bytes in which the begin of the last line is looked for at a time


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
        """Read the lines from a number on.

        Raises RunFolderError if one is damaged that is not the last, or there are too many.
        """
        number, offset = self._read if self._read[0] <= log_number_from else (0, 0)
        logs, is_damaged = [], False
        with self.folder.reading(self.name) as file:
            if file.size - offset > MAX_BYTES:
                raise RunFolderError(f"expected at most {MAX_BYTES} bytes in {self.path}, got {file.size}")
            for line in lines_of(file, file.size, offset):
                if not line.is_whole:
                    break
                if is_damaged:
                    raise RunFolderError(f"{self.path} is damaged in line {number + 1}: expected a mapping in JSON")
                log = None if line.content is None else _parsed(line.content)
                if log is None:
                    is_damaged = True
                    continue
                number, offset = number + 1, line.stop
                if number > log_number_from:
                    logs.append(log)
        self._read = (number, offset)
        return logs

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Add lines. Raises OSError, and RunFolderError if another process holds the file for too long."""
        with closing(self.folder.append(self.name)) as file:
            if not lock_within(file, self.path, WAIT_S):
                raise RunFolderError(f"{self.path} has been locked by another process for {WAIT_S:g} s")
            if file.size != self._sound_size and (sound := _sound_size(file)) < file.size:
                file.truncate(sound)
                file.sync()
            for log in logs:
                file.append(json.dumps(log, separators=(",", ":")).encode() + b"\n")
                file.sync()
            self._sound_size = file.size


def _parsed(line: bytes) -> dict[str, Any] | None:
    """Return the mapping in a line; None if there is none."""
    with suppress(ValueError, RecursionError):
        return log if isinstance(log := json.loads(line), dict) else None
    return None


def _sound_size(file: OpenFile) -> int:
    """Return the size of a file without its last line, if that is torn."""
    size = file.size
    is_whole = os.pread(file.descriptor, 1, max(size - 1, 0)) == b"\n"
    start = _begin_of_line(file, size - is_whole)
    is_sound = is_whole and size - start <= MAX_LINE
    return size if is_sound and _parsed(os.pread(file.descriptor, size - start, start)) is not None else start


def _begin_of_line(file: OpenFile, stop: int) -> int:
    """Return where the line begins that ends at `stop`."""
    while stop > 0:
        begin = max(stop - BLOCK, 0)
        if newline := os.pread(file.descriptor, stop - begin, begin).rfind(b"\n") + 1:
            return begin + newline
        stop = begin
    return 0
