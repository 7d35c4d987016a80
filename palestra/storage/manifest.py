"""The manifest.json of a checkpoint, which contains its own SHA-256.

The file may be damaged or forged, so `Manifest` declares every key and type that it may have, and anything else is an
error.
"""

import hashlib
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, ValidationError

from palestra.storage.disk import Folder
from palestra.storage.facts import Entry, to_json
from palestra.storage.records_file import RecordsThen
from palestra.storage.segments import (
    BUFFERS_FROM_CHECKPOINT,
    CheckpointError,
    DamagedError,
    StoredFile,
    StoredRows,
    parse_json,
    raising_damaged,
)

FORMAT: Literal[4] = 4  # 4 added the size of every file
MANIFEST, STATE, TENSORS = "manifest.json", "state.json", "tensors.safetensors"

Count = Annotated[int, Field(ge=0)]
FileName = Annotated[str, Field(pattern=r"^[^./\\\x00][^/\\\x00]*$")]


def _require_both(files: dict[str, StoredFile]) -> dict[str, StoredFile]:
    if not {STATE, TENSORS} <= files.keys():
        raise ValueError(f"expected {STATE} and {TENSORS} among the files, got {', '.join(sorted(files))}")
    return files


class Manifest(Entry):
    """What a checkpoint holds, and in which files.

    is_due: saved at an interval of the config, not because of a signal. records: the records file at that time.
    versions, machine: where it was written. files: those in the checkpoint's folder. buffers: the replay rows by
    buffer.
    """

    format: Literal[4]
    number: Annotated[int, Field(ge=0, lt=10**18)]
    is_due: bool
    counters: dict[str, Count]
    records: RecordsThen
    versions: dict[str, str | None]
    machine: dict[str, str | int | None]
    files: Annotated[dict[FileName, StoredFile], AfterValidator(_require_both)]
    buffers: dict[str, StoredRows]

    def segments(self) -> dict[str, StoredFile]:
        """The segments in `buffers/` that the checkpoint needs, by name."""
        return {
            segment.file.removeprefix(BUFFERS_FROM_CHECKPOINT): segment.stored
            for rows in self.buffers.values()
            for segment in rows.segments
            if segment.file.startswith(BUFFERS_FROM_CHECKPOINT)
        }

    def to_bytes(self) -> bytes:
        document = self.model_dump()
        return to_json(document | {"sha256": _digest(document)}).encode()

    @classmethod
    def read(cls, folder: Folder) -> Self:
        """The manifest of the checkpoint in `folder`.

        Raises DamagedError if it is not what `to_bytes` wrote, CheckpointError if it has another format.
        """
        with raising_damaged(MANIFEST):
            content = folder.read(MANIFEST)
        document = parse_json(content, MANIFEST)
        if not isinstance(document, dict):
            raise DamagedError(f"{MANIFEST} differs from what was written")
        found = document.get("format")
        if isinstance(found, int) and found > FORMAT:  # before the hash: a later format may compute it otherwise
            raise CheckpointError(
                f"checkpoint {folder.path}: expected format {FORMAT}, got {found} of a later palestra; "
                f"use the version that wrote it: {document.get('versions')}"
            )
        if document.pop("sha256", "") != _digest(document):
            raise DamagedError(f"{MANIFEST} differs from what was written: its SHA-256 differs")
        if isinstance(found, int) and found < FORMAT:
            raise CheckpointError(
                f"checkpoint {folder.path}: expected format {FORMAT}, got {found} of an earlier palestra; "
                f"use the version that wrote it: {document.get('versions')}"
            )
        try:
            return cls.model_validate(document)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise DamagedError(f"{MANIFEST} is not of format {FORMAT}: {where}: {first['msg']}") from None


def _digest(document: Mapping[str, Any]) -> str | None:
    try:
        text = to_json(document)
    except (RecursionError, ValueError):  # JSON that can be read, but not written by `to_json`
        return None
    return hashlib.sha256(text.encode()).hexdigest()
