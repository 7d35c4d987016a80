"""What the manifest.json of a checkpoint says; it holds the SHA-256 of itself. It may be damaged or forged: what it may
say is written down here, and nothing else is read."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, ValidationError

from palestra.storage.run_folder import to_json
from palestra.storage.segments import (
    BUFFERS_FROM_CHECKPOINT,
    CheckpointError,
    DamagedError,
    Entry,
    Sha256,
    StoredRows,
    parse_json,
    read_file,
)

FORMAT: Literal[3] = 3  # since 3 manifests know the SHA-256 of records.jsonl
MANIFEST, STATE, TENSORS = "manifest.json", "state.json", "tensors.safetensors"
MAX_BYTES = 64 << 20  # many times those of the largest buffers

Count = Annotated[int, Field(ge=0)]
FileName = Annotated[str, Field(pattern=r"^[^./\\\x00][^/\\\x00]*$")]


def _require_both(files: dict[str, str]) -> dict[str, str]:
    if not {STATE, TENSORS} <= files.keys():
        raise ValueError(f"expected {STATE} and {TENSORS}")
    return files


class RecordsThen(Entry):
    """The bytes that records.jsonl had, and their SHA-256."""

    length: Count
    sha256: Sha256

    @classmethod
    def of(cls, content: bytes) -> Self:
        return cls(length=len(content), sha256=hashlib.sha256(content).hexdigest())


class Manifest(Entry):
    """Whose state a checkpoint holds, in which files. records: when it was saved. versions, machine: what it was
    written on. files: the SHA-256 of each file in the checkpoint's folder. buffers: their rows."""

    format: Literal[3]
    number: Annotated[int, Field(ge=0, lt=10**18)]
    counters: dict[str, Count]
    records: RecordsThen
    versions: dict[str, str | None]
    machine: dict[str, str | int | None]
    files: Annotated[dict[FileName, Sha256], AfterValidator(_require_both)]
    buffers: dict[str, StoredRows]

    def segments(self) -> dict[str, str]:
        """The SHA-256 of the segments in `buffers/` that the checkpoint needs, by name."""
        return {
            segment.file.removeprefix(BUFFERS_FROM_CHECKPOINT): segment.sha256
            for rows in self.buffers.values()
            for segment in rows.segments
            if segment.file.startswith(BUFFERS_FROM_CHECKPOINT)
        }

    def to_bytes(self) -> bytes:
        document = self.model_dump()
        return to_json(document | {"sha256": _digest(document)}).encode()

    @classmethod
    def read(cls, folder: Path) -> Self:
        """That of the checkpoint in `folder`. Raises DamagedError for what `to_bytes` has not written, CheckpointError
        for another format."""
        path = folder / MANIFEST
        if path.is_file() and path.stat().st_size > MAX_BYTES:
            raise DamagedError(f"{MANIFEST} has {path.stat().st_size} bytes, more than any of ours")
        document = parse_json(read_file(path), MANIFEST)
        if not isinstance(document, dict):
            raise DamagedError(f"{MANIFEST} is not what was written")
        found = document.get("format")
        if isinstance(found, int) and found > FORMAT:  # asked first: a later format may count its SHA-256 differently
            raise CheckpointError(
                f"checkpoint {folder} has format {found}, this palestra reads up to {FORMAT}; "
                f"use the version that wrote it: {document.get('versions')}"
            )
        if document.pop("sha256", "") != _digest(document):
            raise DamagedError(f"{MANIFEST} is not what was written: its SHA-256 differs")
        if isinstance(found, int) and found < FORMAT:
            raise CheckpointError(
                f"checkpoint {folder} has format {found} of an earlier palestra, this one reads format {FORMAT}; "
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
