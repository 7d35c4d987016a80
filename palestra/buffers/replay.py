"""Uniform replay: a ring buffer of rows; and PlaneStores, which stores the images of rows, every plane once."""

from collections import Counter
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from palestra.buffers.frames import FrameStore
from palestra.buffers.memory import Reserved, room_for
from palestra.buffers.packed import Rows, is_image, list_name, num_rows, part, whole
from palestra.config import Config, InBranch, NonEmptyStr, PositiveInt, UserConfig, check
from palestra.randomness import U_GAMMA, base_key, fold, mix, random_integers
from palestra.runtime.compiling import njit
from palestra.runtime.timing import TimeLog

Layout = Literal["whole", "frames_once"]
PIECE = 512  # rows of which images are whole at once, while they are read or written


class ReplayConfig(Config):
    """The base of the configs of replay buffers: the keys that every buffer has."""

    @classmethod
    def usual(cls, said: Mapping[str, Any], spaces: Any) -> dict[str, Any]:
        has_images = any(space.is_image for space in spaces.observation.values())
        return {"capacity": 100_000, "layout": "frames_once" if has_images else "whole"}

    name: str
    capacity: PositiveInt
    """transitions held; new ones replace the oldest"""
    layout: Annotated[Layout, InBranch.FREE]
    """whole: complete rows; frames_once: every frame of images once, in the CPU's memory"""
    scratch_folder: Annotated[NonEmptyStr | None, InBranch.FREE]
    """folder for unnamed files that hold the rows, if they do not fit in memory; null: in memory"""


class UniformReplayConfig(ReplayConfig):
    name: Literal["uniform"]
    """every stored transition is drawn with equal probability, with replacement"""

    def build(self, device: torch.device, seed: int, stream: str) -> "ReplayBuffer":
        return ReplayBuffer(self, device, seed, stream)


class UserReplayConfig(UserConfig, ReplayConfig):
    """The base of the `Config` of a user's own replay buffer, with the keys that every buffer has."""


class Batch(NamedTuple):
    """Preallocated tensors for `num` rows in stored form.

    places: int64 (num,). words: int64 (num, W). rows: views of words; for an image, the slots of its frames if frames
    are shared.
    """

    places: Tensor
    words: Tensor
    rows: dict[str, Tensor]


class ReplayBuffer:
    """The last `capacity` rows of a stream of rows 0, 1, 2, ...; row i lies at place i % capacity.

    A user's own class derives from it, carries its `Config`, a UserReplayConfig, and overrides `draw`.

    A row is a dict of tensors of any shapes and types (a dict observation is several entries); the first `add` fixes
    them. The draws depend on (seed, stream, number of draws so far) alone, not on where and how rows are stored. Rows
    lie on the device or, in files and with shared frames, on the CPU; samples are on the device. Only `num_added`,
    `is_empty` and buffers with rows on the CPU wait for a GPU.

    config: in a loop of your own it may be the capacity alone, which means whole rows in memory.
    """

    def __init__(
        self, config: ReplayConfig | int, device: torch.device | str = "cpu", seed: int = 0, stream: str = "replay"
    ) -> None:
        if isinstance(config, int):
            keys = {"name": "uniform", "capacity": config, "layout": "whole", "scratch_folder": None}
            config = check(keys, UniformReplayConfig)
        self.config: Any = config
        self.capacity, self.shares_frames = config.capacity, config.layout == "frames_once"
        self.folder = None if config.scratch_folder is None else Path(config.scratch_folder)
        self.device = torch.device(device)
        self.home = torch.device("cpu") if self.shares_frames or self.folder is not None else self.device
        self._on_cpu = self.home.type == "cpu"
        self.key, self.num_samples = base_key(seed, stream), 0
        self._added, self._known_filled = torch.zeros((), dtype=torch.int64, device=self.home), False
        self._storage: dict[str, Tensor] = {}
        self._planes: PlaneStores | None = None
        self.row_bytes = 1  # with images; known since the first row
        self._staged, self._drawn = dict[int, Batch](), dict[int, Batch]()
        self._images: dict[int, dict[str, Tensor]] = {}
        self.time_log = TimeLog(self.home)

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
        """Append the rows of a batch for which `valid` is true, in order.

        Raises ValueError if the batch exceeds the capacity or its rows differ from those held in names, types or
        shapes, NoRoom if memory or disk do not suffice.
        """
        with self.time_log.during("memory"):
            if len(valid) > self.capacity:
                raise ValueError(
                    f"expected a batch of at most {self.capacity} rows, the buffer's capacity, got {len(valid)}"
                )
            if not self._storage:
                self._allocate(rows)
            if len(valid) not in self._staged:
                _require_same(rows, self._kinds)
            staged, valid = self._preallocated(self._staged, len(valid)), valid.to(self.home)
            if self._planes is not None:
                first = self.num_added
                self._forget(first, first + int(valid.sum()))
                rows = self._planes.hold(rows, valid)
            for name, value in staged.rows.items():
                value.copy_(rows[name])
            self._append(staged, valid)

    def _forget(self, start: int, stop: int) -> None:
        """Release the frames of the rows that rows start..stop-1 will replace."""
        assert self._planes is not None
        places = torch.arange(start, stop) % self.capacity
        self._planes.release({name: self._storage[name][places] for name in self._planes.images})

    def _append(self, staged: Batch, valid: Tensor) -> None:
        """Store the rows, and set their places; invalid rows go to the spare place behind the ring."""
        if self._on_cpu:
            _append(*(t.numpy() for t in (self._words, staged.words, valid, staged.places, self._added)))
        else:  # counting the valid rows would wait for the GPU
            places = (self._added + valid.cumsum(0) - 1) % self.capacity
            staged.places.copy_(torch.where(valid, places, self.capacity))
            self._words.index_copy_(0, staged.places, staged.words)
            self._added += valid.sum()

    def sample(self, batch_size: int) -> dict[str, Tensor]:
        """Draw `batch_size` rows with replacement; they are on the device. Raises ValueError if the buffer is empty.

        The next sample of the same size overwrites these tensors: clone what you keep.
        """
        with self.time_log.during("memory"):
            if self.is_empty:
                raise ValueError("expected transitions in the replay buffer before sampling, got an empty buffer")
            batch = self._preallocated(self._drawn, batch_size)
            self.draw(batch.places)
            self.num_samples += 1
            torch.index_select(self._words, 0, batch.places, out=batch.words)
            rows = batch.rows
            if self._planes is not None:
                if batch_size not in self._images:
                    self._images[batch_size] = self._planes.empty_images(batch_size)
                rows = self._planes.with_images(rows, self._images[batch_size])
            return rows if self.home == self.device else {name: value.to(self.device) for name, value in rows.items()}

    def draw(self, places: Tensor) -> None:
        """Fill `places` with drawn places of stored rows, each below `len(self)`: int64 (batch,), on `home`.

        Row i of the stream lies at place i % capacity, and the newest row is num_added - 1. Random numbers come from
        `draw_key()` alone.
        """
        if self._on_cpu:
            _draw(self.key, self.num_samples, len(self), places.numpy())
        else:
            high = self._added.clamp(max=self.capacity)
            places.copy_(random_integers(self.draw_key(), len(places), high).squeeze(0))

    def draw_key(self) -> Tensor:
        """Return the key of this draw's random numbers (palestra.randomness): int64 (1,), another for every sample."""
        return fold(torch.tensor([self.key], device=self.home), self.num_samples)

    def _allocate(self, rows: Mapping[str, Tensor]) -> None:
        """Allocate the storage: `capacity` rows, and one more for invalid rows."""
        self._kinds = kinds_of(rows)
        self.row_bytes = sum(value.shape[1:].numel() * value.dtype.itemsize for value in rows.values())
        if self.shares_frames:
            self._planes = PlaneStores(rows, self.capacity, self.folder)
            rows = self._planes.hold(rows, torch.zeros(num_rows(rows), dtype=torch.bool))
        self._layout = RowLayout(rows)
        shape = (self.capacity + 1, self._layout.num_words)
        num_bytes = shape[0] * shape[1] * BYTES_PER_WORD
        if self.folder is not None:
            self._reserved = Reserved(num_bytes, self.folder)
            self._reserved.take(len(self._reserved.octets))
            self._words = torch.from_numpy(self._reserved.octets.view(np.int64).reshape(shape))
        else:
            with room_for(num_bytes):
                if self._on_cpu:  # numpy uses huge pages, and raises if memory does not suffice
                    self._words = torch.from_numpy(np.zeros(shape, dtype=np.int64))
                else:
                    self._words = torch.zeros(shape, dtype=torch.int64, device=self.home)
        self._storage = self._layout.views(self._words)

    def _preallocated(self, batches: dict[int, Batch], num: int) -> Batch:
        """Return the preallocated batch of that size.

        It is made once, because making its views takes longer than filling them.
        """
        if num not in batches:
            words = torch.zeros(num, self._layout.num_words, dtype=torch.int64, device=self.home)
            places = torch.zeros(num, dtype=torch.int64, device=self.home)
            batches[num] = Batch(places, words, self._layout.views(words))
        return batches[num]

    # ---- what a checkpoint holds: the rows in segments, and this ----------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the state without the rows."""
        return {"num_added": self.num_added, "num_samples": self.num_samples}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._added.fill_(state["num_added"])
        self.num_samples = state["num_samples"]
        self._known_filled = False

    def rows(self, start: int, stop: int) -> dict[str, Tensor]:
        """Return rows start..stop-1 of the stream. Raises IndexError if some are no longer held."""
        rows = self._stored(start, stop)
        return rows if self._planes is None else self._planes.with_images(rows, self._planes.empty_images(stop - start))

    def packed_rows(self, start: int, stop: int) -> dict[str, Tensor]:
        """Return rows start..stop-1, packed, on the CPU (see palestra.buffers.packed)."""
        if self._planes is not None:
            return self._planes.pack(self._stored(start, stop))
        if not any(map(is_image, self._storage.values())):
            return {name: value.cpu() for name, value in self._stored(start, stop).items()}
        planes = PlaneStores(self._storage, stop - start, None)
        pieces = []
        for first in range(start, stop, PIECE):
            rows = {name: value.cpu() for name, value in self._stored(first, min(first + PIECE, stop)).items()}
            pieces.append(planes.hold(rows, torch.ones(num_rows(rows), dtype=torch.bool)))
        return planes.pack({name: torch.cat([piece[name] for piece in pieces]) for name in self._storage})

    def load_rows(self, start: int, packed: Mapping[str, Tensor]) -> None:
        """Restore packed rows start, start + 1, ...

        Raises ValueError for more rows than the capacity, and for rows that differ from those held in names, types or
        shapes.
        """
        num = num_rows(packed)
        if num > self.capacity:
            raise ValueError(f"expected at most {self.capacity} rows, the buffer's capacity, got {num}")
        if not self._storage:
            self._allocate(whole(part(packed, 0, 1)))
        if self._planes is not None:
            self._forget(start, start + num)
            self._put(start, self._planes.unpack(packed))
        else:
            size = PIECE if any(map(is_image, self._storage.values())) else num
            for first in range(0, num, size):
                self._put(start + first, whole(part(packed, first, first + size)))

    def _stored(self, start: int, stop: int) -> dict[str, Tensor]:
        if not max(self.num_added - self.capacity, 0) <= start <= stop <= self.num_added:
            held = f"{max(self.num_added - self.capacity, 0)} to {self.num_added}"
            raise IndexError(f"expected rows among those held, {held}, got {start} to {stop}")
        places = torch.arange(start, stop, device=self.home) % self.capacity
        return {name: value.index_select(0, places) for name, value in self._storage.items()}

    def _put(self, start: int, stored: Mapping[str, Tensor]) -> None:
        _require_same(stored, kinds_of(self._storage))
        places = torch.arange(start, start + num_rows(stored), device=self.home) % self.capacity
        for name, value in stored.items():
            self._storage[name].index_copy_(0, places, value.to(self.home))


def kinds_of(rows: Mapping[str, Tensor]) -> dict[str, str]:
    """Describe the type and the shape of each entry of a row, by name."""
    return {name: f"{value.dtype} {tuple(value.shape[1:])}" for name, value in sorted(rows.items())}


def _require_same(rows: Mapping[str, Tensor], held: dict[str, str]) -> None:
    """Raise ValueError unless rows have the names, types and shapes of those that the buffer holds."""
    if (got := kinds_of(rows)) != held:
        raise ValueError(f"expected rows as the replay buffer holds them, {held}, got {got}")


# ---- images, every plane once ------------------------------------------------------------------------------


class PlaneStores:
    """Stores the planes of the images in at most `num_rows` rows, in one FrameStore per size. C: planes of an image.

    Stored rows have slots instead of images: int32 (N, C). Names are sorted, so that equal rows are packed into equal
    bytes, also after a resume.

    rows: example rows, of any number.
    """

    def __init__(self, rows: Mapping[str, Tensor], num_rows: int, folder: Path | None) -> None:
        self.images = {name: tuple(value.shape[1:]) for name, value in sorted(rows.items()) if is_image(value)}
        planes: Counter[tuple[int, ...]] = Counter()
        for channels, *size in self.images.values():
            planes[tuple(size)] += channels
        self.stores = {size: FrameStore(num_rows * num, prod(size), folder) for size, num in planes.items()}

    def hold(self, rows: Mapping[str, Tensor], valid: Tensor) -> Rows:
        """Store the images of the valid rows, and return all rows with slots instead of images."""
        held = dict(rows)
        for name, (channels, height, width) in self.images.items():
            planes = rows[name].reshape(-1, height * width)
            each = valid.repeat_interleave(channels).numpy()
            held[name] = self.stores[height, width].hold(planes, each).view(-1, channels)
        return held

    def release(self, rows: Mapping[str, Tensor]) -> None:
        """Release the planes of rows with slots."""
        for name, (_, *size) in self.images.items():
            self.stores[tuple(size)].release(rows[name].flatten())

    def empty_images(self, num: int) -> Rows:
        """Allocate tensors for the images of `num` rows."""
        return {name: torch.empty(num, *shape, dtype=torch.uint8) for name, shape in self.images.items()}

    def with_images(self, rows: Rows, images: Rows) -> Rows:
        """Return rows with images in place of slots; the images are written into `images`."""
        for name, image in images.items():
            store = self.stores[tuple(image.shape[2:])]
            torch.index_select(store.frames, 0, rows[name].flatten(), out=image.view(-1, store.num_bytes))
        return rows | images

    def pack(self, rows: Mapping[str, Tensor]) -> Rows:
        """Pack rows with slots. The result does not depend on the numbers of the slots."""
        packed = {name: value for name, value in rows.items() if name not in self.images}
        for size, store in self.stores.items():
            names = self._names(size)
            slots = torch.cat([rows[name] for name in names], dim=1)
            found, first, which = np.unique(slots.flatten().numpy(), return_index=True, return_inverse=True)
            order = np.argsort(first)
            places = np.empty(len(order), dtype=np.int32)
            places[order] = np.arange(len(order), dtype=np.int32)
            packed[list_name(size)] = store.frames[torch.from_numpy(found[order])].view(-1, *size)
            parts = torch.from_numpy(places[which]).view(slots.shape).split([self.images[name][0] for name in names], 1)
            packed |= {f"{list_name(size)}.{name}": each for name, each in zip(names, parts, strict=True)}
        return packed

    def unpack(self, packed: Mapping[str, Tensor]) -> Rows:
        """Store the images of packed rows, and return the rows with slots."""
        rows = {name: value for name, value in packed.items() if not name.startswith("#")}
        for size, store in self.stores.items():
            places = {name: packed[f"{list_name(size)}.{name}"] for name in self._names(size)}
            used = torch.cat([each.flatten() for each in places.values()]).unique()
            planes = packed[list_name(size)][used]
            slots = torch.zeros(len(packed[list_name(size)]), dtype=torch.int32)
            slots[used] = store.hold(planes.flatten(1), np.ones(len(used), dtype=np.bool_))
            for name, each in places.items():
                rows[name] = slots[each]
                store.hold_again(rows[name].flatten())
            store.release(slots[used])
        return rows

    def _names(self, size: tuple[int, ...]) -> list[str]:
        """Name the images with planes of that size."""
        return [name for name, (_, *its_size) in self.images.items() if tuple(its_size) == size]


# ---- the same on a CPU: loops that start many times faster than operations of torch -------------------


@njit()
def _append(storage: np.ndarray, staged: np.ndarray, valid: np.ndarray, places: np.ndarray, added: np.ndarray) -> None:
    capacity = len(storage) - 1
    for row in range(len(valid)):
        places[row] = capacity
        if valid[row]:
            places[row] = added[()] % capacity
            added[()] += 1
            for word in range(storage.shape[1]):
                storage[places[row], word] = staged[row, word]


@njit()
def _draw(key: int, num_samples: int, high: int, places: np.ndarray) -> None:
    state = mix(np.uint64(key) + np.uint64(num_samples + 1) * U_GAMMA)
    for i in range(len(places)):
        state += U_GAMMA
        places[i] = np.int64((mix(state) >> np.uint64(33)) * np.uint64(high) >> np.uint64(31))


BYTES_PER_WORD = 8


class RowLayout:
    """A row of several tensors as one vector of int64 words. Widest types come first, so that each tensor is aligned.

    rows: example rows, every tensor (num, ...), with any num.
    """

    def __init__(self, rows: Mapping[str, Tensor]) -> None:
        self.fields: dict[str, tuple[slice, torch.dtype, torch.Size]] = {}
        start = 0
        for name, value in sorted(rows.items(), key=lambda item: -item[1].dtype.itemsize):
            stop = start + value.shape[1:].numel() * value.dtype.itemsize
            self.fields[name] = (slice(start, stop), value.dtype, value.shape[1:])
            start = stop
        self.num_words = -(-start // BYTES_PER_WORD)

    def views(self, words: Tensor) -> dict[str, Tensor]:
        """Return the tensors by name, as views of words: int64 (num, num_words)."""
        octets = words.view(torch.uint8)
        return {
            name: octets[:, where].view(dtype).view(len(words), *shape)
            for name, (where, dtype, shape) in self.fields.items()
        }
