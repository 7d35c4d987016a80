"""The observations and actions of a role in programs that act without palestra, and how they are converted.

Letters: B worlds.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor


class OutsideEntry(NamedTuple):
    """One entry of an observation outside.

    shape: in one world. path: its keys in an environment's observation; () where it has no keys there.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    path: tuple[Any, ...]


@dataclass(frozen=True)
class Outside:
    """What a role observes and does outside. The functions are made of operations that torch.export traces.

    entries: of the observation. read: a batch of observations, by entry (B, *shape), as players get it. act: actions of
    players (B, ...) as they leave palestra. choose: the inverse of `act`. setting: what plays there, as plain data.
    """

    entries: Mapping[str, OutsideEntry]
    read: Callable[[dict[str, Tensor]], dict[str, Tensor]]
    act: Callable[[Tensor], Tensor]
    choose: Callable[[Tensor], Tensor]
    setting: dict[str, Any]


def unchanged(actions: Tensor) -> Tensor:
    return actions
