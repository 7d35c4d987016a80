"""The states of replicas in one checkpoint: what is equal is stored once, and of each replica what is its own."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

SHARED_OF_MODELS = ("batch", "num_batches", "loader", "epoch_is_over", "model", "in_evaluation", "learner")
SHARED = ("counters", "epoch_counts", "in_epoch", "finished", "turn", *SHARED_OF_MODELS)
SHARED_OF_PLAYERS = ("nets", "optimizers", "opt_steps", "env_steps", "schedules", "frozen", "turn_progress")
OWN = "own"  # the key of a value that differs from the leader's as a whole


def shared(state: Mapping[str, Any], common: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Return the parts of a state that all replicas have in common. common: those of each player's algorithm."""
    found = _parts(state, common, are_shared=True)
    return found | {"players": found.get("players", {})}


def unshared(state: Mapping[str, Any], common: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Return a state without the parts that all replicas have in common. common: those of each player's algorithm."""
    return _parts(state, common, are_shared=False)


def _parts(state: Mapping[str, Any], common: Mapping[str, Sequence[str]], are_shared: bool) -> dict[str, Any]:
    def chosen(parts: Mapping[str, Any], shared_names: Sequence[str]) -> dict[str, Any]:
        if are_shared:
            return {name: parts[name] for name in shared_names if name in parts}
        return {name: value for name, value in parts.items() if name not in shared_names}

    players = {
        name: chosen(player, SHARED_OF_PLAYERS) | {"algorithm": chosen(player["algorithm"], common[name])}
        for name, player in state.get("players", {}).items()
    }
    return chosen(state, SHARED) | ({"players": players} if "players" in state else {})


def own_part(state: Any, of_leader: Any) -> dict[str, Any] | None:
    """Return what differs in a state from that of the leader; None if nothing does."""
    if not (isinstance(state, Mapping) and isinstance(of_leader, Mapping) and state.keys() == of_leader.keys()):
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
    """Return whether a checkpoint holds the same of two states, to the bit."""
    return _content(one) == _content(other)


def digests(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tree of a state with the SHA-256 of each value in its place."""
    return {
        str(key): digests(value) if isinstance(value, Mapping) else hashlib.sha256(_content(value)).hexdigest()
        for key, value in state.items()
    }


def _content(value: Any) -> bytes:
    """Return what a checkpoint holds of a value. It sorts the keys of dicts, and of subclasses it keeps the base alone.

    A state that was loaded has lost both, one that was not still has them; they must come to the same.
    """
    match value:
        case Tensor():
            return f"{value.dtype} {tuple(value.shape)} ".encode() + _bytes_of(value)
        case Mapping():
            entries = [f"{key!r}: ".encode() + _content(value[key]) for key in sorted(value, key=repr)]
            return b"{" + b", ".join(entries) + b"}"
        case tuple() | list():
            entries = [_content(each) for each in value]
            return (b"(" if isinstance(value, tuple) else b"[") + b", ".join(entries) + b"]"
        case bool():
            return repr(value).encode()
        case int() | float() | str():
            base = next(each for each in (int, float, str) if isinstance(value, each))
            return repr(base(value)).encode()  # of floats, which may be nan or -0.0, their bits
    return repr(value).encode()


def _bytes_of(value: Tensor) -> bytes:
    return bytes(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()) if value.numel() else b""


def differing(state: Mapping[str, Any], of_leader: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Yield the paths of all that differs, as in "players.agent.nets"."""
    for key in dict.fromkeys([*state, *of_leader]):
        here = f"{path}.{key}" if path else str(key)
        one, other = state.get(key), of_leader.get(key)
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            yield from differing(one, other, here)
        elif not equal(one, other):
            yield here
