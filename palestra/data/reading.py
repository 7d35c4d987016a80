"""Reads batches of a data set, in this process or in workers: the same items either way, and the same random numbers.

A batch is read by its key, which names the epoch and the items. So a batch depends on nothing but its key: not on the
worker that reads it, nor on the batches that were read before.
"""

import hashlib
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from multiprocessing.reduction import ForkingPickler
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch.utils import _pytree as pytree
from torch.utils.data import Dataset

from palestra.config import Failed
from palestra.data.items import TensorItems, joined_items
from palestra.data.workers import packed
from palestra.randomness import base_key, fold, fold_number, global_states, restored_global_states, seed_global_states

Seeding = Literal["per_item"]
MOST_NAMED = 8  # items that a message names
REMEDY = "a method `collate(items)` of the data set may join them"
COLLATING = 2**40  # above the numbers of items; by it and the number of a batch `collate` is seeded


class BatchKey(NamedTuple):
    """Which batch it is.

    number: within its epoch, from 0. items: their indices in the data set; () where a loader of the user's own reads.
    """

    epoch: int
    number: int
    items: tuple[int, ...]

    def __str__(self) -> str:
        if not self.items:  # of a loader of the user's own, who knows them
            return f"batch {self.number} of epoch {self.epoch}"
        shown = ", ".join(map(str, self.items[:MOST_NAMED])) + (", ..." if len(self.items) > MOST_NAMED else "")
        return f"batch {self.number} of epoch {self.epoch} (items {shown})"


class DataFailed(Failed):
    """An item cannot be read, items do not go together in a batch, or a worker has died or is late.

    told: the traceback of the data set's code, if it has raised.
    """

    def __init__(self, message: str, told: str | None = None) -> None:
        super().__init__(message)
        self.told = told
        if told is not None:
            self.add_note(told)  # which a printed traceback, as in failure.txt, shows


class Unread(NamedTuple):
    """What a reader gives in place of a batch that cannot be read: workers cannot raise every exception."""

    message: str
    told: str | None


class Reader(Dataset[Any]):
    """The batches of a data set by their keys.

    name: of the set in the config, for messages. data: map-style, `data[index]` and `len(data)`. collate: makes a batch
    of a list of items. seeding: per_item seeds the global generators of Python, NumPy and torch (on the CPU) by the
    seed, the epoch and the item before the item is read, and by the batch before `collate`; None: nothing is seeded,
    and an item that draws is an error. The generators are afterwards as they were.

    check: finds what is wrong with a batch, if anything: the place of an item in it, and what the item has.
    """

    check: Callable[[Any], tuple[int, str] | None] | None = None

    def __init__(
        self, name: str, data: Any, collate: Callable[[list[Any]], Any] | None, seeding: Seeding | None, seed: int
    ) -> None:
        self.name, self.data, self.collate, self.seeding = name, data, collate or joined_items, seeding
        self.key = fold_number(base_key(seed, f"data/{name}"), 0)
        reading = [getattr(type(data), name, None) for name in ("__getitem__", "batch")]
        self.reads_at_once = collate is None and reading == [TensorItems.__getitem__, TensorItems.batch]

    def __getstate__(self) -> Any:
        """Return what a worker is sent, which needs of items that lie in tensors nothing else, such as their file."""
        return packed(self.__dict__ | ({"data": TensorItems(self.data.entries, None)} if self.reads_at_once else {}))

    def __setstate__(self, state: Any) -> None:
        self.__dict__.update(ForkingPickler.loads(state))

    def __getitem__(self, key: BatchKey) -> Any:
        """Return the batch of a key, or Unread."""
        if self.reads_at_once:
            return self.data.batch(key.items)
        with restored_global_states() if self.seeding else nullcontext():
            batch = self._read(key)
        if self.check is not None and not isinstance(batch, Unread) and (fault := self.check(batch)) is not None:
            return Unread(f"{self.name}: item {key.items[fault[0]]} has {fault[1]}; {key}", None)
        return batch

    def first_batch(self) -> Any:
        """Return the batch of item 0 alone. Raises DataFailed."""
        if isinstance(batch := self[BatchKey(0, 0, (0,))], Unread):
            raise DataFailed(*batch)
        return batch

    def _read(self, key: BatchKey) -> Any:
        items: list[Any] = []
        before = None if self.seeding else global_states()
        try:
            if self.seeding:
                numbers = fold(torch.tensor(fold_number(self.key, key.epoch)), torch.tensor(key.items)).tolist()
                for index, number in zip(key.items, numbers, strict=True):
                    seed_global_states(number % 2**63)
                    items.append(self.data[index])
            else:
                items.extend(map(self.data.__getitem__, key.items))
        except (Exception, SystemExit) as error:
            hint = f", although its length is {len(self.data)}" if isinstance(error, IndexError) else ""
            return _failed(f"{self.name}: item {key.items[len(items)]} cannot be read{hint}", key, error)
        try:
            if self.seeding and self.collate is not joined_items:
                seed_global_states(fold_number(fold_number(self.key, key.epoch), COLLATING + key.number) % 2**63)
            batch = self.collate(items)
        except Exception as error:
            if self.collate is not joined_items:
                return _failed(f"{self.name}: `collate` fails", key, error)
            if (fault := differing(items, key.items)) is not None:
                return Unread(f"{self.name}: {fault}; {key}; {REMEDY}", None)
            return _failed(f"{self.name}: its items do not go together", key, error, f"; {REMEDY}")
        if before is not None and global_states() != before:
            return Unread(f"{self.name}: {self._who_draws(key)}; expected none, because `seeding` is null", None)
        return batch

    def _who_draws(self, key: BatchKey) -> str:
        """Read the items once more, one by one: one that draws is found by the generators that it moves."""
        for index in key.items:
            before = global_states()
            self.data[index]
            if global_states() != before:
                return f"item {index} draws random numbers"
        return f"some item or `collate` draws random numbers, in {key}"


def _failed(what: str, key: BatchKey, error: BaseException, remedy: str = "") -> Unread:
    why = f"{type(error).__name__}: {error}".splitlines()[0]
    return Unread(f"{what}: {why}; {key}{remedy}", traceback.format_exc())


def differing(items: Sequence[Any], indices: Sequence[int]) -> str | None:
    """Say which item is the first that is not built as the first one is; None if all are alike.

    indices: of the items in the data set.
    """
    kinds = [dict(kinds_of(item, "")) for item in items]
    for place, kind in enumerate(kinds):
        for path in dict.fromkeys([*kinds[0], *kind]):
            if kinds[0].get(path) != kind.get(path):
                one, another = (
                    f"is {path}{each[path]}" if path in each else f"has no {path.rstrip(': ')!r}"
                    for each in (kinds[0], kind)
                )
                return f"item {indices[place]} {another}, but item {indices[0]} {one}"
    return None


def kinds_of(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yield for each entry of an item its path and what it is: type, and of arrays dtype and shape."""
    if isinstance(value, Mapping):
        yield path, "a mapping"
        for key, each in value.items():
            yield from kinds_of(each, f"{path}{key}: ")
    elif isinstance(value, tuple | list):
        yield path, f"a {type(value).__name__} of {len(value)}"
        for place, each in enumerate(value):
            yield from kinds_of(each, f"{path}{place}: ")
    elif isinstance(value, torch.Tensor | np.ndarray):
        yield path, f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    else:
        yield path, f"of type {type(value).__name__}"


def hash_of(batch: Any, before: str) -> str:
    """Return the SHA-256, as hex digits, of a batch and of what was hashed before it."""
    found = hashlib.sha256(before.encode())
    for leaf in pytree.tree_leaves(batch):
        if isinstance(leaf, np.ndarray) and leaf.dtype != object:
            found.update(f"{leaf.dtype}{leaf.shape}".encode())
            found.update(np.ascontiguousarray(leaf).tobytes())
        elif isinstance(leaf, torch.Tensor):
            found.update(f"{leaf.dtype}{tuple(leaf.shape)}".encode())
            found.update(leaf.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
        elif isinstance(leaf, Mapping):  # such as a BatchEncoding
            found.update(hash_of(dict(leaf), "").encode())
        elif leaf is None or isinstance(leaf, str | bytes | int | float):
            found.update(repr(leaf).encode())
        else:  # an object whose text may hold its address
            found.update(type(leaf).__name__.encode())
    return found.hexdigest()
