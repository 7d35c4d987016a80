"""Uniform replay memory: a ring of rows on one device."""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, Protocol

import numba
import numpy as np
import torch
from torch import Tensor

from palestra.buffers.rows import RowLayout
from palestra.config import Config, PositiveInt
from palestra.randomness import U_GAMMA, base_key, fold, mix, random_integers


class UniformReplayConfig(Config):
    name: Literal["uniform"]
    """every stored transition is drawn with equal probability, with replacement"""
    capacity: PositiveInt
    """transitions kept; the oldest go first"""


class HasCapacity(Protocol):
    """What the config of every replay buffer says."""

    @property
    def capacity(self) -> int: ...


class Batch(NamedTuple):
    """Room for drawn rows. places: int64 (num,). words: int64 (num, W). rows: views of words."""

    places: Tensor
    words: Tensor
    rows: dict[str, Tensor]


class ReplayBuffer:
    """The last `capacity` rows of a stream of rows 0, 1, 2, ...; row i lies at place i % capacity.

    A row is a dict of tensors of any shapes and types (a dict observation is several entries); the first `add` fixes
    them. What is drawn depends on (seed, stream, number of draws so far) alone. Nothing waits for a GPU, except
    `num_added` and `is_empty`.
    """

    def __init__(self, config: HasCapacity, device: torch.device, seed: int, stream: str) -> None:
        self.capacity = config.capacity
        self.device = device
        self._on_cpu = device.type == "cpu"
        self.key = base_key(seed, stream)
        self.num_samples = 0
        self._added = torch.zeros((), dtype=torch.int64, device=device)
        self._known_filled = False
        self._storage: dict[str, Tensor] = {}
        self._staged: dict[int, Batch] = {}
        self._drawn: dict[int, Batch] = {}

    @property
    def num_added(self) -> int:
        """Rows ever added."""
        return int(self._added)

    def __len__(self) -> int:
        return min(self.num_added, self.capacity)

    @property
    def is_empty(self) -> bool:
        """Whether no row was ever added. Waits for a GPU until one was."""
        self._known_filled = self._known_filled or self.num_added > 0
        return not self._known_filled

    def add(self, rows: Mapping[str, Tensor], valid: Tensor) -> None:
        """Append the rows of a batch where `valid`, in their order. ValueError if the batch exceeds the capacity."""
        if len(valid) > self.capacity:
            raise ValueError(f"a batch of {len(valid)} rows does not fit a replay buffer of capacity {self.capacity}")
        if not self._storage:
            self._allocate(rows)
        staged = self._room(self._staged, len(valid))
        for name, value in staged.rows.items():
            value.copy_(rows[name])
        self._append(staged, valid)

    def _append(self, staged: Batch, valid: Tensor) -> None:
        """Fills in the places, too; those of rows that are not valid are the spare one behind the ring."""
        if self._on_cpu:
            _append(*(t.numpy() for t in (self._words, staged.words, valid, staged.places, self._added)))
        else:  # a GPU cannot say how many are valid without a wait
            places = (self._added + valid.cumsum(0) - 1) % self.capacity
            staged.places.copy_(torch.where(valid, places, self.capacity))
            self._words.index_copy_(0, staged.places, staged.words)
            self._added += valid.sum()

    def sample(self, batch_size: int) -> dict[str, Tensor]:
        """`batch_size` rows, drawn uniformly with replacement. ValueError while the buffer is empty.

        The next sample of that size is written over them: clone what is to stay.
        """
        if self.is_empty:
            raise ValueError("the replay buffer is empty: add transitions before sampling")
        batch = self._room(self._drawn, batch_size)
        self._draw(batch.places)
        self.num_samples += 1
        torch.index_select(self._words, 0, batch.places, out=batch.words)
        return batch.rows

    def _draw(self, places: Tensor) -> None:
        """Fill with the places of rows that are held."""
        if self._on_cpu:
            _draw(self.key, self.num_samples, len(self), places.numpy())
        else:
            key = torch.tensor(self.key, device=self.device)
            high = self._added.clamp(max=self.capacity)
            places.copy_(random_integers(fold(key, self.num_samples), len(places), high))

    def _allocate(self, rows: Mapping[str, Tensor]) -> None:
        """The row behind the ring is for what is not to be kept."""
        self._layout = RowLayout(rows)
        shape = (self.capacity + 1, self._layout.num_words)
        if self._on_cpu:  # numpy asks for huge pages: rows drawn at random from much memory come a third faster
            self._words = torch.from_numpy(np.zeros(shape, dtype=np.int64))
        else:
            self._words = torch.zeros(shape, dtype=torch.int64, device=self.device)
        self._storage = self._layout.views(self._words)

    def _room(self, batches: dict[int, Batch], num: int) -> Batch:
        """A batch of that size, made once: to make its views takes longer than to fill them."""
        if num not in batches:
            words = torch.zeros(num, self._layout.num_words, dtype=torch.int64, device=self.device)
            places = torch.zeros(num, dtype=torch.int64, device=self.device)
            batches[num] = Batch(places, words, self._layout.views(words))
        return batches[num]

    # ---- what a checkpoint holds: the rows in segments, and this ----------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """All but the rows."""
        return {"num_added": self.num_added, "num_samples": self.num_samples}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._added.fill_(state["num_added"])
        self.num_samples = state["num_samples"]
        self._known_filled = False

    def rows(self, start: int, stop: int) -> dict[str, Tensor]:
        """Rows start..stop-1 of the stream, as far as they are still held. IndexError otherwise."""
        if not max(self.num_added - self.capacity, 0) <= start <= stop <= self.num_added:
            raise IndexError(f"rows {start}..{stop} are not held: {self.num_added} added, capacity {self.capacity}")
        places = torch.arange(start, stop, device=self.device) % self.capacity
        return {name: value.index_select(0, places) for name, value in self._storage.items()}

    def load_rows(self, start: int, rows: Mapping[str, Tensor]) -> None:
        """Put rows back to where they were; start: the first one's number in the stream."""
        if not self._storage:
            self._allocate(rows)
        num = len(next(iter(rows.values())))
        places = torch.arange(start, start + num, device=self.device) % self.capacity
        for name, value in rows.items():
            self._storage[name].index_copy_(0, places, value.to(self.device))


# ---- the same on a CPU: loops that start many times faster than operations of torch -------------------


@numba.njit(cache=True, nogil=True)
def _append(storage: np.ndarray, staged: np.ndarray, valid: np.ndarray, places: np.ndarray, added: np.ndarray) -> None:
    capacity = len(storage) - 1
    for row in range(len(valid)):
        places[row] = capacity
        if valid[row]:
            places[row] = added[()] % capacity
            added[()] += 1
            for word in range(storage.shape[1]):
                storage[places[row], word] = staged[row, word]


@numba.njit(cache=True, nogil=True)
def _draw(key: int, num_samples: int, high: int, places: np.ndarray) -> None:
    state = mix(np.uint64(key) + np.uint64(num_samples + 1) * U_GAMMA)
    for i in range(len(places)):
        state += U_GAMMA
        places[i] = np.int64((mix(state) >> np.uint64(33)) * np.uint64(high) >> np.uint64(31))
