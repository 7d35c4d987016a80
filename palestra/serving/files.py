"""The files that clients have uploaded: each has an id of ours, under which its content lies on the disk."""

import secrets
import threading
import time
from collections.abc import Iterator
from typing import Any

from palestra.serving.errors import ApiError, quoted
from palestra.storage.disk import MAX_BYTES, Folder
from palestra.storage.stored_files import (
    Count,
    DamagedError,
    Entry,
    Sha256,
    StoredFile,
    raising_damaged,
    read_checked,
    read_entry,
    to_json,
)

MOST_FILES = 10_000
MOST_FILE_BYTES = MAX_BYTES
MOST_BYTES = 4 << 30  # of all files
PIECE = 64 << 10  # bytes that are sent at a time


class FileFacts(Entry):
    """What is known of an uploaded file.

    number: in the order in which they came. filename: what the client says; it is never the name of a file here.
    """

    id: str
    number: Count
    filename: str
    purpose: str
    created_at: Count
    size: Count
    sha256: Sha256

    def shown(self) -> dict[str, Any]:
        """Return the file in OpenAI's shape."""
        return {
            **self.model_dump(include={"id", "created_at", "filename", "purpose"}),
            "object": "file",
            "bytes": self.size,
            "status": "processed",
        }


class Files:
    """The files in a folder: ID.data, and ID.json, without which there is no file. Several threads may use it."""

    def __init__(self, folder: Folder) -> None:
        self.folder, self._lock = folder.make(), threading.Lock()
        stored = [read_entry(folder, name, FileFacts) for name in folder.names() if name.endswith(".json")]
        self._files = {each.id: each for each in sorted(stored, key=lambda each: each.number)}
        folder.remove_files(lambda name: name.partition(".")[0] not in self._files)  # whose upload was killed

    def add(self, filename: str, purpose: str, content: bytes) -> FileFacts:
        """Keep a file. Raises ApiError if there are too many, OSError."""
        with self._lock:
            if len(self._files) >= MOST_FILES or sum(f.size for f in self._files.values()) + len(content) > MOST_BYTES:
                message = f"expected at most {MOST_FILES} files of {MOST_BYTES >> 30} GiB together, got more"
                raise ApiError(f"{message}; delete others first", "file", code="too_many_files")
            facts = FileFacts(
                id=f"file-{secrets.token_hex(12)}",
                number=1 + max((each.number for each in self._files.values()), default=0),
                filename=filename,
                purpose=purpose,
                created_at=int(time.time()),
                **StoredFile.of(content).model_dump(),
            )
            self.folder.write(f"{facts.id}.data", content)
            self.folder.write(f"{facts.id}.json", to_json(facts.model_dump()).encode())
            self._files[facts.id] = facts
        return facts

    def get(self, file_id: str, param: str = "file_id") -> FileFacts:
        """Return a file by its id. Raises ApiError."""
        if (facts := self._files.get(file_id)) is None:
            raise ApiError(f"{param}: there is no file {quoted(file_id)}", param, status=404, code="not_found")
        return facts

    def check(self, facts: FileFacts) -> None:
        """Read a file in small pieces. Raises CheckpointError if it differs from what was uploaded."""
        name = f"{facts.id}.data"
        with raising_damaged(name):
            if StoredFile.of_pieces(self.pieces(facts)) != StoredFile(size=facts.size, sha256=facts.sha256):
                raise DamagedError(f"{name} differs from what was written")

    def pieces(self, facts: FileFacts) -> Iterator[bytes]:
        """Yield a file's content. Between pieces no file is open, since nobody knows how long a client reads one."""
        for start in range(0, facts.size, PIECE):
            with self.folder.reading(f"{facts.id}.data") as file:
                piece = b"".join(file.pieces(start + PIECE, start))
            yield piece

    def content(self, facts: FileFacts) -> bytes:
        """Raises CheckpointError for a file that differs from what was uploaded."""
        return read_checked(self.folder, f"{facts.id}.data", StoredFile(size=facts.size, sha256=facts.sha256))

    def listed(self) -> list[FileFacts]:
        """Return all files, the oldest first."""
        return list(self._files.values())

    def remove(self, file_id: str) -> None:
        with self._lock:
            facts = self.get(file_id)
            self.folder.remove(f"{facts.id}.json")
            self.folder.sync()
            self.folder.remove(f"{facts.id}.data")
            del self._files[facts.id]
