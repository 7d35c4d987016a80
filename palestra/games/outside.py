"""What a role observes and does outside palestra, and how it maps to what its players get and give: for programs that
act without palestra. Letters: B worlds.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor


class OutsideEntry(NamedTuple):
    """One entry of an observation outside.

    shape: of one world's part. path: its keys in an environment's observation; () where it has no keys there.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    path: tuple[Any, ...]


@dataclass(frozen=True)
class Outside:
    """The observations and actions of a role outside. The functions are made of operations that torch.export traces.

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
