"""Functions on nested dicts and tuples of tensors: copy, take the rows of one world, compare."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor


def tensors_in(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Tensor]]:
    """Give all tensors in nested tuples and dicts, each with the keys that lead to it."""
    if isinstance(value, Tensor):
        yield place, value
    elif isinstance(value, Mapping | tuple):
        for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from tensors_in(item, (*place, key))


def memory_of(value: Any) -> set[int]:
    """Return the addresses of the memory of all tensors in a value."""
    return {tensor.untyped_storage().data_ptr() for _, tensor in tensors_in(value) if tensor.numel()}


def map_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return the same tree with `change` applied to every tensor."""
    if isinstance(value, Mapping):
        return {key: map_tensors(item, change) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(map_tensors(item, change) for item in value)
    return change(value) if isinstance(value, Tensor) else value


def copied(value: Any) -> Any:
    return map_tensors(value, torch.clone)


def row_of(value: Any, world: int) -> Any:
    """Return the rows of one world, in tensors of their own."""
    return map_tensors(value, lambda tensor: tensor[world : world + 1].clone())


def are_same(one: Any, other: Any, tolerance: float = 0.0) -> bool:
    """Tell whether all tensors are the same, NaN included. tolerance: how far floats may differ, relatively."""
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
