"""A journal of calls: a file of JSON lines that grows at its end, and is on the disk before anybody goes on."""

import asyncio
import fcntl
import hashlib
import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Lock
from typing import Any

from palestra.storage.disk import Folder, OpenFile, RunFolderError
from palestra.storage.records_file import lines_of
from palestra.storage.stored_files import StoredFile
from palestra.text.servers.ledger import MOST, Cost, Usage

Line = Mapping[str, Any]
Waiting = tuple[bytes, asyncio.Future[None]]
"""a line that is to be written, and who waits for it"""


class Journal:
    """One file. `write` is called in the client's thread; one sync serves all lines that wait for it.

    It is read before anything is added. The file is made with its first line; a line that a kill has cut goes first.
    """

    def __init__(self, folder: Folder, name: str) -> None:
        self.folder, self.name, self.path = folder, name, folder.path / name
        self._file: OpenFile | None = None
        self._is_read = False
        self._waiting: list[Waiting] = []
        self._is_writing = False
        self._disk = ThreadPoolExecutor(1, "journal")  # its thread waits for the disk, and starts with the first line
        self._lock = Lock()
        self._size, self._sha256 = 0, hashlib.sha256()  # of what is synced

    def lines(self) -> Iterator[Line]:
        """Read the lines that are there. Raises RunFolderError for a damaged one."""
        is_first, self._is_read = not self._is_read, True
        if self.folder.kind(self.name) is None:
            return
        with self.folder.reading(self.name) as file:
            for number, line in enumerate(lines_of(file, file.size), start=1):
                if not line.is_whole:
                    break
                try:
                    found = _checked(json.loads(line.content or b""))
                except (ValueError, RecursionError) as error:
                    raise RunFolderError(f"{self.path} is damaged in line {number}: {error!s:.200}") from None
                if is_first:
                    self._note((line.content or b"") + b"\n")
                yield found

    def _note(self, content: bytes) -> None:
        with self._lock:
            self._size += len(content)
            self._sha256.update(content)

    def stored(self) -> StoredFile:
        """Return the size and the SHA-256 of what is on the disk for good."""
        with self._lock:
            return StoredFile(size=self._size, sha256=self._sha256.hexdigest())

    async def write(self, line: Line) -> None:
        """Write a line, and return once it is on the disk. Raises OSError, RunFolderError."""
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        self._waiting.append((json.dumps(line).encode() + b"\n", done))
        if not self._is_writing:
            self._is_writing = True
            loop.call_soon(self._begin, loop)  # when all that is ready now has added its lines
        await done

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let all lines that wait be written by the disk's thread."""
        taken, self._waiting = self._waiting, []
        self._disk.submit(self._commit, taken, loop)

    def _commit(self, taken: list[Waiting], loop: asyncio.AbstractEventLoop) -> None:
        failure: Exception | None = None
        try:
            self._append(b"".join(line for line, _ in taken))
        except Exception as error:
            failure = error
        loop.call_soon_threadsafe(self._end, taken, failure, loop)

    def _end(self, taken: list[Waiting], failure: Exception | None, loop: asyncio.AbstractEventLoop) -> None:
        """Wake those who wait for these lines, and go on with what has been added meanwhile."""
        for _, done in taken:
            if not done.done():
                done.set_result(None) if failure is None else done.set_exception(failure)
        if self._waiting:
            self._begin(loop)
        else:
            self._is_writing = False

    def _append(self, content: bytes) -> None:
        if self._file is None:
            self._file = self._opened()
        try:
            self._file.append(content)
            self._file.sync()
        except OSError:
            with suppress(OSError):
                self._file.truncate(self._size)
            raise
        self._note(content)

    def _opened(self) -> OpenFile:
        """Open the file for this process alone, and remove a line that a kill has cut."""
        assert self._is_read, "a journal is read before anything is added"
        file = self.folder.make().append(self.name)
        try:
            fcntl.flock(file.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if any(b"\n" in piece for piece in file.pieces(file.size, self._size)):
                raise BlockingIOError
            file.truncate(self._size)
        except OSError as error:
            file.close()
            if isinstance(error, BlockingIOError):
                raise OSError("another process makes calls for the run") from None
            raise
        return file

    def close(self) -> None:
        self._disk.shutdown()
        if self._file is not None:
            self._file.close()
            self._file = None


def _checked(line: Line) -> Line:
    """Return a line of a journal. Raises ValueError for what is none: the file may be a stranger's."""
    match line:
        case {"kind": "asked", "call": str(), "attempt": int(), "run": str(), "worst": dict(cost)}:
            pass
        case {"kind": "answered", "call": str(), "attempt": int(), "choices": list(choices), "spent": dict(cost)}:
            for each in choices:
                if not isinstance(each, dict) or not isinstance(each.get("text"), str):
                    raise ValueError("expected the text of an answer, got none")
                if each.get("stop") not in ("stop", "length"):
                    raise ValueError(f"expected 'stop' or 'length', got {each.get('stop')!r:.40}")
        case {"kind": "failed", "call": str(), "attempt": int(), "spent": dict(cost)}:
            pass
        case _:
            raise ValueError("expected a call that was asked, was answered or has failed, got something else")
    usage = line.get("usage") or dict.fromkeys(Usage._fields, 0)
    for numbers, names in ((cost, Cost._fields), (usage, Usage._fields)):
        if not isinstance(numbers, dict) or numbers.keys() != set(names):
            raise ValueError(f"expected numbers of {', '.join(names)}, got {numbers!r:.80}")
        if not all(type(each) is int and 0 <= each < MOST for each in numbers.values()):
            raise ValueError(f"expected whole numbers that are not negative, got {numbers!r:.80}")
    return line
