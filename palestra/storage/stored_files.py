"""What the files of a run hold: entries that are checked when they are read, JSON, tensors, and trees of state.

The size and digest of a file are noted when it is written.
"""

import errno
import hashlib
import json
import math
import os
from collections import UserDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, TypeVar, get_args
from urllib.parse import quote

import torch
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from palestra.config import Failed
from palestra.runtime.limits import NO_MORE_FILES
from palestra.storage.disk import Folder, RefusedPathError

Count = Annotated[int, Field(ge=0)]
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
FileName = Annotated[str, Field(pattern=r"^[^./\\\x00][^/\\\x00]*$")]


# The errors of reading content whose SHA-256 is right, but which palestra did not write.
NOT_OURS = (LookupError, TypeError, ValueError, AttributeError, RuntimeError, OverflowError)
LONGEST_NAME = 180  # of a player, as `quoted_name` gives it: with numbers and an ending, 255 bytes are a file's most


def quoted_name(name: str) -> str:
    """A name from a config as names of files may begin with it: without dots, and with %C3%A9 for é."""
    return quote(name, safe="").replace(".", "%2E")


class Entry(BaseModel):
    """The base class for the content of a run's files.

    They may be forged, so any unknown key, type or value is an error.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


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
        return cls(size=len(content), sha256=hashlib.sha256(content).hexdigest())

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
        (expected,) = get_args(cls.model_fields["format"].annotation)
        found = document.get("format")
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


def read_entry(folder: Folder, name: str, model: type[E], where: str | None = None) -> E:
    """The content of a JSON file. Raises DamagedError if it cannot be read, or is not what palestra writes.

    where: what errors call it; None: its name.
    """
    with raising_damaged(name):
        content = folder.read(name)
    return checked_entry(parse_json(content, name), where or name, model)


def checked_entry(document: Any, name: str, model: type[E]) -> E:
    """The content of the file `name`, from its data. Raises DamagedError for what palestra does not write."""
    try:
        return model.model_validate(document)
    except ValidationError as error:
        raise DamagedError(f"{name} differs from what was written: {fault_in_words(error)}") from error


def to_json(data: Any) -> str:
    """Data as JSON text; equal data give equal text: keys sorted, a line per entry.

    Raises ValueError for NaN and infinities.
    """
    return json.dumps(data, sort_keys=True, indent=1, allow_nan=False) + "\n"


def fault_in_words(error: ValidationError) -> str:
    """The first fault of an entry, with the key where it lies."""
    first = error.errors()[0]
    return ": ".join(filter(None, (".".join(map(str, first["loc"])), first["msg"])))


def parse_json(content: bytes, name: str) -> Any:
    """The data in JSON text. Raises DamagedError if it is no JSON, or nested too deeply."""
    try:
        return json.loads(content)
    except RecursionError:
        raise DamagedError(f"{name} is nested too deeply") from None
    except ValueError as error:
        raise DamagedError(f"expected JSON in {name} ({error})") from error


# ---- trees of state -----------------------------------------------------------------------------------
#
# A tree becomes JSON data and a dict of tensors. A JSON object whose only key starts with "$" stands for a value that
# JSON lacks: a tensor, a tuple, a dict with integer keys or with such a key, a float that is not finite, an integer
# beyond 64 bits (where most JSON readers stop).

TENSOR_DTYPES = {
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint16, torch.uint32, torch.uint64, torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz),
}


def encode(value: Any, path: str, tensors: dict[str, Tensor], order: Callable[..., Any] = sorted) -> Any:
    """Encode a value as JSON data, and add its tensors to `tensors` by path. Raises TypeError for other types.

    order: of the keys of a dict.
    """
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value) if abs(value) < 1 << 63 else {"$int": hex(value)}
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"$float": str(float(value))}
    if isinstance(value, Tensor):
        if value.layout != torch.strided or not (value.is_complex() or value.dtype in TENSOR_DTYPES):
            got = f"got {value.dtype}, {value.layout}"
            raise TypeError(f"state{path}: expected a dense tensor of a stored type, {got}")
        tensors[path] = torch.view_as_real(value.detach().resolve_conj()) if value.is_complex() else value
        return {"$complex" if value.is_complex() else "$tensor": path}
    if isinstance(value, list | tuple):
        items = [encode(item, f"{path}/{index}", tensors, order) for index, item in enumerate(value)]
        return {"$tuple": items} if isinstance(value, tuple) else items
    if isinstance(value, Mapping):
        if not (all(type(key) is str for key in value) or all(type(key) is int for key in value)):
            raise TypeError(f"state{path}: expected a dict whose keys are all str or all int, got {list(value)}")
        # keys are escaped as JSON pointers do (RFC 6901), so that different paths have different names
        places = {key: f"{path}/{str(key).replace('~', '~0').replace('/', '~1')}" for key in order(value)}
        pairs = [(key, encode(value[key], place, tensors, order)) for key, place in places.items()]
        return dict(pairs) if all(type(key) is str and not key.startswith("$") for key in value) else {"$dict": pairs}
    expected = "tensors, numbers, str, bool, None, or lists, tuples and dicts of these"
    raise TypeError(f"state{path}: expected {expected}, got {type(value).__name__}")


def decode(document: Any, tensors: dict[str, Tensor]) -> Any:
    """Decode what `encode` gave."""
    if isinstance(document, list):
        return [decode(item, tensors) for item in document]
    if not isinstance(document, dict):
        return document
    match list(document.items()):
        case [("$tensor", path)]:
            return tensors[path]
        case [("$complex", path)]:
            return torch.view_as_complex(tensors[path])
        case [("$int", text)]:
            return int(text, 16)
        case [("$float", text)]:
            return float(text)
        case [("$tuple", items)]:
            return tuple(decode(items, tensors))
        case [("$dict", pairs)]:
            return {key: decode(item, tensors) for key, item in pairs}
    return {key: decode(item, tensors) for key, item in document.items()}


def to_bytes(value: Any, what: str = "") -> bytes:
    """Return a tree of state, in whose dicts the order is kept, as bytes: a length, JSON, a safetensors file if needed.

    Raises TypeError for other types. what: words that it then says.
    """
    tensors: dict[str, Tensor] = {}
    document = json.dumps(encode(value, what, tensors, list)).encode()
    return len(document).to_bytes(8, "little") + document + (tensors_to_bytes(tensors) if tensors else b"")


def from_bytes(content: bytes | memoryview) -> Any:
    """Return the tree of state that `to_bytes` has given."""
    begin = 8 + int.from_bytes(content[:8], "little")
    return decode(json.loads(bytes(content[8:begin])), load(bytes(content[begin:])) if content[begin:] else {})


class StoredTree(UserDict[str, Any]):
    """A tree of state in a file, which is read when something in it is first asked for: of many, few may be needed.

    Raises DamagedOnceError then if it is not as it was written.
    """

    def __init__(self, folder: Folder, name: str, stored: StoredFile) -> None:
        self.folder, self.name, self.stored = folder, name, stored

    @cached_property
    def data(self) -> dict[str, Any]:  # type: ignore[override]  # where a UserDict looks
        try:
            return dict(from_bytes(read_checked(self.folder, self.name, self.stored)))
        except (*NOT_OURS, SafetensorError, DamagedError) as error:
            path = self.folder.path / self.name
            raise DamagedOnceError(f"{path} is missing, or differs from what was written") from error


def copied(value: Any) -> Any:
    """Copy a tree of state; its tensors are copied to the CPU."""
    if isinstance(value, Tensor):
        return torch.empty(value.shape, dtype=value.dtype).copy_(value.detach())
    if isinstance(value, Mapping):
        return {key: copied(item) for key, item in value.items()}
    return type(value)(copied(item) for item in value) if isinstance(value, list | tuple) else value
