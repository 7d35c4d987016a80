"""Counter-based random numbers made of integer tensor operations.

A key is an int64; the keys of a batch are an int64 tensor. `fold` derives new keys from a key and a counter, the
drawing functions turn a key into numbers. Nothing is stored: the same (seed, stream, world, counter) gives the same
integers on every device, in any order, however a batch is split. A key is either folded or drawn from, never both.

The bits are those of SplitMix64 (Steele, Lea, Flood 2014) with the finalizer of Stafford's variant 13: the i-th number
of a key is mix(key + (i + 1) * GAMMA), in 64-bit arithmetic that wraps around.
"""

import ctypes
import hashlib
import math
import os
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from palestra.runtime.compiling import njit


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


NUMBERS = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
GAMMA, MULTIPLIER_1, MULTIPLIER_2 = map(_signed, NUMBERS)
U_GAMMA, U_MULTIPLIER_1, U_MULTIPLIER_2 = map(np.uint64, NUMBERS)


def base_key(seed: int, stream: str) -> int:
    """Return the key, an int64, of one stream ("play/host", "evaluation", ...) of one seed."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{stream}".encode()).digest()[:8], "little", signed=True)


def world_keys(key: int, num_worlds: int, device: torch.device, first: int = 0) -> Tensor:
    """Return one key per world, int64 of shape (num_worlds,). World w has the same key in a batch of any size.

    first: the number of the first of these worlds.
    """
    worlds = torch.arange(first, first + num_worlds, device=device)
    return fold(torch.full((num_worlds,), key, dtype=torch.int64, device=device), worlds)


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """Shift int64 right logically (the operator >> copies the sign)."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mix(x: Tensor) -> Tensor:
    if runs_on_cpu(x):
        return _mix_on_cpu(x, 0)
    x = (x ^ _shift_right(x, 30)) * MULTIPLIER_1
    x = (x ^ _shift_right(x, 27)) * MULTIPLIER_2
    return x ^ _shift_right(x, 31)


def fold(keys: Tensor, data: Tensor | int) -> Tensor:
    """Derive new keys from `keys` and `data` (nonnegative; broadcast against `keys`), all int64."""
    if isinstance(data, Tensor):
        return _mix(keys + (data + 1) * GAMMA)
    step = _signed((data + 1) * GAMMA % 2**64)
    return _mix_on_cpu(keys, step) if runs_on_cpu(keys) else _mix(keys + step)


def fold_number(key: int, data: int) -> int:
    """Compute `fold` of one key, a plain number, in a tenth of the time."""
    mask = 2**64 - 1
    x = (key + (data + 1) * GAMMA) & mask
    x = ((x ^ (x >> 30)) * MULTIPLIER_1) & mask
    x = ((x ^ (x >> 27)) * MULTIPLIER_2) & mask
    return _signed(x ^ (x >> 31))


def random_bits(keys: Tensor, num: int) -> Tensor:
    """Draw `num` 64-bit numbers per key: int64 of shape (*keys.shape, num)."""
    if runs_on_cpu(keys):
        bits = np.empty((*keys.shape, num), dtype=np.int64)
        _draw_bits(keys.contiguous().numpy().ravel(), bits.reshape(keys.numel(), num))
        return torch.from_numpy(bits)
    return _mix(keys.unsqueeze(-1) + torch.arange(1, num + 1, device=keys.device) * GAMMA)


def random_integers(keys: Tensor, num: int, high: int | Tensor) -> Tensor:
    """Draw `num` integers, 0 <= i < high <= 2**31, per key: int64 (*keys.shape, num). Bias: below high / 2**31."""
    return (_shift_right(random_bits(keys, num), 33) * high) >> 31


def random_floats(keys: Tensor, num: int) -> Tensor:
    """Draw `num` floats per key, uniform on the multiples of 2**-24 in [0, 1): float32 of shape (*keys.shape, num)."""
    if runs_on_cpu(keys):
        floats = np.empty((*keys.shape, num), dtype=np.float32)
        _draw_floats(keys.contiguous().numpy().ravel(), floats.reshape(keys.numel(), num))
        return torch.from_numpy(floats)
    return _shift_right(random_bits(keys, num), 40).to(torch.float32) * 2.0**-24


def random_normals(keys: Tensor, num: int) -> Tensor:
    """Draw `num` independent standard normals per key: float32 of shape (*keys.shape, num) (Box & Muller 1958).

    Made of pairs of uniforms on multiples of 2**-24, so no number is beyond 5.8 in size.
    """
    if runs_on_cpu(keys):
        normals = np.empty((*keys.shape, num), dtype=np.float32)
        _draw_normals(keys.contiguous().numpy().ravel(), normals.reshape(keys.numel(), num))
        return torch.from_numpy(normals)
    half = (num + 1) // 2
    uniforms = random_floats(keys, 2 * half)
    radius = torch.sqrt(-2.0 * torch.log(1.0 - uniforms[..., :half]))
    angle = (2.0 * math.pi) * uniforms[..., half:]
    return torch.cat([radius * torch.cos(angle), radius * torch.sin(angle)], dim=-1)[..., :num]


def random_permutation(key: Tensor, num: int) -> Tensor:
    """Put all integers below `num` in random order: int64 (num,) of a key int64 (1,)."""
    return random_bits(key, num)[0].argsort()


def random_choice(keys: Tensor, legal: Tensor) -> Tensor:
    """Choose a uniformly random True entry per row: int64 (B,) of keys (B,) and legal (B, A). Rows without one give 0.

    It is the entry of rank floor(count * u), where u is the key's first number.
    """
    if runs_on_cpu(keys):
        return torch.from_numpy(_choose(keys.numpy(), legal.numpy()))
    ranks = torch.cumsum(legal, dim=1)
    wanted = (_shift_right(random_bits(keys, 1), 33) * ranks[:, -1:]) >> 31
    return (legal & (ranks == wanted + 1)).to(torch.int8).argmax(dim=1)


# ---- the same on a CPU: loops that start many times faster than operations of torch -------------------


def runs_on_cpu(tensor: Tensor) -> bool:
    """Return whether kernels on a CPU can read the tensor: they are faster, but torch cannot compile them."""
    return tensor.is_cpu and not torch.compiler.is_compiling()


# `mix` and `choice` are no `inner` functions: without wrappers LLVM would order the operations of the kernels that call
# them differently, and log-probabilities would differ in the last bit.
@numba.njit(nogil=True, forceinline=True)
def mix(x: Any) -> Any:
    """Do `_mix` for one number, in kernels: uint64 in, uint64 out."""
    x = (x ^ (x >> np.uint64(30))) * U_MULTIPLIER_1
    x = (x ^ (x >> np.uint64(27))) * U_MULTIPLIER_2
    return x ^ (x >> np.uint64(31))


def _mix_on_cpu(x: Tensor, step: int) -> Tensor:
    """Compute `_mix(x + step)`."""
    numbers = x.numpy()
    mixed = np.empty(numbers.shape, dtype=np.int64)
    _mix_all(numbers.ravel(), step, mixed.ravel())
    return torch.from_numpy(mixed)


@njit()
def _mix_all(numbers: np.ndarray, step: int, mixed: np.ndarray) -> None:
    for i in range(len(numbers)):
        mixed[i] = np.int64(mix(np.uint64(numbers[i] + step)))


@njit()
def _draw_bits(keys: np.ndarray, bits: np.ndarray) -> None:
    for row in range(len(keys)):
        state = np.uint64(keys[row])
        for i in range(bits.shape[1]):
            state += U_GAMMA
            bits[row, i] = np.int64(mix(state))


@njit()
def _draw_floats(keys: np.ndarray, floats: np.ndarray) -> None:
    for row in range(len(keys)):
        state = np.uint64(keys[row])
        for i in range(floats.shape[1]):
            state += U_GAMMA
            floats[row, i] = np.float32(mix(state) >> np.uint64(40)) * np.float32(2.0**-24)


@njit()
def _draw_normals(keys: np.ndarray, normals: np.ndarray) -> None:
    num = normals.shape[1]
    half = (num + 1) // 2
    for row in range(len(keys)):
        key = np.uint64(keys[row])
        for i in range(half):
            first = mix(key + np.uint64(i + 1) * U_GAMMA) >> np.uint64(40)
            second = mix(key + np.uint64(half + i + 1) * U_GAMMA) >> np.uint64(40)
            radius = np.sqrt(np.float32(-2.0) * np.log(np.float32(1.0) - np.float32(first) * np.float32(2.0**-24)))
            angle = np.float32(2.0 * np.pi) * (np.float32(second) * np.float32(2.0**-24))
            normals[row, i] = radius * np.cos(angle)
            if half + i < num:
                normals[row, half + i] = radius * np.sin(angle)


@njit()
def _choose(keys: np.ndarray, legal: np.ndarray) -> np.ndarray:
    chosen = np.zeros(len(keys), dtype=np.int64)
    for row in range(len(keys)):
        chosen[row] = choice(np.uint64(keys[row]), legal[row])
    return chosen


@numba.njit(nogil=True, forceinline=True)
def choice(key: Any, legal: Any) -> Any:
    """Do `random_choice` for one row, in kernels. key: uint64; legal: bool (A,)."""
    count = 0
    for action in range(len(legal)):
        count += legal[action]
    x = mix(key + U_GAMMA) >> np.uint64(33)
    left, chosen = np.int64(x * np.uint64(count) >> np.uint64(31)), 0
    for action in range(len(legal)):  # without branches, which no processor could predict
        chosen += action * (legal[action] & (left == 0))
        left -= legal[action]
    return chosen


# ---- the user's own random state ---------------------------------------------------------------------


# Torch holds a generator's mutex while it makes the tensor of a state, where Python may collect garbage and let another
# thread go on: one that waited for that mutex, as replicas do in turn, would never let the first go on again.
_GENERATORS = threading.RLock()
os.register_at_fork(before=_GENERATORS.acquire, after_in_parent=_GENERATORS.release, after_in_child=_GENERATORS.release)


@contextmanager
def seeded_global_state(key: int) -> Iterator[None]:
    """Seed torch's global generators with `key` for stock initialisers and dropout, and restore them after."""
    with restored_torch_states():
        seed_global_state(key)
        yield


def seed_global_state(key: int) -> None:
    """Seed torch's global generators with `key`, where `restored_torch_states` restores them later."""
    seed = key % 2**63
    # Not torch.manual_seed: for each kind of device that is not in use it keeps a traceback, and never drops it.
    with _GENERATORS:
        torch.default_generator.manual_seed(seed)
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(seed)
        if torch.backends.mps.is_available():
            torch.mps.manual_seed(seed)


@contextmanager
def restored_torch_states() -> Iterator[None]:
    """Restore torch's global generators, of all kinds of devices, after the block."""
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    has_any = devices or torch.backends.mps.is_available()
    held = torch.random.fork_rng(devices=devices) if has_any else _forked_on_cpu()
    with _GENERATORS:
        held.__enter__()
    try:
        yield
    finally:
        with _GENERATORS:
            held.__exit__(None, None, None)


@contextmanager
def _forked_on_cpu() -> Iterator[None]:
    """As torch.random.fork_rng on the CPU alone, at a fraction of its time."""
    with _GENERATORS:
        held = torch.default_generator.get_state()
    try:
        yield
    finally:
        with _GENERATORS:
            torch.default_generator.set_state(held)


def global_states() -> tuple[Any, ...]:
    """Return the states of the global generators of torch (on the CPU), numpy and Python, to be compared."""
    generator: Any = np.random.get_bit_generator()  # type: ignore[attr-defined]
    if isinstance(generator, np.random.MT19937):  # a hundredth of the time of its `state`
        numbers: Any = ctypes.string_at(generator.ctypes.state_address, _BYTES_OF_MT19937)
    else:
        numbers = repr(generator.state)
    with _GENERATORS:
        return torch.default_generator.get_state().numpy().tobytes(), numbers, random.getstate()


_BYTES_OF_MT19937 = 4 * (624 + 1)  # its numbers, and which of them comes next


def seed_global_states(number: int) -> None:
    """Seed the global generators of Python, numpy and torch (on the CPU). number: at least 0, below 2**63."""
    plain = random.random.__self__  # type: ignore[attr-defined]
    super(random.Random, plain).seed(number)  # `random.seed` takes three times as long
    plain.gauss_next = None
    np.random.seed(number % 2**32)
    with _GENERATORS:
        torch.default_generator.manual_seed(number)


@contextmanager
def restored_global_states() -> Iterator[None]:
    """Restore the global generators after the block, whatever code of a user's own has drawn from them."""
    plain, numbers = random.getstate(), np.random.get_state()
    with _forked_on_cpu():
        try:
            yield
        finally:
            random.setstate(plain)
            np.random.set_state(numbers)
