"""FrameStore: stores frames of one size, each different frame once.

Frames of a stack recur in the next observation and in later rows. Equal frames are found by their content (a hash, then
every byte), never by their origin. Letters: K frames, S slots.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from palestra.buffers.memory import Reserved, room_for
from palestra.runtime.compiling import inner, njit

Array = np.ndarray
WORDS = (np.uint64, np.uint32, np.uint16, np.uint8)


class FrameStore:
    """At most `max_frames` different frames of `num_bytes` bytes, with a count of the references to each; on the CPU.

    A frame has a slot, 1 to max_frames; slot 0 means no frame. When its last reference is released, the slot is free
    again. Memory is taken for the largest number of frames held at once so far.
    """

    def __init__(self, max_frames: int, num_bytes: int, folder: Path | None) -> None:
        self.num_bytes = num_bytes
        self._word = next(word for word in WORDS if num_bytes % np.dtype(word).itemsize == 0)
        self._reserved = Reserved((max_frames + 1) * num_bytes, folder)
        octets = self._reserved.octets.reshape(max_frames + 1, num_bytes)
        self.frames = torch.from_numpy(octets)
        self._words = octets.view(self._word)
        factors = np.random.default_rng(0).integers(1 << 64, size=self._words.shape[1], dtype=np.uint64)
        self._factors = factors | np.uint64(1)
        with room_for(2 * 4 * max_frames):
            self._first = np.zeros(1 << max(max_frames // 4, 1).bit_length(), dtype=np.int32)  # slot by hash
            self._next = np.zeros(max_frames + 1, dtype=np.int32)  # slot of the same hash or, after a free one, free
            self._num_places = np.zeros(max_frames + 1, dtype=np.int32)
        self._free = np.array([0, 1], dtype=np.int64)  # the first slot that became free, and the first never used

    def hold(self, frames: Tensor, held: Array) -> Tensor:
        """Store the frames, uint8 (K, num_bytes), for which `held` is true, with one more reference each.

        Returns their slots, int32 (K,), 0 for the others. Raises NoRoom.
        """
        if frames.dtype != torch.uint8 or frames.shape[1:] != (self.num_bytes,):
            raise ValueError(f"expected frames uint8 (K, {self.num_bytes}), got {frames.dtype} {tuple(frames.shape)}")
        words = np.require(frames.cpu().contiguous().numpy(), requirements="A").view(self._word)
        self._reserved.take((int(self._free[1]) + len(words)) * self.num_bytes)
        slots = np.zeros(len(words), dtype=np.int32)
        _hold(words, held, slots, self._table())
        return torch.from_numpy(slots)

    def hold_again(self, slots: Tensor) -> None:
        """Add one reference to the frame of each of these slots: int32 (K,)."""
        np.add.at(self._num_places, slots.numpy(), 1)

    def release(self, slots: Tensor) -> None:
        """Release one reference to the frame of each of these slots: int32 (K,)."""
        _release(slots.numpy(), self._table())

    def _table(self) -> tuple[Array, ...]:
        return self._words, self._factors, self._first, self._next, self._num_places, self._free


@njit()
def _hold(new: Array, held: Array, slots: Array, table: tuple[Array, ...]) -> None:
    words, factors, first, next_, num_places, free = table
    for k in range(len(new)):
        if not held[k]:
            continue
        frame = new[k]
        entry = _hash(frame, factors, first)
        slot = first[entry]
        while slot and not _equal(words[slot], frame):
            slot = next_[slot]
        if not slot:
            if free[0]:
                slot = np.int32(free[0])
                free[0] = next_[slot]
            else:
                slot = np.int32(free[1])
                free[1] += 1
            words[slot] = frame
            next_[slot] = first[entry]
            first[entry] = slot
        num_places[slot] += 1
        slots[k] = slot


@njit()
def _release(slots: Array, table: tuple[Array, ...]) -> None:
    words, factors, first, next_, num_places, free = table
    for slot in slots:
        if slot:
            num_places[slot] -= 1
            if num_places[slot] == 0:
                entry = _hash(words[slot], factors, first)
                if first[entry] == slot:
                    first[entry] = next_[slot]
                else:
                    before = first[entry]
                    while next_[before] != slot:
                        before = next_[before]
                    next_[before] = next_[slot]
                next_[slot] = free[0]
                free[0] = slot


@inner()
def _hash(frame: Array, factors: Array, first: Array) -> Any:
    """Return an index into `first`: a sum without branches, so that the compiler vectorises it."""
    total = np.uint64(0)
    for i in range(len(frame)):
        total += np.uint64(frame[i]) * factors[i]
    return np.int64((total >> np.uint64(32)) & np.uint64(len(first) - 1))


@inner()
def _equal(one: Array, two: Array) -> bool:
    differs = one[0] ^ two[0]
    for i in range(1, len(one)):
        differs |= one[i] ^ two[i]
    return differs == 0
