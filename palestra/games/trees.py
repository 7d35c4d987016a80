"""Dicts and tuples of tensors: copied, cut to one world, compared."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor


def tensors_in(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Tensor]]:
    """All tensors in tuples and dicts, each with its keys."""
    if isinstance(value, Tensor):
        yield place, value
    elif isinstance(value, Mapping | tuple):
        for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from tensors_in(item, (*place, key))


def memory_of(value: Any) -> set[int]:
    """Where its tensors lie."""
    return {tensor.untyped_storage().data_ptr() for _, tensor in tensors_in(value) if tensor.numel()}


def changed(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Mapping):
        return {key: changed(item, change) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(changed(item, change) for item in value)
    return change(value) if isinstance(value, Tensor) else value


def copied(value: Any) -> Any:
    return changed(value, torch.clone)


def row_of(value: Any, world: int) -> Any:
    """The rows of one world, in tensors of their own."""
    return changed(value, lambda tensor: tensor[world : world + 1].clone())


def are_same(one: Any, other: Any, tolerance: float = 0.0) -> bool:
    """Whether all tensors are the same, NaN included. tolerance: how far floats may differ, relatively."""
    left, right = dict(tensors_in(one)), dict(tensors_in(other))
    if left.keys() != right.keys():
        return False
    return all(is_same(value, right[place], tolerance) for place, value in left.items())


def is_same(one: Tensor, other: Tensor, tolerance: float) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype or one.device != other.device:
        return False
    if one.is_meta:
        return True  # there are no numbers
    return torch.allclose(one, other, rtol=tolerance, atol=tolerance, equal_nan=one.is_floating_point())
