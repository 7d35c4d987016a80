"""The manifest.json of a checkpoint, which contains its own SHA-256.

The file may be damaged or forged, so `Manifest` declares every key and type that it may have, and anything else is an
error.
"""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field

from palestra.storage.disk import Folder
from palestra.storage.facts import Count, FileName
from palestra.storage.records_file import RecordsThen
from palestra.storage.segments import BUFFERS_FROM_CHECKPOINT, StoredRows
from palestra.storage.stored_files import SealedEntry, StoredFile, having, raising_damaged

FORMAT: Literal[4] = 4  # 4 added the size of every file
MANIFEST, STATE, TENSORS = "manifest.json", "state.json", "tensors.safetensors"


class Manifest(SealedEntry):
    """The list of what a checkpoint holds, and in which files.

    is_due: whether it was saved at an interval of the config, not because of a signal. records: the records file at
    that time. versions, machine: where it was written. files: those in the checkpoint's folder. buffers: the replay
    rows by buffer.
    """

    file: ClassVar = MANIFEST

    format: Literal[4]
    number: Annotated[int, Field(ge=0, lt=10**18)]
    is_due: bool
    counters: dict[str, Count]
    records: RecordsThen
    versions: dict[str, str | None]
    machine: dict[str, str | int | None]
    files: Annotated[dict[FileName, StoredFile], having(STATE, TENSORS)]
    buffers: dict[str, StoredRows]

    def segments(self) -> dict[str, StoredFile]:
        """The segments in `buffers/` that the checkpoint needs, by name."""
        return {
            segment.file.removeprefix(BUFFERS_FROM_CHECKPOINT): segment.stored
            for rows in self.buffers.values()
            for segment in rows.segments
            if segment.file.startswith(BUFFERS_FROM_CHECKPOINT)
        }

    @classmethod
    def read(cls, folder: Folder) -> Self:
        """The manifest of the checkpoint in `folder`.

        Raises DamagedError if it differs from what was written, CheckpointError if it has another format.
        """
        with raising_damaged(MANIFEST):
            content = folder.read(MANIFEST)
        return cls.from_bytes(content, f"checkpoint {folder.path}")
