"""Data sets whose items lie in tensors, of which a batch is read at once; how items of others are joined, and moved."""

import copy
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import Dataset
from torch.utils.data._utils.collate import collate, default_collate_fn_map

from palestra.runtime.statistics import clusters_of

LABEL = "label"  # the entry of an item that is to be predicted


class TensorItems(Dataset[dict[str, Tensor]]):
    """Items that are rows of tensors.

    entries: (N, ...) by name. label: int64 (N,) of classes, float32 (N,) or (N, numbers) of numbers;
    None: they have none.

    num_classes: of the labels; None where they are numbers.
    """

    num_classes: int | None = None

    def __init__(self, entries: Mapping[str, Tensor], label: Tensor | None) -> None:
        self.entries = {**entries, **({} if label is None else {LABEL: label})}

    def __len__(self) -> int:
        return len(next(iter(self.entries.values())))

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {name: value[index] for name, value in self.entries.items()}

    def clusters(self) -> Tensor | None:
        """Number the different items, apart from their labels; None if no two are equal."""
        entries = {name: value for name, value in self.entries.items() if name != LABEL} or self.entries
        rows = [value.reshape(len(self), -1).contiguous().view(torch.uint8).numpy() for value in entries.values()]
        digests = (blake2b(b"".join(parts), digest_size=16).digest() for parts in zip(*rows, strict=True))
        return clusters_of(digests) if len(self) > 1 else None

    def batch(self, indices: Sequence[int]) -> dict[str, Tensor]:
        """Return the batch of some items, equal to what `joined_items` makes of them."""
        rows = torch.tensor(indices)
        return {name: value[rows] for name, value in self.entries.items()}


def joined_items(items: list[Any]) -> Any:
    """Return a batch of items as torch's default_collate joins them, but with tuples where items have tuples or lists.

    There torch has lists, which in a batch have an entry for each item (palestra.models.gradients.pieces). Raises
    TypeError for items of unequal keys or types, of which torch leaves out the keys, and widens all to one type.
    """
    batch = collate(items, collate_fn_map=_JOINS)
    if not _is_alike(items, batch):
        raise TypeError("expected items of equal keys and types")
    return _with_tuples(batch)


# the same way in every process: in a worker torch would give all tensors the type of the first
_JOINS = default_collate_fn_map | {Tensor: lambda parts, **_: torch.stack(parts)}


def _is_alike(parts: Sequence[Any], joined: Any) -> bool:
    """Return whether parts of items are alike, as far as that can be told without looking into each of them.

    joined: the same part of the batch, which has another type than its parts if one of them is wider than the first.
    """
    first, last = parts[0], parts[-1]
    if isinstance(first, Mapping):
        is_whole = len(set(map(len, parts))) == 1 and first.keys() == last.keys()
        return is_whole and all(_is_alike((each, last[name]), joined[name]) for name, each in first.items())
    if isinstance(first, tuple | list):
        return all(map(_is_alike, zip(first, last, strict=True), joined))
    if isinstance(first, Tensor | np.ndarray):
        return bool(first.dtype == last.dtype) and bool(joined.dtype == torch.as_tensor(first).dtype)
    return type(first) is type(last) and (type(first) is not int or joined.dtype == torch.int64)


def _with_tuples(part: Any) -> Any:
    if type(part) is dict:
        return {name: _with_tuples(value) for name, value in part.items()}
    if type(part) is list and any(isinstance(each, Tensor | list | tuple | Mapping) for each in part):
        return tuple(_with_tuples(each) for each in part)
    return part


def with_changed_parts(batch: Any, change: Callable[[Any], Any], is_part: Callable[[Any], bool] | None = None) -> Any:
    """Return a batch in which each part is changed: what lies in lists, tuples and mappings of any kind.

    A mapping that is no dict, such as a BatchEncoding of transformers, is copied, or becomes a dict. is_part: whether
    something is a part, though it is a list, a tuple or a mapping; None: nothing is.
    """

    def changed(part: Any) -> Any:
        if not isinstance(part, Mapping) or (is_part is not None and is_part(part)):
            return change(part)
        found = copy.copy(part) if isinstance(part, MutableMapping) else dict(part)
        found.update({name: with_changed_parts(each, change, is_part) for name, each in part.items()})
        return found

    return pytree.tree_map(changed, batch, is_leaf=is_part)


def moved(batch: Any, device: torch.device) -> Any:
    """Return a batch whose tensors lie on a device."""
    return with_changed_parts(batch, lambda part: part.to(device) if isinstance(part, Tensor) else part)
