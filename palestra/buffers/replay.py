"""Uniform replay memory: a ring of rows on one device."""

from typing import Any, Literal

import torch
from torch import Tensor

from palestra.config import Config, PositiveInt
from palestra.randomness import base_key, fold, random_integers


class UniformReplayConfig(Config):
    name: Literal["uniform"]
    """every stored transition is drawn with equal probability, with replacement"""
    capacity: PositiveInt
    """transitions kept; the oldest go first"""


class ReplayBuffer:
    """The last `capacity` rows of a stream of rows 0, 1, 2, ...; row i lies at place i % capacity.

    A row is a dict of tensors of any shapes and types (a dict observation is several entries); the first `add` fixes
    them. What is drawn depends on (seed, stream, number of draws so far) alone. Nothing waits for a GPU, except
    `num_added` and `is_empty`.
    """

    def __init__(self, config: UniformReplayConfig, device: torch.device, seed: int, stream: str) -> None:
        self.capacity = config.capacity
        self.device = device
        self.key = torch.tensor([base_key(seed, stream)], device=device)
        self.num_samples = 0
        self._added = torch.zeros((), dtype=torch.int64, device=device)
        self._storage: dict[str, Tensor] = {}
        self._known_filled = False

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

    def add(self, rows: dict[str, Tensor], valid: Tensor) -> None:
        """Append the rows of a batch where `valid`, in their order. ValueError if the batch exceeds the capacity."""
        if len(valid) > self.capacity:
            raise ValueError(f"a batch of {len(valid)} rows does not fit a replay buffer of capacity {self.capacity}")
        if not self._storage:
            self._allocate(rows)
        if self.device.type == "cpu":
            chosen = valid.nonzero().squeeze(1)
            rows = {name: value.index_select(0, chosen) for name, value in rows.items()}
            places = (self._added + torch.arange(len(chosen))) % self.capacity
        else:  # a GPU cannot say how many are valid without a wait: the others go to the spare row behind the ring
            places = torch.where(valid, (self._added + valid.cumsum(0) - 1) % self.capacity, self.capacity)
        for name, value in rows.items():
            self._storage[name].index_copy_(0, places, value)
        self._added = self._added + valid.sum()

    def sample(self, batch_size: int) -> dict[str, Tensor]:
        """`batch_size` rows, drawn uniformly with replacement. ValueError while the buffer is empty."""
        if self.is_empty:
            raise ValueError("the replay buffer is empty: add transitions before sampling")
        places = self._draw(batch_size)
        self.num_samples += 1
        return {name: value.index_select(0, places) for name, value in self._storage.items()}

    def _draw(self, num: int) -> Tensor:
        high = self._added.clamp(max=self.capacity)
        return random_integers(fold(self.key, self.num_samples), num, high).squeeze(0)

    def _allocate(self, rows: dict[str, Tensor]) -> None:
        for name, value in rows.items():
            self._storage[name] = torch.zeros(
                self.capacity + 1, *value.shape[1:], dtype=value.dtype, device=self.device
            )

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

    def load_rows(self, start: int, rows: dict[str, Tensor]) -> None:
        """Put rows back to where they were; start: the first one's number in the stream."""
        if not self._storage:
            self._allocate(rows)
        num = len(next(iter(rows.values())))
        places = torch.arange(start, start + num, device=self.device) % self.capacity
        for name, value in rows.items():
            self._storage[name].index_copy_(0, places, value.to(self.device))
