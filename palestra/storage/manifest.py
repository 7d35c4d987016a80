"""What the manifest.json of a checkpoint says; it holds the SHA-256 of itself. It may be damaged or forged: what it may
say is written down here, and nothing else is read."""

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
    damage_told,
    parse_json,
)

FORMAT: Literal[4] = 4  # since 4 manifests know the size of every file
MANIFEST, STATE, TENSORS = "manifest.json", "state.json", "tensors.safetensors"

Count = Annotated[int, Field(ge=0)]
FileName = Annotated[str, Field(pattern=r"^[^./\\\x00][^/\\\x00]*$")]


def _require_both(files: dict[str, StoredFile]) -> dict[str, StoredFile]:
    if not {STATE, TENSORS} <= files.keys():
        raise ValueError(f"expected {STATE} and {TENSORS}")
    return files


class Manifest(Entry):
    """Whose state a checkpoint holds, in which files. is_due: whether it was saved when the config says, rather than on
    a signal. records: when it was saved. versions, machine: what it was written on. files: those in the checkpoint's
    folder. buffers: their rows."""

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
        """That of the checkpoint in `folder`. Raises DamagedError for what `to_bytes` has not written, CheckpointError
        for another format."""
        with damage_told(MANIFEST):
            content = folder.read(MANIFEST)
        document = parse_json(content, MANIFEST)
        if not isinstance(document, dict):
            raise DamagedError(f"{MANIFEST} is not what was written")
        found = document.get("format")
        if isinstance(found, int) and found > FORMAT:  # asked first: a later format may count its SHA-256 differently
            raise CheckpointError(
                f"checkpoint {folder.path} has format {found}, this palestra reads up to {FORMAT}; "
                f"use the version that wrote it: {document.get('versions')}"
            )
        if document.pop("sha256", "") != _digest(document):
            raise DamagedError(f"{MANIFEST} is not what was written: its SHA-256 differs")
        if isinstance(found, int) and found < FORMAT:
            raise CheckpointError(
                f"checkpoint {folder.path} has format {found} of an earlier palestra, this one reads format {FORMAT}; "
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
    except (RecursionError, ValueError):  # as JSON may be read, but was never written by us
        return None
    return hashlib.sha256(text.encode()).hexdigest()
