"""The states of replicas in one checkpoint: what is equal is stored once, and of each replica what is its own."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

OWN = "own"  # the key of a value that differs from the leader's as a whole


def own_part(state: Any, of_leader: Any) -> dict[str, Any] | None:
    """Return what differs in a state from that of the leader; None if nothing does."""
    if not (isinstance(state, Mapping) and isinstance(of_leader, Mapping) and list(state) == list(of_leader)):
        return None if equal(state, of_leader) else {OWN: state}
    parts = {str(key): own_part(state[key], of_leader[key]) for key in state}
    found = {key: part for key, part in parts.items() if part is not None}
    return {"entries": found} if found else None


def with_part(part: Mapping[str, Any] | None, of_leader: Any) -> Any:
    """Return the state of which `own_part` has returned the part."""
    if part is None:
        return of_leader
    if OWN in part:
        return part[OWN]
    entries = part["entries"]
    return {key: with_part(entries.get(str(key)), value) for key, value in of_leader.items()}


def equal(one: Any, other: Any) -> bool:
    """Return whether two states are equal to the bit."""
    if isinstance(one, Tensor):
        is_alike = isinstance(other, Tensor) and one.dtype == other.dtype and one.shape == other.shape
        return is_alike and _bytes_of(one) == _bytes_of(other)
    if type(one) is not type(other):
        return False
    if isinstance(one, Mapping):
        return list(one) == list(other) and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, Sequence) and not isinstance(one, str | bytes):
        return len(one) == len(other) and all(map(equal, one, other))
    return repr(one) == repr(other)  # of floats, which may be nan or -0.0, their bits


def _bytes_of(value: Tensor) -> bytes:
    return bytes(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()) if value.numel() else b""


def digests(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tree of a state with the SHA-256 of each value in its place."""
    return {
        str(key): digests(value) if isinstance(value, Mapping) else hashlib.sha256(_content(value)).hexdigest()
        for key, value in state.items()
    }


def _content(value: Any) -> bytes:
    if isinstance(value, Tensor):
        return f"{value.dtype} {tuple(value.shape)} ".encode() + _bytes_of(value)
    if isinstance(value, Mapping):
        return b"".join(f"{key}: ".encode() + _content(each) for key, each in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return b"".join(_content(each) + b"," for each in value)
    return repr(value).encode()


def differing(state: Mapping[str, Any], of_leader: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Yield the paths of all that differs, as in "players.agent.nets"."""
    for key in dict.fromkeys([*state, *of_leader]):
        here = f"{path}.{key}" if path else str(key)
        one, other = state.get(key), of_leader.get(key)
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            yield from differing(one, other, here)
        elif not equal(one, other):
            yield here
