"""What a first batch shows of a model before it learns: the sizes of lazy weights, and that batch norm needs items."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from palestra.config import ConfigError, failure
from palestra.models.gradients import sizes_of
from palestra.models.learning import LearningConfig
from palestra.nets.modes import evaluation_mode

ONE_VALUE = "more than 1 value per channel"  # in what torch says of a batch that is too small


def has_lazy_weights(model: nn.Module) -> bool:
    """Return whether the sizes of some weights, as those of nn.LazyLinear, are found by a first batch."""
    return any(map(is_lazy, (*model.parameters(), *model.buffers())))


def make_real(model: nn.Module, batch: Any) -> None:
    """Let a batch give lazy weights their sizes. Raises ConfigError if the model fails on it."""
    try:
        with torch.no_grad(), evaluation_mode([model]):
            model(batch)
    except Exception as error:
        message = f"{type(model).__name__}, whose lazy weights get their sizes from a first item, fails on it"
        raise ConfigError.at("model", f"{message}: {failure(error)}") from error


def require_items_for_batch_norm(
    model: nn.Module, first_batch: Callable[[], Any], num_items: int, learning: LearningConfig
) -> None:
    """Raise ConfigError if batch norm gets a batch of one item, or a piece of one, with which it cannot learn.

    first_batch: reads a batch of one item. num_items: of an epoch.
    """
    norms = [name for name, each in model.named_modules() if isinstance(each, _BatchNorm) and each.training]
    assert learning.batch_size is not None
    size, num = min(learning.batch_size, num_items), learning.num_microbatches
    rest = num_items % size if learning.last_batch == "keep" else 0
    is_whole = 1 in sizes_of(size, num)
    if not norms or not (is_whole or 1 in sizes_of(rest, num)):
        return
    try:
        with torch.no_grad():
            copy.deepcopy(model)(first_batch())
    except ValueError as error:
        if ONE_VALUE not in str(error):
            return
        why = f"because batch norm ({norms[0]}) cannot learn from one item"
        key, expected, got = "last_batch", "'drop'", f"'keep', which leaves one of {num_items} for a batch or a piece"
        if is_whole and num > 1:
            key, expected, got = "num_microbatches", f"pieces of at least 2 of {size} items", str(num)
        elif is_whole:
            key, expected, got = "batch_size", "at least 2 items", str(size)
        raise ConfigError.at(f"learning.{key}", f"expected {expected}, {why}, got {got}") from error
