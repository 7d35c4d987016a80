"""The small files of a run, whose size and digest are noted when they are written, and checked when they are read."""

import errno
import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar, get_args

import torch
from pydantic import AfterValidator, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from palestra.config import Failed
from palestra.runtime.limits import NO_MORE_FILES
from palestra.storage.disk import Folder, RefusedPathError
from palestra.storage.facts import Count, Entry, Sha256, fault_in_words, to_json

E = TypeVar("E", bound=Entry)


class CheckpointError(Failed):
    """A checkpoint cannot be saved or loaded. The message names it and the reason."""


class MissingCheckpointError(CheckpointError):
    """The checkpoint that was asked for does not exist."""


class DamagedError(CheckpointError):
    """A file of a checkpoint is missing or differs from what was written."""


class DamagedOnceError(DamagedError):
    """A file that several checkpoints share is missing or differs from what was written. The message has its path."""


class StoredFile(Entry):
    """The size and SHA-256 of a file when it was written."""

    size: Count
    sha256: Sha256

    @classmethod
    def of(cls, content: bytes) -> Self:
        return cls.of_pieces([content])

    @classmethod
    def of_pieces(cls, pieces: Iterable[bytes]) -> Self:
        size, sha256 = 0, hashlib.sha256()
        for piece in pieces:
            size += len(piece)
            sha256.update(piece)
        return cls(size=size, sha256=sha256.hexdigest())


class SealedEntry(Entry):
    """The content of a file that holds its own SHA-256, too.

    file: the file's name. A subclass has a field `format: Literal[...]`.
    """

    file: ClassVar[str]

    def to_bytes(self) -> bytes:
        return _sealed(self.model_dump())

    @classmethod
    def from_bytes(cls, content: bytes, where: str = "") -> Self:
        """The inverse of `to_bytes`. where: names the file in messages.

        Raises DamagedError for other bytes, CheckpointError for another format.
        """
        if not isinstance(document := parse_json(content, cls.file), dict):
            raise DamagedError(f"{cls.file} differs from what was written")
        (expected,), found = get_args(cls.model_fields["format"].annotation), document.get("format")
        document.pop("sha256", None)
        is_whole = content == _sealed(document)
        # a later format may compute the digest otherwise
        if isinstance(found, int) and (found > expected or (found < expected and is_whole)):
            got = f"got {found} of {'a later' if found > expected else 'an earlier'} palestra"
            writer = f": {document['versions']}" if "versions" in document else ""
            raise CheckpointError(
                f"{where or cls.file}: expected format {expected}, {got}; use the version that wrote it{writer}"
            )
        if not is_whole:
            raise DamagedError(f"{cls.file} differs from what was written: its SHA-256 differs")
        return checked_entry(document, cls.file, cls)


def _sealed(document: dict[str, Any]) -> bytes:
    try:
        digest = hashlib.sha256(to_json(document).encode()).hexdigest()
    except (RecursionError, ValueError):  # JSON that can be read, but not written by `to_json`
        return b""
    return to_json(document | {"sha256": digest}).encode()


def having(*names: str) -> AfterValidator:
    """Require, as the annotation of a field with files by name, that these are among them."""

    def require(files: dict[str, StoredFile]) -> dict[str, StoredFile]:
        if not {*names} <= files.keys():
            raise ValueError(f"expected {' and '.join(names)} among the files, got {', '.join(sorted(files))}")
        return files

    return AfterValidator(require)


def tensors_to_bytes(tensors: dict[str, Tensor]) -> bytes:
    """A safetensors file with dense CPU copies of `tensors`.

    Views, and tensors that share memory, are each written in full.
    """
    return save({name: torch.empty(t.shape, dtype=t.dtype).copy_(t.detach()) for name, t in tensors.items()})


def read_tensors(folder: Folder, name: str, stored: StoredFile) -> dict[str, Tensor]:
    """The CPU tensors of a safetensors file. Raises DamagedError if it differs from what was written."""
    return tensors_in(read_checked(folder, name, stored), name)


def read_weights_file(path: str) -> bytes:
    """The content of a file that a config names. Raises OSError, also for a pipe or a device, which might never end."""
    if os.path.exists(path) and not os.path.isfile(path):
        raise OSError(errno.EINVAL, "it is no plain file")
    return Path(path).read_bytes()


def tensors_in(content: bytes, name: str) -> dict[str, Tensor]:
    """The CPU tensors in the content of the safetensors file `name`. Raises DamagedError."""
    try:
        return load(content)
    except (SafetensorError, KeyError) as error:
        raise DamagedError(f"{name} does not hold tensors ({error})") from error


def read_checked(folder: Folder, name: str, stored: StoredFile) -> bytes:
    """The content of a file. Raises DamagedError if it differs from what was written."""
    with raising_damaged(name):
        content, sha256 = folder.read_exactly(name, stored.size)
    if sha256 != stored.sha256:
        raise DamagedError(f"{name} differs from what was written: its SHA-256 differs from the manifest's")
    return content


@contextmanager
def raising_damaged(name: str) -> Iterator[None]:
    """Turn an error of reading a file inside this context into a DamagedError.

    The file may be unreadable, no regular file, or of another size.
    """
    try:
        yield
    except RefusedPathError as error:
        raise DamagedError(f"{name} differs from what was written: {error}") from error
    except OSError as error:
        if error.errno in NO_MORE_FILES:  # the file may be whole
            raise
        raise DamagedError(f"{name} cannot be read ({error.strerror})") from error


def read_json(folder: Folder, name: str) -> Any:
    """The data in a JSON file. Raises DamagedError if it cannot be read or is no JSON."""
    with raising_damaged(name):
        content = folder.read(name)
    return parse_json(content, name)


def checked_entry(document: Any, name: str, model: type[E]) -> E:
    """The content of the file `name`, from its data. Raises DamagedError for what palestra does not write."""
    try:
        return model.model_validate(document)
    except ValidationError as error:
        raise DamagedError(f"{name} differs from what was written: {fault_in_words(error)}") from error


def parse_json(content: bytes, name: str) -> Any:
    """The data in JSON text. Raises DamagedError if it is no JSON, or nested too deeply."""
    try:
        return json.loads(content)
    except RecursionError:
        raise DamagedError(f"{name} is nested too deeply") from None
    except ValueError as error:
        raise DamagedError(f"expected JSON in {name} ({error})") from error
