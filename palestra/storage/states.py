"""Encodes a tree of state as JSON data and a dict of tensors, and decodes it.

A JSON object whose only key starts with "$" stands for a value that JSON lacks: a tensor, a tuple, a dict with integer
keys or with such a key, a float that is not finite, an integer beyond 64 bits (where most JSON readers stop).
"""

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

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
        return _encode_tensor(value, path, tensors)
    if isinstance(value, list | tuple):
        items = [encode(item, f"{path}/{index}", tensors, order) for index, item in enumerate(value)]
        return {"$tuple": items} if isinstance(value, tuple) else items
    if isinstance(value, Mapping):
        if not (all(type(key) is str for key in value) or all(type(key) is int for key in value)):
            raise TypeError(f"state{path}: expected a dict whose keys are all str or all int, got {list(value)}")
        pairs = [(key, encode(value[key], f"{path}/{_escape(str(key))}", tensors, order)) for key in order(value)]
        return dict(pairs) if all(type(key) is str and not key.startswith("$") for key in value) else {"$dict": pairs}
    expected = "tensors, numbers, str, bool, None, or lists, tuples and dicts of these"
    raise TypeError(f"state{path}: expected {expected}, got {type(value).__name__}")


def _encode_tensor(tensor: Tensor, path: str, tensors: dict[str, Tensor]) -> dict[str, str]:
    if tensor.layout != torch.strided or not (tensor.is_complex() or tensor.dtype in TENSOR_DTYPES):
        raise TypeError(f"state{path}: expected a dense tensor of a stored type, got {tensor.dtype}, {tensor.layout}")
    tensors[path] = torch.view_as_real(tensor.detach().resolve_conj()) if tensor.is_complex() else tensor
    return {"$complex" if tensor.is_complex() else "$tensor": path}


def _escape(key: str) -> str:
    """Escape a key as JSON pointers do (RFC 6901), so that different paths have different names."""
    return key.replace("~", "~0").replace("/", "~1")


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
    return len(document).to_bytes(8, "little") + document + (save(copied(tensors)) if tensors else b"")


def from_bytes(content: bytes | memoryview) -> Any:
    """Return the tree of state that `to_bytes` has given."""
    begin = 8 + int.from_bytes(content[:8], "little")
    return decode(json.loads(bytes(content[8:begin])), load(bytes(content[begin:])) if content[begin:] else {})


def copied(value: Any) -> Any:
    """Copy a tree of state; its tensors are copied to the CPU."""
    if isinstance(value, Tensor):
        return torch.empty(value.shape, dtype=value.dtype).copy_(value.detach())
    if isinstance(value, Mapping):
        return {key: copied(item) for key, item in value.items()}
    return type(value)(copied(item) for item in value) if isinstance(value, list | tuple) else value
