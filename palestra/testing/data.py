"""Checks that a data set of your own keeps the promises on which runs that learn from it rely."""

from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.reduction import ForkingPickler
from typing import Any, Literal

import torch
from torch.utils import _pytree as pytree

from palestra.config import ConfigError, ConfigErrorItem, check, failure
from palestra.data.order import WeightedConfig
from palestra.data.reading import BatchKey, Reader, Unread, hash_of
from palestra.data.sets import TRAIN, make_sets
from palestra.kinds.data.config import OnlySets

NAME = "data"
SEED = 0


def check_data(data: Any, num_items: int = 100, start_method: Literal["fork", "forkserver", "spawn"] = "fork") -> None:
    """Read items of a data set several times, and check that they depend on nothing but the seed, epoch and index.

    data: the set, or a mapping of its keys as they stand below `data.train` in a config. num_items: how many items are
    read, in equal steps from the first to the last one. start_method: how workers start; unless it is fork, the set is
    also sent to one.

    It checks that there are as many items as `len` says; that an item has the same bits whenever it is read, with the
    generators of Python, NumPy and torch seeded alike, and numbers that are finite; and that items go together in a
    batch. Raises ConfigError with a line for every fault, which begins with the method's name.
    """
    if isinstance(data, Mapping):
        data = make_sets(check({"data": {TRAIN: dict(data)}}, OnlySets).data, SEED)[TRAIN]
    ConfigError.require_none(_faults(data, num_items, start_method))


def _faults(data: Any, num_items: int, start_method: str) -> Iterator[ConfigErrorItem]:
    try:
        num = len(data)
    except Exception as error:
        yield ConfigErrorItem("__len__", f"expected the number of items, but it raises {failure(error)}")
        return
    if num == 0:
        yield ConfigErrorItem("__len__", "expected items, got none")
        return
    indices = torch.linspace(0, num - 1, min(num, num_items)).round().long().tolist()
    reader = Reader(NAME, data, None, "per_item", SEED)
    reader.collate = lambda items: items
    items, unread = _read(reader, indices)
    again, _ = _read(reader, indices[::-1])
    for index in indices:
        if index in unread:
            yield ConfigErrorItem("__getitem__", unread[index].message.removeprefix(f"{NAME}: "))
            return
        if (entry := _not_finite(items[index])) is not None:
            yield ConfigErrorItem("__getitem__", f"expected finite numbers, got {entry} in item {index}")
            break
        if hash_of(items[index], "") != hash_of(again.get(index), ""):
            expected = "expected the same item at every reading with generators seeded alike"
            yield ConfigErrorItem("__getitem__", f"{expected}, got two of index {index}")
            break
    together = Reader(NAME, data, getattr(data, "collate", None), "per_item", SEED)[BatchKey(0, 0, tuple(indices))]
    if isinstance(together, Unread):
        yield ConfigErrorItem("collate", together.message.removeprefix(f"{NAME}: "))
    if hasattr(data, "weights"):
        try:
            WeightedConfig(name="weighted", num_drawn=None).build(data, num, SEED)
        except ConfigError as error:
            yield ConfigErrorItem("weights", error.errors[0].message)
    if start_method != "fork":
        try:
            ForkingPickler.dumps(data)
        except Exception as error:
            yield ConfigErrorItem(
                "", f"expected a set that can be sent to a worker ({start_method}), got {failure(error)}"
            )


def _read(reader: Reader, indices: Sequence[int]) -> tuple[dict[int, Any], dict[int, Unread]]:
    """Read items alone, each as the first batch of epoch 0; return them, and those that cannot be read, by index."""
    found = {index: reader[BatchKey(0, 0, (index,))] for index in indices}
    unread = {index: each for index, each in found.items() if isinstance(each, Unread)}
    return {index: each for index, each in found.items() if index not in unread}, unread


def _not_finite(item: Any) -> str | None:
    """Return a number of an item that is not finite, as text; None if all are."""
    for leaf in pytree.tree_leaves(item):
        try:
            numbers = torch.as_tensor(leaf)
        except (TypeError, ValueError, RuntimeError):
            continue  # no numbers
        if numbers.is_floating_point() and not numbers.isfinite().all():
            return str(numbers[~numbers.isfinite()].flatten()[0].item())
    return None
